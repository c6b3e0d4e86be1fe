"""The decorators that declare functions, and the calls of these functions by the host."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_type_hints, overload

from . import _json
from ._typed import Mismatch, read, write
from .error import Error
from .records import all_saved

Kind = Literal["sync", "action", "webhook", "lifecycle"]
Event = Literal["connection-validating", "connection-created", "connection-deleting"]
EVENTS: tuple[Event, ...] = ("connection-validating", "connection-created", "connection-deleting")

F = TypeVar("F", bound=Callable[..., Any])
B = TypeVar("B")


@dataclass(frozen=True)
class Webhook(Generic[B]):
    """A webhook of the provider, the parameter of a webhook function.

    The host has verified its signature if the provider signs webhooks.
    """

    body: B
    headers: dict[str, str] = field(default_factory=dict)
    """By name, in lower case."""


class DeclarationError(TypeError):
    """A function whose declaration is wrong, with its place in the source."""

    def __init__(self, function: Callable[..., Any], problem: str) -> None:
        code = getattr(function, "__code__", None)
        self.place = f"{code.co_filename}:{code.co_firstlineno}" if code else "?"
        super().__init__(f"{self.place}: `{function.__name__}` {problem}")


@dataclass(frozen=True)
class Function:
    """A declared function."""

    kind: Kind
    name: str
    description: str
    call: Callable[..., Any]
    takes_input: bool

    def invoke(self, input: str | None) -> str | None:
        """Calls the function with a JSON text and returns its output as a JSON text.

        Raises an `Error` with the code `unsaved-changes` if the function returns with changes that it has not saved.
        """
        with all_saved():
            return self._invoke(input)

    def _invoke(self, input: str | None) -> str | None:
        hints = get_type_hints(self.call)
        arguments = []
        if self.takes_input:
            (parameter,) = inspect.signature(self.call).parameters
            arguments.append(_input(hints.get(parameter, Any), input))
        output = self.call(*arguments)
        if self.kind != "action" or (output is None and hints.get("return", type(None)) is type(None)):
            return None
        try:
            return _json.dumps(write(output))
        except (TypeError, ValueError) as problem:
            raise Error("invalid-output", f"could not write the output of `{self.name}` as JSON: {problem}") from None


_functions: dict[tuple[Kind, str], Function] = {}


@overload
def sync(function: F, /) -> F: ...


@overload
def sync(*, name: str) -> Callable[[F], F]: ...


def sync(function: Any = None, /, *, name: str | None = None) -> Any:
    """Declares a sync: a function without parameters that copies objects of the provider as records.

    Its name in `syncline.toml` is the function's name in kebab case, or `name`. The first line of its docstring is
    its description.
    """
    return _decorator("sync", function, name)


@overload
def action(function: F, /) -> F: ...


@overload
def action(*, name: str) -> Callable[[F], F]: ...


def action(function: Any = None, /, *, name: str | None = None) -> Any:
    """Declares an action: a function that a client calls, with one parameter (the input) or without.

    The annotations of the parameter and the result say how to convert the input and the output.
    """
    return _decorator("action", function, name)


@overload
def webhook(function: F, /) -> F: ...


@overload
def webhook(*, name: str) -> Callable[[F], F]: ...


def webhook(function: Any = None, /, *, name: str | None = None) -> Any:
    """Declares a webhook function, which has one parameter: `call: Webhook[Body]`."""
    return _decorator("webhook", function, name)


def lifecycle(event: Event) -> Callable[[F], F]:
    """Declares a lifecycle function, which has no parameters. Its name in `syncline.toml` is the event."""
    if event not in EVENTS:
        raise ValueError(f"`{event}` is not an event; use one of {', '.join(f'`{known}`' for known in EVENTS)}")

    def decorate(function: F) -> F:
        return _declare("lifecycle", function, event)

    return decorate


def functions() -> list[Function]:
    """Returns all declared functions, in the order of their declaration."""
    return list(_functions.values())


def find(kind: str, name: str) -> Function | None:
    """Returns a declared function."""
    return next((found for found in _functions.values() if (found.kind, found.name) == (kind, name)), None)


def of(function: Callable[..., Any]) -> Function | None:
    """Returns the declaration of a Python function."""
    return next((found for found in _functions.values() if found.call is function), None)


def _decorator(kind: Kind, function: Any, name: str | None) -> Any:
    if function is not None:
        return _declare(kind, function, _kebab_case(function.__name__))
    return lambda decorated: _declare(kind, decorated, name or _kebab_case(decorated.__name__))


def _declare(kind: Kind, function: F, name: str) -> F:
    if inspect.iscoroutinefunction(function):
        raise DeclarationError(function, "is `async`, but functions are not; the host runs others while one waits")
    parameters = list(inspect.signature(function).parameters.values())
    required = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    most = 1 if kind in ("action", "webhook") else 0
    if len(required) > most or len(parameters) > most:
        names = ", ".join(f"`{parameter.name}`" for parameter in parameters)
        expected = "one parameter" if most else "no parameters"
        raise DeclarationError(function, f"has the parameters {names}; functions of this kind have {expected}")
    if kind == "webhook" and not parameters:
        raise DeclarationError(function, "has no parameter; a webhook function has one, such as `call: Webhook[Body]`")
    existing = _functions.get((kind, name))
    if existing is not None and existing.call.__qualname__ != function.__qualname__:
        raise DeclarationError(function, f"has the same name as another {kind} function, `{name}`; pass another `name`")
    lines = (inspect.getdoc(function) or "").splitlines()
    description = lines[0] if lines else ""
    _functions[kind, name] = Function(kind, name, description, function, bool(parameters))
    return function


def _kebab_case(name: str) -> str:
    return name.strip("_").replace("_", "-")


def _input(expected: Any, text: str | None) -> Any:
    try:
        return read(expected, None if text is None else _json.loads(text))
    except Mismatch as mismatch:
        if text is None:
            raise Error.invalid_input("the function requires an input, but the request has no input") from None
        raise Error.invalid_input(f"could not convert the input: {mismatch}") from None
