"""Errors a user can act on: one grammar, and the words that matter."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

GRAMMAR = r"(?s).+ must .+, but got .+; .+"
"""Subject must rule, but got value; cure."""


@contextmanager
def clear_error(kind: type[Exception], *words: str) -> Iterator[None]:
    """What runs inside raises ``kind``, in the grammar, and names all ``words``."""
    with pytest.raises(kind) as caught:
        yield
    text = str(caught.value)
    assert re.fullmatch(GRAMMAR, text), text
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} missing in: {text}"
