"""``overlap bench host``: what a step costs the host, per unit, beside FSDP2; nobody communicates.

settings.py   what was asked for
idle.py       collectives that do nothing, for both
subjects.py   the same units of tiny parameters: plain, ours, FSDP2's
measure.py    rounds in turns, calls, launches
worker.py     one world size in one process
session.py    the parent: a process per world size and shape; results.py, report.py
"""
