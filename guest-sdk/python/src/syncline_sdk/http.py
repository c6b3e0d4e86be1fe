"""Requests to the provider. The host adds the connection's credentials; a function never sees them.

customer = http.get("/v1/customers/cus_1", query={"expand": "tax"}).send_ok().json(Customer)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload
from urllib.parse import quote_plus

from . import _json
from ._host import WireRequest, WireResponse, host
from ._typed import read, write
from .error import Error
from .paging import Page, Paging, pages

__all__ = ["Request", "Response", "delete", "get", "patch", "post", "put", "send_all"]

T = TypeVar("T")
Pairs = Mapping[str, Any] | Iterable[tuple[str, Any]]

# Maximum number of body bytes in the details of a `provider-http-error`.
MAX_ERROR_BODY_BYTES = 10_000


class Request:
    """A request to a path such as `/v1/customers`, or to an absolute URL of the provider or of `allow_hosts`.

    It does nothing until it is sent.
    """

    def __init__(
        self,
        method: str,
        url: str,
        *,
        query: Pairs = (),
        headers: Pairs = (),
        json: Any = None,
        form: Any = None,
        body: bytes | str | None = None,
        retries: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Creates a request.

        - `query`: parameters, which the host percent-encodes. `None` values are omitted.
        - `json`, `form` or `body`: the body. Forms write nested fields as `address[city]=Berlin`.
        - `retries`: after a network error, a 429 or a 5xx status. By default, only safe methods are retried.
        - `timeout`: the time limit of one attempt, in seconds.
        """
        if sum(given is not None for given in (json, form, body)) > 1:
            raise Error("invalid-request", f"{method} {url} has several bodies; pass one of `json`, `form` and `body`")
        self.method = method
        self.url = url
        self.query = [(name, _text(value)) for name, value in _pairs(query) if value is not None]
        self.headers = [(name, str(value)) for name, value in _pairs(headers)]
        self.body = body.encode() if isinstance(body, str) else body
        self.retries = retries
        self.timeout = timeout
        if json is not None:
            self._write_body(_json_body, json, "application/json", "JSON")
        elif form is not None:
            self._write_body(_form_body, form, "application/x-www-form-urlencoded", "a form")

    def send(self) -> Response:
        """Sends the request and returns the response, whatever its status."""
        return Response(host().send(self._wire()), self.target)

    def send_ok(self) -> Response:
        """Sends the request. Raises `provider-http-error` if the response's status is 400 or above."""
        return self.send().ok()

    @overload
    def pages(self, paging: Paging) -> Iterator[Page[dict[str, Any]]]: ...

    @overload
    def pages(self, paging: Paging, item: type[T]) -> Iterator[Page[T]]: ...

    def pages(self, paging: Paging, item: Any = dict[str, Any]) -> Iterator[Page[Any]]:
        """Sends the request repeatedly and returns a page at a time.

        Pass a dataclass or a typed dictionary as `item` to convert each item to it.
        """
        return pages(self, paging, item)

    @property
    def target(self) -> str:
        """Method and URL, for messages."""
        return f"{self.method} {self.url}"

    def copy(self) -> Request:
        """Returns a request that can be changed without changing this one."""
        copy = Request.__new__(Request)
        copy.__dict__.update(self.__dict__, query=list(self.query), headers=list(self.headers))
        return copy

    def set_query(self, name: str, value: str) -> None:
        """Sets a parameter and replaces one of the same name."""
        self.query = [pair for pair in self.query if pair[0] != name] + [(name, value)]

    def set_member(self, name: str, value: str) -> None:
        """Sets a member of the JSON body."""
        body = _json.loads(self.body or b"{}")
        if not isinstance(body, dict):
            raise Error("invalid-paging", f"the body of {self.target} must be a JSON object to contain `{name}`")
        self.body = _json_body({**body, name: value})

    def __repr__(self) -> str:
        return f"<Request {self.target}>"

    def _write_body(self, writer: Any, value: Any, content_type: str, form: str) -> None:
        try:
            self.body = writer(write(value))
        except (TypeError, ValueError) as problem:
            raise Error("invalid-request", f"could not write the body of {self.target} as {form}: {problem}") from None
        if not any(name.lower() == "content-type" for name, _ in self.headers):
            self.headers.append(("content-type", content_type))

    def _wire(self) -> WireRequest:
        timeout_ms = None if self.timeout is None else min(max(round(self.timeout * 1000), 0), 2**32 - 1)
        return WireRequest(
            self.method, self.url, tuple(self.query), tuple(self.headers), self.body, self.retries, timeout_ms
        )


