"""``overlap bench collective``: what collectives cost here, in nccl-tests' columns, every value checked.

settings.py    what was asked for · sizes.py  bytes and scans, as nccl-tests rounds them
values.py      inputs whose sums are exact, and the count of what came out wrong
places.py      where the tensors of a call lie: flat, coalesced, staged; in place or not
transports.py  who carries the call: torch over gloo or NCCL, or our communicators
clock.py measure.py   the rounds · results.py report.py  rows, in nccl-tests' columns
worker.py command.py  a rank; all ranks of this host
tables.py curve.py    logs and tables of others, the fit (``overlap.comm.cost``) and its picture
"""
