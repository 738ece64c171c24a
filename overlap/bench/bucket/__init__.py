"""``overlap bench bucket``: how large a bucket should be, by tables of others or by a sweep here.

settings.py   what was asked for
pipeline.py   buckets leave on a lane while compute makes the next: the engine's pattern, and its lanes
sweep.py      bucket bytes x buckets in flight, with and without compute · results.py  rows
tables.py     logs of nccl-tests, CSV, our JSON · advice.py  the fit (``overlap.comm.cost``), its picture, a bucket
worker.py command.py report.py   a rank; all ranks of this host; the terminal
"""
