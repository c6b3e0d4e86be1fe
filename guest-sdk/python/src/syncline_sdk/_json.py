"""JSON as the host understands it: exact integers, and no `NaN` or infinity."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def dumps(value: Any) -> str:
    """Writes a value of plain Python types. Raises `TypeError` or `ValueError` if JSON cannot represent it."""
    text = _encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 encoding, but JSON can escape it.
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def loads(text: str | bytes) -> Any:
    """Reads a JSON text, as bytes in UTF-8. Raises `ValueError` if it is malformed."""
    return _decode(text if isinstance(text, str) else text.removeprefix(b"\xef\xbb\xbf").decode())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is not a JSON value")


# Building these for each call would take longer than writing a short record.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
