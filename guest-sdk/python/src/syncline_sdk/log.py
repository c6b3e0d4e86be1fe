"""The run's log, which `syncline runs logs` and the REST API show.

In a component, the standard module `logging` and `print` write to the run's log, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from . import _json
from ._host import Level, host
from ._typed import write as to_plain

__all__ = ["Handler", "Level", "debug", "error", "info", "warn", "write"]


def write(level: Level, message: str, fields: Mapping[str, Any] | None = None) -> None:
    """Adds a line. `fields` are details, which are written as a JSON object."""
    host().log(level, message, _fields(fields) if fields else None)


def debug(message: str, **fields: Any) -> None:
    """Adds a line with the level `debug`."""
    write("debug", message, fields)


def info(message: str, **fields: Any) -> None:
    """Adds a line with the level `info`."""
    write("info", message, fields)


def warn(message: str, **fields: Any) -> None:
    """Adds a line with the level `warn`."""
    write("warn", message, fields)


def error(message: str, **fields: Any) -> None:
    """Adds a line with the level `error`."""
    write("error", message, fields)


class Handler(logging.Handler):
    """Writes the records of the standard module `logging` to the run's log. Components install it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write(_level_of(record.levelno), self.format(record), {"logger": record.name})
        except Exception:
            self.handleError(record)


def _level_of(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


def _fields(fields: Mapping[str, Any]) -> str:
    """A value that JSON cannot represent is logged as text, because a log line must not end a run."""
    try:
        return _json.dumps(to_plain(fields))
    except (TypeError, ValueError):
        return _json.dumps({str(name): repr(value) for name, value in fields.items()})
