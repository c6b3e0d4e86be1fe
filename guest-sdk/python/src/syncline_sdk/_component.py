"""The host's functions as imports of a component, and the component's exports. It is only imported in a component."""

from __future__ import annotations

import linecache
import logging
import os
import sys
import traceback
from typing import Any

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import checkpoint, connection, environment, integration_types, log, provider, records, run

from . import __version__, _host, _json, functions
from ._host import Change, Counts, Level, WireRequest, WireResponse
from ._typed import write
from .error import Error
from .log import Handler

_LEVELS: dict[Level, Any] = {
    "debug": log.Level.DEBUG,
    "info": log.Level.INFO,
    "warn": log.Level.WARN,
    "error": log.Level.ERROR,
}
_CHANGES: dict[str, Any] = {"save": records.Change_Save, "update": records.Change_Update}


class Imports:
    """Calls the functions that the host provides. A failure becomes an `Error`."""

    def send(self, request: WireRequest) -> WireResponse:
        try:
            return _response(provider.send(_request(request)))
        except Err as failure:
            raise _error(failure.value) from None

    def send_all(self, requests: list[WireRequest]) -> list[WireResponse | Error]:
        return [
            _error(answer.value) if isinstance(answer, Err) else _response(answer.value)
            for answer in provider.send_all([_request(request) for request in requests])
        ]

    def commit(self, changes: list[Change], checkpoint: str | None) -> Counts:
        try:
            counts = records.commit([_change(change) for change in changes], checkpoint)
        except Err as failure:
            raise _error(failure.value) from None
        return Counts(counts.added, counts.updated, counts.deleted, counts.unchanged)

    def records(self, model: str, ids: list[str]) -> list[str | None]:
        try:
            return list(records.get(model, ids))
        except Err as failure:
            raise _error(failure.value) from None

    def checkpoint(self) -> str | None:
        return checkpoint.get()

    def connection(self) -> tuple[str, str, str, str, str, str]:
        info = connection.get()
        return info.connection_id, info.integration, info.provider, info.environment, info.config, info.tags

    def metadata(self) -> str:
        return connection.metadata()

    def set_metadata(self, metadata: str) -> None:
        try:
            connection.set_metadata(metadata)
        except Err as failure:
            raise _error(failure.value) from None

    def update_metadata(self, changes: str) -> None:
        try:
            connection.update_metadata(changes)
        except Err as failure:
            raise _error(failure.value) from None

    def credentials(self) -> str:
        try:
            return connection.credentials()
        except Err as failure:
            raise _error(failure.value) from None

    def variables(self) -> list[tuple[str, str]]:
        return list(environment.variables())

    def log(self, level: Level, message: str, fields: str | None) -> None:
        log.write(_LEVELS[level], _sound(message), fields)

    def panicked(self, message: str, location: str | None) -> None:
        log.panicked(_sound(message), location)

    def run(self) -> tuple[str, str, int]:
        info = run.get()
        return info.id, info.variant, info.attempt

    def is_full(self) -> bool:
        return run.is_full()

    def progress(self, done: int, total: int | None) -> None:
        run.progress(done, total)

    def cancelled(self) -> bool:
        return run.cancelled()

    def now_ms(self) -> int:
        return run.now()


class Functions(exports.Functions):
    """The functions that the component exports."""

    def describe(self) -> str:
        listed = [
            {"kind": function.kind, "name": function.name, "description": function.description}
            for function in functions.functions()
        ]
        return _json.dumps({"sdk": {"name": "syncline-sdk", "version": __version__}, "functions": listed})

    def invoke(self, kind: str, name: str, input: str | None) -> str | None:
        function = functions.find(kind, name)
        if function is None:
            raise _failure(Error("unknown-function", f"this component has no {kind} `{name}`"))
        try:
            return function.invoke(input)
        except Error as error:
            raise _failure(error) from None
        except BaseException as exception:
            _report(exception)
            # Ends the instance at once. Python would write the traceback a second time.
            os.abort()


def start(sources: dict[str, str]) -> None:
    """Prepares the component while it is built. `sources` has the text of the project's files, for tracebacks."""
    _host.use_component(Imports())
    _sources.update(sources)
    for path, text in sources.items():
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    handler = Handler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if "urllib.request" in sys.modules:
        from . import _urllib

        _urllib.install()


_sources: dict[str, str] = {}


def _report(exception: BaseException) -> None:
    """Writes the traceback to the run's log, and makes the exception the run's error."""
    frames = traceback.extract_tb(exception.__traceback__)
    own = [frame for frame in frames if frame.filename in _sources]
    # Begins with the author's code, without the frames of the SDK that called it.
    first = frames.index(own[0]) if own else 0
    shown = traceback.TracebackException.from_exception(exception)
    del shown.stack[:first]
    imports = _host.host()
    imports.log("error", "".join(shown.format()).rstrip(), None)
    message = "".join(traceback.format_exception_only(exception)).strip()
    if isinstance(exception, ImportError):
        message += (
            "; a component contains only modules that are imported while it is built: import it at the top of the file"
        )
    imports.panicked(message, f"{own[-1].filename}:{own[-1].lineno}" if own else None)


def _request(request: WireRequest) -> provider.Request:
    return provider.Request(
        request.method,
        request.url,
        list(request.query),
        list(request.headers),
        request.body,
        request.retries,
        request.timeout_ms,
    )


def _response(response: provider.Response) -> WireResponse:
    return WireResponse(response.status, response.headers, response.body)


def _change(change: Change) -> Any:
    if change.kind == "delete":
        return records.Change_Delete(records.Deletion(change.model, list(change.ids), change.variant))
    return _CHANGES[change.kind](records.Batch(change.model, change.items, change.variant))


def _error(failure: integration_types.Failure) -> Error:
    details = None if failure.details is None else _json.loads(failure.details)
    return Error(failure.code, failure.message, details)


def _failure(error: Error) -> Err[integration_types.Failure]:
    try:
        details = None if error.details is None else _json.dumps(write(error.details))
    except (TypeError, ValueError):
        # Details that JSON cannot represent must not hide the error.
        details = _json.dumps(repr(error.details))
    return Err(integration_types.Failure(error.code, _sound(error.message), details))


def _sound(text: str) -> str:
    """Replaces lone surrogates, which have no UTF-8 encoding."""
    return text.encode(errors="replace").decode()
