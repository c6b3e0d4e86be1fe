"""JSON as the host understands it: exact integers, and no `NaN` or infinity."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def dumps(value: Any) -> str:
    """Writes a value of plain Python types. Raises `TypeError` or `ValueError` if JSON cannot represent it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 encoding, but JSON can escape it.
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def loads(text: str | bytes) -> Any:
    """Reads a JSON text. Raises `ValueError` if it is malformed."""
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is not a JSON value")
