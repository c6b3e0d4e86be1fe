"""A fake host, with which functions are tested as plain functions, without a sandbox and without a network.

    with Host() as host:
        host.answer("GET /v1/customers?limit=100", 200, {"data": [{"id": "cus_1"}], "has_more": False})
        customers()
        assert host.records("Customer") == [{"id": "cus_1"}]

It validates records, inputs and outputs against the models of the project's `syncline.toml`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .. import _host, _json, functions
from .._host import Change, Counts, Level, WireRequest, WireResponse
from .._typed import write
from ..error import Error
from .models import Config, ConfigError, FunctionConfig, Type, describe

__all__ = ["Commit", "ConfigError", "Host", "LogLine", "SentRequest", "UnexpectedRequest"]

MAX_METADATA_BYTES = 1 << 20
MAX_CHECKPOINT_BYTES = 64 << 10
_SEARCH = Path()


class UnexpectedRequest(AssertionError):
    """A function has sent a request for which the test has no response."""


@dataclass(frozen=True)
class SentRequest:
    """A request that a function has sent."""

    line: str
    """Method, URL and query without percent-encoding, such as `GET /v1/customers?limit=100`."""
    headers: dict[str, str]
    body: bytes
    """Empty if there was no body."""

    def json(self) -> Any:
        """Reads the body as JSON."""
        return _json.loads(self.body)


@dataclass(frozen=True)
class Commit:
    """One transaction."""

    changes: list[tuple[str, str, dict[str, Any] | None]]
    """Model, id and payload of each changed record. The payload is `None` for a deleted record."""
    checkpoint: dict[str, Any] | None
    """The checkpoint that was set in the same transaction."""


@dataclass(frozen=True)
class LogLine:
    """A line of the run's log."""

    level: Level
    message: str
    fields: dict[str, Any] = field(default_factory=dict)


