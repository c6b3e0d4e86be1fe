"""The functions of the host: a component imports them, and in unit tests a fake host provides them."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, Protocol

from .error import Error

Level = Literal["debug", "info", "warn", "error"]


@dataclass(frozen=True)
class WireRequest:
    method: str
    url: str
    query: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    retries: int | None
    timeout_ms: int | None


@dataclass(frozen=True)
class WireResponse:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True)
class Change:
    """A change of records. `items` is a JSON array for `save` and `update`, and `ids` are for `delete`."""

    kind: Literal["save", "update", "delete"]
    model: str
    variant: str | None
    items: str = "[]"
    ids: tuple[str, ...] = ()


@dataclass
class Counts:
    """The number of records that were added, updated, deleted and left unchanged."""

    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0


class Imports(Protocol):
    """The host's functions. They raise `Error` with the codes that the WIT files list. JSON values are texts."""

    def send(self, request: WireRequest) -> WireResponse: ...

    def send_all(self, requests: list[WireRequest]) -> list[WireResponse | Error]: ...

    def commit(self, changes: list[Change], checkpoint: str | None) -> Counts: ...

    def records(self, model: str, ids: list[str]) -> list[str | None]: ...

    def checkpoint(self) -> str | None: ...

    def connection(self) -> tuple[str, str, str, str, str, str]:
        """Returns connection id, integration, provider, environment, and the JSON texts of config and tags."""
        ...

    def metadata(self) -> str: ...

    def set_metadata(self, metadata: str) -> None: ...

    def update_metadata(self, changes: str) -> None: ...

    def credentials(self) -> str: ...

    def variables(self) -> list[tuple[str, str]]: ...

    def log(self, level: Level, message: str, fields: str | None) -> None: ...

    def panicked(self, message: str, location: str | None) -> None: ...

    def run(self) -> tuple[str, str, int]:
        """Returns the run's id, its variant, and the number of the attempt."""
        ...

    def is_full(self) -> bool: ...

    def progress(self, done: int, total: int | None) -> None: ...

    def cancelled(self) -> bool: ...

    def now_ms(self) -> int: ...


_component: Imports | None = None
# A context variable, so that tests can run in several threads, each with its own fake host.
_fake: ContextVar[Imports | None] = ContextVar("syncline_host", default=None)


def use_component(imports: Imports) -> None:
    """Makes a component's imports the host."""
    global _component
    _component = imports


def use_fake(imports: Imports | None) -> None:
    """Makes a fake host the host of this context, or removes it."""
    _fake.set(imports)


def fake() -> Imports | None:
    return _fake.get()


def host() -> Imports:
    found = _component or _fake.get()
    if found is None:
        raise RuntimeError(
            "a function needs a host; in a test, create a `syncline_sdk.testing.Host` before you call the function"
        )
    return found
