"""What a launcher such as torchrun told this process."""

import os

from overlap.config import LAUNCHER_VARIABLES, missing_launcher_variables
from overlap.errors import ConfigError, message


def launched() -> bool:
    """Whether a launcher has started this process as one of its ranks."""
    return "RANK" not in missing_launcher_variables()


def launched_ranks(asked: int | None) -> int:
    """Return how many ranks the launcher started.

    Args:
        asked: how many the user asked for, if at all.

    Raises:
        ConfigError: a launcher's variable is missing, or it started another number.
    """
    missing = missing_launcher_variables()
    if missing:
        rule = f"be set together ({', '.join(LAUNCHER_VARIABLES)})"
        cure = "start with torchrun, or unset RANK to let overlap start its ranks"
        raise ConfigError(message("launcher variables", rule, f"no {', '.join(missing)}", cure))
    started = int(os.environ["WORLD_SIZE"])
    if asked not in (None, started):
        rule = f"be the {started} that the launcher started"
        raise ConfigError(message("ranks", rule, asked, "leave --ranks out, or start that many"))
    return started
