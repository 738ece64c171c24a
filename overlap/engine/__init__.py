"""The engine: units, plan and hooks make a training step."""
