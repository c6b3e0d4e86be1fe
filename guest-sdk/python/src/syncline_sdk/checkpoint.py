"""Where a sync resumes. A `Writer` sets the checkpoint together with the records that it belongs to."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from . import _json
from ._host import host
from ._typed import Mismatch, read
from .error import Error

T = TypeVar("T")


@overload
def get() -> dict[str, Any] | None: ...


@overload
def get(expected: type[T]) -> T | None: ...


def get(expected: Any = dict[str, Any]) -> Any:
    """Returns the checkpoint that this run last saved, or else the checkpoint that it started with.

    Returns `None` on the first run and after a reset. Pass a dataclass or a typed dictionary to get one.
    """
    text = host().checkpoint()
    if text is None:
        return None
    try:
        return read(expected, _json.loads(text))
    except Mismatch as mismatch:
        raise Error(
            "invalid-checkpoint",
            f"could not convert the checkpoint to `{getattr(expected, '__name__', expected)}`: {mismatch}; "
            "if its type has changed, reset the sync",
        ) from None


def cursor() -> str | None:
    """Returns the text that `Writer.cursor` has set."""
    value = (get() or {}).get("cursor")
    if value is None or isinstance(value, str):
        return value
    raise Error(
        "invalid-checkpoint",
        "the checkpoint's `cursor` is not a text; if its type has changed, reset the sync",
    )
