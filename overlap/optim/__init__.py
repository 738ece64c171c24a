"""Optimizers over flats, and what goes with a step: norm, clipping, loss scale, state."""
