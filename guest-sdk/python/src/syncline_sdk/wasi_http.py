"""Ordinary HTTP over `wasi:http`, for bodies that a function reads piece by piece.

    with wasi_http.open("GET", "https://files.example.com/export.csv") as response:
        for line in io.TextIOWrapper(response):
            ...

Only components that import this module import `wasi:http/outgoing-handler`. For other requests use `syncline_sdk.http`,
which accepts paths, retries, and sends several requests at once.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ._host import WireRequest, host
from .error import Error

# Outside of components, requests go to the fake host.
IN_COMPONENT = importlib.util.find_spec("wit_world") is not None
if IN_COMPONENT:
    # A component can import modules only while it is built, so not when a request is sent.
    from componentize_py_types import Err
    from wit_world.imports import http_types, outgoing_handler, streams

MAX_CHUNK_BYTES = 1 << 20
MAX_WRITE_BYTES = 4096
METHODS = ("get", "head", "post", "put", "delete", "connect", "options", "trace", "patch")


class Response(io.RawIOBase):
    """A response, whose body is a binary file. Close it, or use it in a `with` statement."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: Any) -> None:
        super().__init__()
        self.status = status
        """The HTTP status."""
        self.headers = headers
        """All headers, with names in lower case."""
        self._body = body

    def header(self, name: str) -> str | None:
        """Returns the first header of this name, in upper or lower case."""
        wanted = name.lower()
        return next((value for present, value in self.headers if present.lower() == wanted), None)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk: bytes = self._body.read(min(len(buffer), MAX_CHUNK_BYTES))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()


def open(method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Response:
    """Sends a request and waits for the head of the response.

    `url` is an absolute URL of the provider or of one of the integration's `allow_hosts`. The body is read later.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise Error("invalid-request", f"{method} {url}: the URL must begin with `https://` or `http://` and a host")
    sent = [(name.lower(), value) for name, value in (headers or {}).items()]
    if not IN_COMPONENT:
        answer = host().send(WireRequest(method, url, (), tuple(sent), body, 0, None))
        return Response(answer.status, answer.headers, io.BytesIO(answer.body))
    return _open(method, url, sent, body)


def _open(method: str, url: str, headers: list[tuple[str, str]], body: bytes | None) -> Response:
    parts = urlsplit(url)
    try:
        request = http_types.OutgoingRequest(
            http_types.Fields.from_list([(name, value.encode()) for name, value in headers])
        )
        known = method.lower() in METHODS
        request.set_method(
            getattr(http_types, f"Method_{method.capitalize()}")() if known else http_types.Method_Other(method)
        )
        request.set_scheme(http_types.Scheme_Https() if parts.scheme == "https" else http_types.Scheme_Http())
        request.set_authority(parts.netloc)
        request.set_path_with_query((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        outgoing = request.body()
        future = outgoing_handler.handle(request, None)
        stream = outgoing.write()
        for start in range(0, len(body or b""), MAX_WRITE_BYTES):
            stream.blocking_write_and_flush((body or b"")[start : start + MAX_WRITE_BYTES])
        stream.__exit__(None, None, None)
        http_types.OutgoingBody.finish(outgoing, None)
        future.subscribe().block()
        answer = _value(_value(future.get()))
    except Err as problem:
        raise Error("network-error", f"{method} {url} failed: {_name_of(problem.value)}") from None
    found = [(name.lower(), value.decode(errors="replace")) for name, value in answer.headers().entries()]
    incoming = answer.consume()
    return Response(answer.status(), found, _Body(incoming, f"{method} {url}"))


class _Body:
    """The body of a response as it arrives."""

    def __init__(self, incoming: Any, target: str) -> None:
        self._incoming = incoming
        self._stream = incoming.stream()
        self._target = target

    def read(self, size: int) -> bytes:
        if self._stream is None:
            return b""
        try:
            chunk: bytes = self._stream.blocking_read(size)
            while not chunk:
                chunk = self._stream.blocking_read(size)
            return chunk
        except Err as problem:
            if isinstance(problem.value, streams.StreamError_Closed):
                self.close()
                return b""
            details = problem.value.value.to_debug_string()
            raise Error("network-error", f"{self._target}: the body ended early: {details}") from None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.__exit__(None, None, None)
            self._stream = None
            self._incoming.__exit__(None, None, None)


def _value(result: Any) -> Any:
    """Returns the value of a result, or raises it if it is an error."""
    if isinstance(result, Exception):
        raise result
    return result.value


def _name_of(code: Any) -> str:
    """Returns the name of an error code, such as `connection refused`."""
    name = type(code).__name__.partition("_")[2]
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    value = getattr(code, "value", None)
    return f"{words} ({value})" if isinstance(value, str) else words
