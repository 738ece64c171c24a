import signal
from collections.abc import Iterator

import pytest
from support.ranks import Ranks

# A shell without job control starts what runs behind it deaf to Ctrl-C, and so are its children; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """`ranks(4, fn, *args)` runs fn in four real processes; see support/ranks.py."""
    pools = Ranks()
    yield pools
    pools.close()
