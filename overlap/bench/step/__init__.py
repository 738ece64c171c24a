"""``overlap bench step``: whole training steps of this engine and its peers, in turns, over links of a chosen rate.

settings.py     what was asked for
workload.py     model, data, optimizer's constants: the same for all
contenders/     one file per library: how it trains the workload
audit.py        which collectives a contender really calls
worker.py       one rank: builds all, lets them take turns (rounds.py), checks losses (reference.py)
session.py      the parent: hosts, ranks, a process of its own per contender for its peak memory (memory.py)
ideal.py        what no step can beat
results.py      rows; report.py, plot.py show them
"""
