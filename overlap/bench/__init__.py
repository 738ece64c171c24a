"""Benchmarks against the machine and against peers, both measured in the same run; nobody imports them but the CLI."""