class Host:
    """The host of the functions that this thread calls, until it is closed. Use it in a `with` statement."""

    def __init__(self, config: str | Path | None = _SEARCH) -> None:
        """Creates a host without records, metadata, variables or responses.

        `config` is the path of `syncline.toml`. By default, the host searches it in the working directory and the
        folders above. With `None`, nothing is validated.
        """
        if _host.fake() is not None:
            raise RuntimeError("there is already a `Host`; close it first, or use it in a `with` statement")
        self._state = _State(None if config is None else Config.read(_config_path(Path(config))))
        _host.use_fake(self._state)

    def close(self) -> None:
        """Ends the host."""
        if _host.fake() is self._state:
            _host.use_fake(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(self, function: Callable[..., Any], input: Any = None) -> Any:
        """Calls a function as the host does, and returns its output as JSON.

        Validates the input and the output against `syncline.toml`, and refuses changes of models and reads of
        credentials that it does not grant to the function. `input` is a JSON value or a dataclass.
        """
        declared = functions.of(function)
        if declared is None:
            raise TypeError(f"`{getattr(function, '__name__', function)}` has no decorator such as `@action`")
        with self._state.running(declared) as config:
            plain = None if input is None else _json.loads(_json.dumps(write(input)))
            if config and config.input:
                _validate(config.input, plain, "invalid-input", "the input")
            output = declared.invoke(None if plain is None else _json.dumps(plain))
            result = None if output is None else _json.loads(output)
            if config and config.output and not (output is None and config.output.optional):
                _validate(config.output, result, "invalid-output", "the output")
        return result

    def call_webhook(self, function: Callable[..., Any], body: Any, headers: Mapping[str, str] | None = None) -> None:
        """Calls a webhook function with a body and headers."""
        self.call(
            function,
            {"headers": {name.lower(): value for name, value in (headers or {}).items()}, "body": body},
        )

    def answer(
        self, line: str, status: int = 200, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Self:
        """Sets a response: JSON, or `bytes`.

        `line` is method, URL and query without percent-encoding, such as `GET /v1/customers?limit=100`. Several
        responses for one line are returned in turn, and the last one is repeated.
        """
        content = body if isinstance(body, bytes) else _json.dumps(write(body)).encode()
        kind = {} if isinstance(body, bytes) else {"content-type": "application/json"}
        named = {**kind, **{name.lower(): value for name, value in (headers or {}).items()}}
        self._state.answers.setdefault(line, []).append(WireResponse(status, list(named.items()), content))
        return self

    def fail(self, line: str, code: str, message: str = "the request failed") -> Self:
        """Lets a request fail with a code of the host, such as `timeout`."""
        self._state.answers.setdefault(line, []).append(Error(code, message))
        return self

    def keep(self, model: str, *records: Any) -> Self:
        """Stores records as if an earlier run had saved them."""
        self._state.keep(model, [_json.loads(_json.dumps(write(record))) for record in records])
        return self

    def set_checkpoint(self, checkpoint: Any) -> Self:
        """Sets the checkpoint that the run starts with."""
        self._state.current_checkpoint = None if checkpoint is None else _json.loads(_json.dumps(write(checkpoint)))
        return self

    def set_metadata(self, metadata: Any) -> Self:
        """Sets the connection's metadata."""
        self._state.set_metadata(_json.dumps(write(metadata)))
        return self

    def set_connection_config(self, config: Mapping[str, Any]) -> Self:
        """Sets the connection configuration, such as a subdomain."""
        self._state.connection_config = dict(config)
        return self

    def set_credentials(self, credentials: Mapping[str, Any]) -> Self:
        """Sets the credentials. Without them, reading the credentials fails with `not-allowed`."""
        self._state.current_credentials = dict(credentials)
        return self

    def set_variable(self, name: str, value: str) -> Self:
        """Sets a variable of the environment."""
        self._state.current_variables[name] = value
        return self

    def set_time(self, milliseconds: int) -> Self:
        """Sets the host's clock, in milliseconds since 1970. Without it, the clock is this machine's."""
        self._state.time = milliseconds
        return self

    def cancel(self) -> Self:
        """Asks the function to stop."""
        self._state.is_cancelled = True
        return self

    def run_fully(self) -> Self:
        """Makes the run full: the host deletes the records that it does not save."""
        self._state.runs_fully = True
        return self

    def records(self, model: str) -> list[dict[str, Any]]:
        """Returns the current records of a model, sorted by id."""
        kept = self._state.kept.get(model, {})
        return [copy.deepcopy(kept[id]) for id in sorted(kept)]

    @property
    def checkpoint(self) -> Any:
        """The current checkpoint, or `None`."""
        return copy.deepcopy(self._state.current_checkpoint)

    @property
    def metadata(self) -> Any:
        """The connection's current metadata."""
        return copy.deepcopy(self._state.current_metadata)

    @property
    def commits(self) -> list[Commit]:
        """The commits so far."""
        return list(self._state.commits)

    @property
    def requests(self) -> list[SentRequest]:
        """The requests so far."""
        return list(self._state.requests)

    @property
    def log(self) -> list[LogLine]:
        """The log so far."""
        return list(self._state.lines)

    @property
    def progress(self) -> tuple[int, int | None] | None:
        """The progress that the function last reported."""
        return self._state.current_progress


class _State:
    """The functions of the host."""

    def __init__(self, config: Config | None) -> None:
        self.config = config
        self.function: FunctionConfig | None = None
        self.is_sync = True
        self.answers: dict[str, list[WireResponse | Error]] = {}
        self.kept: dict[str, dict[str, dict[str, Any]]] = {}
        self.current_checkpoint: Any = None
        self.current_metadata: dict[str, Any] = {}
        self.connection_config: dict[str, Any] = {}
        self.current_credentials: dict[str, Any] | None = None
        self.current_variables: dict[str, str] = {}
        self.current_progress: tuple[int, int | None] | None = None
        self.time: int | None = None
        self.is_cancelled = False
        self.runs_fully = False
        self.commits: list[Commit] = []
        self.requests: list[SentRequest] = []
        self.lines: list[LogLine] = []

    @contextmanager
    def running(self, function: functions.Function) -> Iterator[FunctionConfig | None]:
        config = None
        if self.config is not None:
            config = self.config.functions.get((function.kind, function.name))
            if config is None:
                raise ConfigError(f"{self.config.path}: there is no {function.kind} `{function.name}`; add its table")
        self.function, self.is_sync = config, function.kind == "sync"
        try:
            yield config
        finally:
            self.function, self.is_sync = None, True

    def send(self, request: WireRequest) -> WireResponse:
        query = "&".join(f"{name}={value}" for name, value in request.query)
        separator = "" if not query else "&" if "?" in request.url else "?"
        line = f"{request.method} {request.url}{separator}{query}"
        self.requests.append(SentRequest(line, dict(request.headers), request.body or b""))
        answers = self.answers.get(line)
        if not answers:
            known = "".join(f"\n  {known}" for known in self.answers) or " none"
            raise UnexpectedRequest(f"the test has no response for `{line}`; it has responses for:{known}")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Error):
            raise answer
        return answer

    def send_all(self, requests: list[WireRequest]) -> list[WireResponse | Error]:
        answers: list[WireResponse | Error] = []
        for request in requests:
            try:
                answers.append(self.send(request))
            except Error as error:
                answers.append(error)
        return answers

    def commit(self, changes: list[Change], checkpoint: str | None) -> Counts:
        """Applies either all changes or none, like the real host."""
        kept, counts = copy.deepcopy(self.kept), Counts()
        applied: list[tuple[str, str, dict[str, Any] | None]] = []
        for change in changes:
            model = self.model(change.model)
            stored = kept.setdefault(change.model, {})
            if change.kind == "delete":
                for id in change.ids:
                    counts.deleted += stored.pop(id, None) is not None
                    applied.append((change.model, id, None))
                continue
            records = _json.loads(change.items)
            if change.kind == "update":
                records = [_merge(stored[str(new["id"])], new) for new in records if _id(new) in stored]
            _refuse_bad_records(change.model, model, records)
            for record in records:
                id = _id(record) or ""
                record["id"] = id
                applied.append((change.model, id, record))
                before = stored.get(id)
                stored[id] = record
                if before is None:
                    counts.added += 1
                elif before == record:
                    counts.unchanged += 1
                else:
                    counts.updated += 1
        place = self._checked(checkpoint)
        if checkpoint is not None:
            self.current_checkpoint = place
        self.kept = kept
        self.commits.append(Commit(applied, place))
        return counts

    def _checked(self, checkpoint: str | None) -> Any:
        if checkpoint is None:
            return None
        if not self.is_sync:
            raise Error("invalid-checkpoint", "only syncs have a checkpoint")
        place = _json.loads(checkpoint)
        if place is not None and not isinstance(place, dict):
            raise Error("invalid-checkpoint", f"the checkpoint must be a JSON object (got `{checkpoint}`)")
        if len(checkpoint.encode()) > MAX_CHECKPOINT_BYTES:
            raise Error("invalid-checkpoint", "the checkpoint is larger than 64 KB")
        return place

    def model(self, name: str) -> Type | None:
        """Returns a model that the function may use."""
        if self.config is None:
            return None
        if self.function is not None and name not in self.function.models:
            raise Error("unknown-model", f"the function does not list the model `{name}` in syncline.toml")
        if name not in self.config.models:
            raise Error("unknown-model", f"there is no model `{name}` in {self.config.path.name}")
        return self.config.models[name]

    def keep(self, model: str, records: list[dict[str, Any]]) -> None:
        _refuse_bad_records(model, self.model(model), records)
        for record in records:
            record["id"] = _id(record)
            self.kept.setdefault(model, {})[record["id"]] = record

    def records(self, model: str, ids: list[str]) -> list[str | None]:
        self.model(model)
        stored = self.kept.get(model, {})
        return [_json.dumps(stored[id]) if id in stored else None for id in ids]

    def checkpoint(self) -> str | None:
        return None if self.current_checkpoint is None else _json.dumps(self.current_checkpoint)

    def connection(self) -> tuple[str, str, str, str, str, str]:
        integration = self.function.integration if self.function else "integration"
        provider = self.function.provider if self.function else "provider"
        return "connection-1", integration, provider, "test", _json.dumps(self.connection_config), "{}"

    def metadata(self) -> str:
        return _json.dumps(self.current_metadata)

    def set_metadata(self, metadata: str) -> None:
        self.current_metadata = _metadata(metadata)

    def update_metadata(self, changes: str) -> None:
        self.current_metadata = _metadata(_json.dumps({**self.current_metadata, **_metadata(changes)}))

    def credentials(self) -> str:
        if self.function is not None and not self.function.credentials:
            raise Error(
                "not-allowed",
                "syncline.toml does not grant access; set `credentials = true` for the function",
            )
        if self.current_credentials is None:
            raise Error("not-allowed", "the test has not set credentials with `set_credentials`")
        return _json.dumps(self.current_credentials)

    def variables(self) -> list[tuple[str, str]]:
        return sorted(self.current_variables.items())

    def log(self, level: Level, message: str, fields: str | None) -> None:
        self.lines.append(LogLine(level, message, _json.loads(fields) if fields else {}))

    def panicked(self, message: str, location: str | None) -> None:
        """The test itself shows the exception."""

    def run(self) -> tuple[str, str, int]:
        return "00000000-0000-4000-8000-000000000000", "base", 1

    def is_full(self) -> bool:
        return self.runs_fully

    def progress(self, done: int, total: int | None) -> None:
        self.current_progress = (done, total)

    def cancelled(self) -> bool:
        return self.is_cancelled

    def now_ms(self) -> int:
        return int(time.time() * 1000) if self.time is None else self.time


def _config_path(given: Path) -> Path:
    if given != _SEARCH:
        return given / "syncline.toml" if given.is_dir() else given
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "syncline.toml").is_file():
            return folder / "syncline.toml"
    raise ConfigError(
        f"there is no syncline.toml in {here} or a folder above it; pass its path as `Host(path)`, "
        "or `Host(None)` to validate nothing"
    )


