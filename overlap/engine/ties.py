"""Weights tied across units: one unit owns the parameter, the others borrow it.

A lender is in use whenever a borrower is, from the borrower's entry to its exit. It therefore has a slot of its own, as
a unit that encloses others has, and is gathered once for all who use it.
"""

from __future__ import annotations

from collections.abc import Sequence

from overlap.errors import StateError, message
from overlap.shard.unit import Unit


def find_lenders(units: Sequence[Unit]) -> None:
    """Tell every unit whose parameters it borrows.

    Raises:
        StateError: they belong to another model.
    """
    owner = {id(param): unit for unit in units for param in unit.params}
    for unit in units:
        lenders = {}
        for param in unit.borrowed:
            lender = owner.get(id(param))
            if lender is None:
                got, cure = "a tie to another sharded model", "shard one module that holds both"
                raise StateError(message(f"parameter {param.fqn!r}", "belong to one model", got, cure))
            lender.leaf = False
            lenders[id(lender)] = lender
        unit.lenders = tuple(lenders.values())
