"""Variables that the operator defines for functions."""

from __future__ import annotations

from ._host import host


def var(name: str) -> str | None:
    """Returns the value of a variable, or `None` if the integration has no variable of this name."""
    return vars().get(name)


def vars() -> dict[str, str]:
    """Returns the names and values of all variables that the integration can read."""
    return dict(host().variables())
