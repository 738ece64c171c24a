"""How ranks learn where the others stand when a call has failed: through the job's store.

    rank 0   its call fails -> writes where it stands -> reads what rank 1, whose call fails with it, is about to write

It is only for better words. A store that is gone, or a rank that says nothing, costs `PATIENCE_S` and no more.
"""

import threading
import time
from collections.abc import Sequence

import torch.distributed as dist

from overlap import _compat
from overlap.comm.calls import CallLog
from overlap.comm.standing import tell, understand

PATIENCE_S = 0.5
"""A peer that waits for this rank fails within milliseconds: gloo closes the connection between them."""

_POLL_S = 0.01


def where_they_stand(mine: CallLog, ranks: Sequence[int]) -> dict[int, str]:
    """Tell all ranks where this one stands, and learn in words where some others do; the silent ones are left out.

    Args:
        mine: of the communicator whose latest call has failed.
        ranks: global ranks to ask.
    """
    found: dict[int, str] = {}
    # Another thread may hold the store, or its host be gone: nobody waits for an answer longer than this.
    thread = threading.Thread(target=_talk, args=(mine, ranks, found), daemon=True)
    thread.start()
    thread.join(2 * PATIENCE_S)
    return dict(found)


def _talk(mine: CallLog, ranks: Sequence[int], found: dict[int, str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    try:
        store = _compat.default_store()
        store.set(_key(dist.get_rank()), tell())
        while len(found) < len(ranks) and time.monotonic() < deadline:
            for rank in set(ranks) - found.keys():
                if store.check([_key(rank)]) and (text := understand(store.get(_key(rank)), mine)):
                    found[rank] = text
            time.sleep(_POLL_S)
    except (RuntimeError, ValueError):  # no store, or none any more: what is known by then is all there is
        return


def _key(rank: int) -> str:
    return f"overlap/standing/{rank}"
