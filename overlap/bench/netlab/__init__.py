"""Hosts on one machine, joined by links of a chosen rate, to run one rank on each.

    with open_lab(parse_net("1gbit"), ranks=2) as lab:
        run_ranks(lab, ["-m", "overlap.bench.step.worker", settings])

net.py         what ``--net`` says
lab.py         which hosts a net gives: namespaces, or loopback
namespaces.py  builds and removes them (root)
leftovers.py   names that tell a live run's namespaces from a dead one's
processes.py   one process per host
traffic.py     bytes that crossed an interface, by the kernel's count
"""