class Response:
    """The provider's response."""

    def __init__(self, wire: WireResponse, target: str) -> None:
        self.status = wire.status
        """The HTTP status."""
        self.headers = wire.headers
        """All headers, with names in lower case."""
        self.body = wire.body
        """The decompressed body."""
        self._target = target

    def header(self, name: str) -> str | None:
        """Returns the first header of this name, in upper or lower case."""
        wanted = name.lower()
        return next((value for present, value in self.headers if present.lower() == wanted), None)

    @property
    def text(self) -> str:
        """The body as text."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as problem:
            raise self.unexpected(str(problem)) from None

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, expected: type[T]) -> T: ...

    def json(self, expected: Any = Any) -> Any:
        """Reads the body as JSON, and converts it if `expected` is a type."""
        try:
            return read(expected, _json.loads(self.body))
        except ValueError as problem:
            raise self.unexpected(str(problem)) from None

    def ok(self) -> Response:
        """Returns the response. Raises `provider-http-error` if its status is 400 or above.

        The caller of an action then receives status 424. The details contain the status, the headers, and the first
        10,000 bytes of the body.
        """
        if self.status < 400:
            return self
        headers: dict[str, str] = {}
        for name, value in self.headers:
            # A session cookie is a secret, and details are stored and shown.
            if name.lower() != "set-cookie":
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
        shown = self.body[:MAX_ERROR_BODY_BYTES].decode(errors="replace")
        details = {"status": self.status, "headers": headers, "body": shown}
        raise Error("provider-http-error", f"{self._target} returned status {self.status}", details)

    def unexpected(self, problem: str) -> Error:
        """Creates the error for a response that the function cannot use."""
        return Error("unexpected-response", f"{self._target} returned an unexpected body: {problem}")

    def __repr__(self) -> str:
        return f"<Response {self.status} of {self._target}>"


def get(
    url: str,
    *,
    query: Pairs = (),
    headers: Pairs = (),
    retries: int | None = None,
    timeout: float | None = None,
) -> Request:
    """Creates a `GET` request."""
    return Request("GET", url, query=query, headers=headers, retries=retries, timeout=timeout)


def post(url: str, **options: Any) -> Request:
    """Creates a `POST` request. The options are those of `Request`."""
    return Request("POST", url, **options)


def put(url: str, **options: Any) -> Request:
    """Creates a `PUT` request. The options are those of `Request`."""
    return Request("PUT", url, **options)


def patch(url: str, **options: Any) -> Request:
    """Creates a `PATCH` request. The options are those of `Request`."""
    return Request("PATCH", url, **options)


def delete(url: str, **options: Any) -> Request:
    """Creates a `DELETE` request. The options are those of `Request`."""
    return Request("DELETE", url, **options)


def send_all(requests: Iterable[Request]) -> list[Response | Error]:
    """Sends several requests concurrently. Returns a response or an error for each, in the order of the requests."""
    prepared = list(requests)
    answers = host().send_all([request._wire() for request in prepared])
    return [
        answer if isinstance(answer, Error) else Response(answer, request.target)
        for request, answer in zip(prepared, answers, strict=True)
    ]


def _pairs(pairs: Pairs) -> Iterable[tuple[str, Any]]:
    return pairs.items() if isinstance(pairs, Mapping) else pairs


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _json_body(value: Any) -> bytes:
    return _json.dumps(value).encode()


def _form_body(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise TypeError("a form body must be a dictionary or a dataclass")
    return "&".join(
        f"{quote_plus(name)}={quote_plus(text)}" for key, member in value.items() for name, text in _form(key, member)
    ).encode()


def _form(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Nested fields are written with brackets, as most providers expect. `None` is omitted."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _form(f"{name}[{key}]", member)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, item in enumerate(value):
            yield from _form(f"{name}[{index}]", item)
    elif value is not None:
        yield name, _text(value)
