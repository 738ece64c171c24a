"""Timelines from our own events, what they measure, and how they are shown."""
