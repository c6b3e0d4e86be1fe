"""The connection for which the function runs: one end user's account at the provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from . import _json
from ._host import host
from ._typed import Mismatch, read, write
from .error import Error

T = TypeVar("T")


@dataclass(frozen=True)
class Info:
    """The identity of a connection."""

    connection_id: str
    """The connection id, under which the backend knows the connection."""
    integration: str
    """The integration's unique key."""
    provider: str
    """The provider's name in the catalogue, such as `stripe-api-key`."""
    environment: str
    """The environment's name, such as `dev`."""
    config: dict[str, Any]
    """Values that were collected while connecting, such as a subdomain."""
    tags: dict[str, str]
    """The tags that the backend has set."""


def info() -> Info:
    """Returns the connection of this run."""
    connection_id, integration, provider, environment, config, tags = host().connection()
    return Info(connection_id, integration, provider, environment, _json.loads(config), _json.loads(tags))


@overload
def metadata() -> dict[str, Any]: ...


@overload
def metadata(expected: type[T]) -> T: ...


def metadata(expected: Any = dict[str, Any]) -> Any:
    """Returns the connection's metadata, a JSON object that the backend and functions share.

    Give the fields of a dataclass defaults, because the object is empty until a value is set.
    """
    try:
        return read(expected, _json.loads(host().metadata()))
    except Mismatch as mismatch:
        raise Error("invalid-metadata", f"could not convert the connection's metadata: {mismatch}") from None


def set_metadata(metadata: Mapping[str, Any] | Any) -> None:
    """Replaces the metadata with an object: a dictionary or a dataclass."""
    host().set_metadata(_object(metadata))


def update_metadata(changes: Mapping[str, Any] | Any) -> None:
    """Replaces the given top-level keys of the metadata and keeps the others."""
    host().update_metadata(_object(changes))


@overload
def credentials() -> dict[str, Any]: ...


@overload
def credentials(expected: type[T]) -> T: ...


def credentials(expected: Any = dict[str, Any]) -> Any:
    """Returns the current credentials, which the host refreshes first if they are about to expire.

    Requests to the provider do not need this. Raises `not-allowed` unless `syncline.toml` sets `credentials = true`
    for the function, and `credentials-unavailable` if the credentials cannot be refreshed.
    """
    text = host().credentials()
    try:
        return read(expected, _json.loads(text))
    except Mismatch as mismatch:
        raise Error("credentials-unavailable", f"could not convert the credentials: {mismatch}") from None


def _object(value: Any) -> str:
    try:
        return _json.dumps(write(value))
    except (TypeError, ValueError) as problem:
        raise Error("invalid-metadata", f"could not write the metadata as JSON: {problem}") from None
