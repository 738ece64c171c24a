"""Judging facts. A check is a function of facts alone, so that any machine can be put before it."""

from overlap.doctor.checks import gpus, kernels, memory, network, software, storage, stores, threads, variables
from overlap.doctor.facts import Facts
from overlap.doctor.finding import Finding

FAMILIES = {
    "software": software.check,
    "kernels": kernels.check,
    "gpus": gpus.check,
    "variables": variables.check,
    "threads": threads.check,
    "memory": memory.check,
    "network": network.check,
    "storage": storage.check,
    "stores": stores.check,
}
"""Every check, by the word that reports show."""


def examine(facts: Facts) -> dict[str, list[Finding]]:
    """All findings, by family."""
    return {family: list(check(facts)) for family, check in FAMILIES.items()}
