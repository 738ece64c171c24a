from collections.abc import Iterator

import pytest
from support.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """`ranks(4, fn, *args)` runs fn in four real processes; see support/ranks.py."""
    pools = Ranks()
    yield pools
    pools.close()
