"""Collectives with byte accounting: what moves between ranks, on which lane, and how much of it.

Nothing is re-exported: `overlap.comm.volume` must stay importable without torch.
"""
