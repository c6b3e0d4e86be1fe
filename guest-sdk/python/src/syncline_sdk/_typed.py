"""Converts between JSON values and types that annotations name: dataclasses, typed dictionaries, lists and so on.

The conversions of a type are built once and then kept.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

Convert = Callable[[Any], Any]


class Mismatch(ValueError):
    """A JSON value that does not have the expected type."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem, place)
        self.problem = problem
        self.place = place

    def below(self, segment: str | int) -> Mismatch:
        return Mismatch(self.problem, f"/{segment}{self.place}")

    def __str__(self) -> str:
        return f"at {self.place}: {self.problem}" if self.place else self.problem


def json_name(field: dataclasses.Field[Any]) -> str:
    """Returns the key of a dataclass field in JSON, which `field(metadata={"json": …})` can set."""
    return str(field.metadata.get("json", field.name))


def _reader(expected: Any) -> Convert:
    found = _readers.get(expected)
    if found is None:
        found = _readers[expected] = _build_reader(expected)
    return found


_readers: dict[Any, Convert] = {}


def read(expected: Any, value: Any) -> Any:
    """Converts a JSON value to the type `expected`. Raises `Mismatch`.

    Members that a dataclass does not have are dropped. A typed dictionary keeps them.
    """
    return _reader(expected)(value)


def write(value: Any) -> Any:
    """Converts a value with dataclasses to plain Python types. Other values are returned unchanged."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {key: write(member) for key, member in value.items()}
    if kind is list or kind is tuple:
        return [write(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: write(getattr(value, name)) for name, key in _fields_of(kind)}
    if isinstance(value, Mapping):
        return {key: write(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [write(item) for item in value]
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _fields_of(kind: type) -> list[tuple[str, str]]:
    found = _fields.get(kind)
    if found is None:
        found = _fields[kind] = [(field.name, json_name(field)) for field in dataclasses.fields(kind)]
    return found


_fields: dict[type, list[tuple[str, str]]] = {}


def name_of(value: Any) -> str:
    """Returns the JSON type of a value, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else type(value).__name__


def _build_reader(expected: Any) -> Convert:
    if expected is Any or isinstance(expected, TypeVar) or expected is object:
        return lambda value: value
    if expected is None or expected is type(None):
        return _plain("null", lambda value: value is None)
    if expected in (str, bool, int, float):
        return _SCALARS[expected]
    origin, arguments = get_origin(expected), get_args(expected)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _reader(arguments[0])
    if origin is Literal:
        return _literal(arguments)
    if origin is Union or origin is types.UnionType:
        return _union(arguments)
    if expected in (list, tuple, Sequence) or origin in (list, Sequence):
        return _list(arguments[0] if arguments else Any)
    if is_typeddict(origin or expected):
        return _typed_dictionary(origin or expected, arguments)
    if expected in (dict, Mapping) or origin in (dict, Mapping):
        return _dictionary(arguments[1] if arguments else Any)
    if isinstance(origin or expected, type) and dataclasses.is_dataclass(origin or expected):
        return _dataclass(origin or expected, arguments)
    raise TypeError(
        f"cannot convert JSON to `{getattr(expected, '__name__', expected)}`; use a dataclass, a typed dictionary, "
        "`str`, `int`, `float`, `bool`, `None`, `list`, `dict`, `Literal`, `Any`, or a union of these"
    )


def _plain(name: str, accepts: Callable[[Any], bool]) -> Convert:
    def convert(value: Any) -> Any:
        if accepts(value):
            return value
        raise Mismatch(f"expected {name}, got {name_of(value)}")

    return convert


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    # `5.0` is an integer in JSON, and in `syncline.toml`.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise Mismatch(f"expected integer, got {name_of(value)}")


_SCALARS: dict[Any, Convert] = {
    str: _plain("string", lambda value: isinstance(value, str)),
    bool: _plain("boolean", lambda value: isinstance(value, bool)),
    int: _integer,
    # An integer is a number, too, and stays exact.
    float: _plain("number", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)),
}


def _literal(values: tuple[Any, ...]) -> Convert:
    def convert(value: Any) -> Any:
        if any(value == allowed and type(value) is type(allowed) for allowed in values):
            return value
        raise Mismatch(f"expected one of {', '.join(str(allowed) for allowed in values)}, got another {name_of(value)}")

    return convert


def _union(alternatives: tuple[Any, ...]) -> Convert:
    others = [alternative for alternative in alternatives if alternative is not type(None)]
    if len(others) == 1:
        return _optional(others[0])
    readers = [_deferred(alternative) for alternative in alternatives]

    def convert(value: Any) -> Any:
        problems = []
        for reader in readers:
            try:
                return reader(value)
            except Mismatch as mismatch:
                problems.append(str(mismatch))
        raise Mismatch(" or ".join(problems))

    return convert


def _optional(expected: Any) -> Convert:
    inner = _deferred(expected)
    return lambda value: None if value is None else inner(value)


def _deferred(expected: Any) -> Convert:
    """Builds the conversion when it is first used, because types can contain themselves."""
    if expected in _SCALARS:
        return _SCALARS[expected]
    return lambda value: _reader(expected)(value)


def _list(item: Any) -> Convert:
    inner = _deferred(item)

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise Mismatch(f"expected array, got {name_of(value)}")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(inner(item))
            except Mismatch as mismatch:
                raise mismatch.below(index) from None
        return items

    return convert


def _dictionary(member: Any) -> Convert:
    inner = _deferred(member)

    def convert(value: Any) -> Any:
        return {key: _member(inner, key, item) for key, item in _object(value).items()}

    return convert


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Mismatch(f"expected object, got {name_of(value)}")
    return value


def _member(inner: Convert, key: str, value: Any) -> Any:
    try:
        return inner(value)
    except Mismatch as mismatch:
        raise mismatch.below(key) from None


def _typed_dictionary(kind: Any, arguments: tuple[Any, ...]) -> Convert:
    hints = _hints(kind, arguments)
    # If annotations are texts, `__required_keys__` does not know `NotRequired`.
    marks = {key: get_origin(hint) for key, hint in get_type_hints(kind, include_extras=True).items()}
    required = {key for key in kind.__required_keys__ if marks[key] is not typing.NotRequired}
    members = {key: _deferred(hint) for key, hint in hints.items()}

    def convert(value: Any) -> Any:
        found = dict(_object(value))
        for key, inner in members.items():
            if key in found:
                found[key] = _member(inner, key, found[key])
            elif key in required:
                raise Mismatch(f"`{key}` is missing")
        return found

    return convert


def _dataclass(kind: Any, arguments: tuple[Any, ...]) -> Convert:
    hints = _hints(kind, arguments)
    members = []
    for field in dataclasses.fields(kind):
        if field.init:
            optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            members.append((field.name, json_name(field), _deferred(hints[field.name]), optional))

    def convert(value: Any) -> Any:
        found = _object(value)
        given = {}
        for name, key, inner, optional in members:
            if key in found:
                given[name] = _member(inner, key, found[key])
            elif not optional:
                raise Mismatch(f"`{key}` is missing")
        return kind(**given)

    return convert


def _hints(kind: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Returns the types of a class's members. Parameters of a generic class are replaced by their arguments."""
    hints = get_type_hints(kind)
    parameters = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    return {name: parameters.get(hint, hint) if isinstance(hint, TypeVar) else hint for name, hint in hints.items()}
