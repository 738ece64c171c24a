"""Where the CUDA C++ kernels are, for whoever asks, with Triton or without."""

import sys
from pathlib import Path

IMAGE = "_kernels.fatbin"


def image() -> Path | None:
    """Return the file; None where it was not built. An editable install keeps it in another folder than the sources."""
    package = sys.modules[__name__.partition(".")[0]]
    places = (Path(folder, IMAGE) for folder in package.__path__)
    return next((place for place in places if place.is_file()), None)
