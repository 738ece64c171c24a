"""What this machine, this installation and this environment do to overlap: ``overlap doctor``.

probes/    look: everything that is read from the system, once, into frozen facts
checks/    judge: facts -> findings, nothing else; one file per family
"""