def _validate(expected: Type, value: Any, code: str, what: str) -> None:
    problems = expected.problems(value)
    if problems:
        details = [{"path": place, "problem": problem} for place, problem in problems]
        raise Error(code, f"{what} does not match its type: {describe(problems)}", details)


def _refuse_bad_records(name: str, model: Type | None, records: Iterable[Any]) -> None:
    refused = []
    for index, record in enumerate(records):
        problems = _id_problems(record)
        if model is not None and not problems:
            problems = model.problems(record)
        if problems:
            shown = [{"path": place, "problem": problem} for place, problem in problems]
            refused.append({"index": index, "id": _id(record), "problems": shown, "text": describe(problems)})
    if refused:
        first = refused[0]
        which = f"record {first['index']}" + (f" with the id `{first['id']}`" if first["id"] else "")
        message = f"{len(refused)} records do not match the model `{name}`; {which}: {first.pop('text')}"
        for others in refused[1:]:
            others.pop("text")
        raise Error("invalid-records", message, refused)


def _id(record: Any) -> str | None:
    id = record.get("id") if isinstance(record, dict) else None
    return str(id) if isinstance(id, (str, int)) and not isinstance(id, bool) else None


def _id_problems(record: Any) -> list[tuple[str, str]]:
    if not isinstance(record, dict):
        return [("", "expected object")]
    id = _id(record)
    if id is None:
        return [
            (
                "/id",
                "is missing, expected string or integer" if "id" not in record else "expected string or integer",
            )
        ]
    if not 1 <= len(id.encode(errors="replace")) <= 255 or "\0" in id:
        return [("/id", "expected 1 to 255 bytes without NUL")]
    return []


def _merge(kept: Any, changes: Any) -> Any:
    if isinstance(kept, dict) and isinstance(changes, dict):
        return {**kept, **{key: _merge(kept.get(key), value) for key, value in changes.items()}}
    return changes


def _metadata(text: str) -> dict[str, Any]:
    value = _json.loads(text)
    if not isinstance(value, dict):
        raise Error("invalid-metadata", "the metadata must be a JSON object")
    if len(text.encode()) > MAX_METADATA_BYTES:
        raise Error("invalid-metadata", "the metadata is larger than 1 MB")
    return value
