"""The models of `syncline.toml`, and the validation of JSON values against them."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

Problem = tuple[str, str]
"""A JSON pointer, and a description such as `expected string, got integer`."""

OPTIONS = {"strict": bool, "on_bad_record": str, "encrypt": bool, "schema": str}


class ConfigError(Exception):
    """A mistake in `syncline.toml`. `syncline check` reports more of them."""


@dataclass
class Type:
    """A type: what it is called in messages, and how to find the problems of a value."""

    name: str
    problems: Callable[[Any], list[Problem]]
    optional: bool = False


@dataclass
class FunctionConfig:
    """A function's table."""

    integration: str
    provider: str
    models: list[str]
    credentials: bool
    input: Type | None = None
    output: Type | None = None


@dataclass
class Config:
    """The parts of `syncline.toml` that a test needs."""

    path: Path
    models: dict[str, Type] = field(default_factory=dict)
    functions: dict[tuple[str, str], FunctionConfig] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Config:
        """Reads the file. Raises `ConfigError`."""
        try:
            file = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise ConfigError(f"{path}: {problem.strerror}") from None
        except ValueError as problem:
            raise ConfigError(f"{path}: not a TOML file: {problem}") from None
        config = cls(path)
        for name, table in file.get("models", {}).items():
            config.models[name] = config._model(name, table)
        for key, integration in file.get("integrations", {}).items():
            for kind in ("sync", "action", "webhook", "lifecycle"):
                for name, table in integration.get(kind if kind in ("lifecycle",) else f"{kind}s", {}).items():
                    config.functions[kind, name] = config._function(key, integration, table, f"{key}.{kind}s.{name}")
        return config

    def _function(self, key: str, integration: Any, table: Any, place: str) -> FunctionConfig:
        models = [*([table["model"]] if "model" in table else []), *table.get("models", [])]
        for model in models:
            if model not in self.models:
                raise ConfigError(f"{self.path}: `{place}` names the model `{model}`, which is not in [models]")
        function = FunctionConfig(key, integration.get("provider", ""), models, table.get("credentials", False))
        function.input = self._type(table["input"], f"{place}.input") if "input" in table else None
        function.output = self._type(table["output"], f"{place}.output") if "output" in table else None
        return function

    def _model(self, name: str, table: Any) -> Type:
        if isinstance(table.get("schema"), str) and not _is_type(table["schema"]):
            return self._schema(name, table["schema"])
        return self._object(table, name)

    def _object(self, table: dict[str, Any], place: str) -> Type:
        strict = table.get("strict") is True
        fields: dict[str, Type] = {}
        for key, value in table.items():
            if key in OPTIONS and isinstance(value, OPTIONS[key]) and not _is_type(value):
                continue
            declared = self._type(value, f"{place}.{key}")
            if key.endswith("?"):
                key, declared = key[:-1], _optional(declared)
            fields[key] = declared

        def problems(value: Any) -> list[Problem]:
            if not isinstance(value, dict):
                return [("", f"expected object, got {json_type(value)}")]
            found = []
            for key, declared in fields.items():
                if key in value:
                    found += _below(key, declared.problems(value[key]))
                elif not declared.optional:
                    found.append((f"/{key}", f"is missing, expected {declared.name}"))
            if strict:
                undeclared = "is not declared, and the model is strict"
                found += [(f"/{key}", undeclared) for key in value if key not in fields]
            return found

        return Type("object", problems)

    def _schema(self, name: str, file: str) -> Type:
        path = self.path.parent / file
        try:
            schema = importlib.import_module("json").loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise ConfigError(f"{path}: could not read the JSON Schema of the model `{name}`: {problem}") from None

        def problems(value: Any) -> list[Problem]:
            try:
                jsonschema = importlib.import_module("jsonschema")
            except ModuleNotFoundError:
                raise ConfigError(
                    f"{path}: to validate records of `{name}` in tests, install the package `jsonschema`"
                ) from None
            validator = jsonschema.validators.validator_for(schema)(schema)
            return [
                ("".join(f"/{segment}" for segment in error.absolute_path), error.message)
                for error in validator.iter_errors(value)
            ]

        return Type("object", problems)

    def _type(self, value: Any, place: str) -> Type:
        if isinstance(value, dict):
            return self._object(value, place)
        if isinstance(value, list) and len(value) == 1:
            return _list(self._type(value[0], place))
        if isinstance(value, str):
            return self._parse(value.strip(), place)
        raise ConfigError(f'{self.path}: `{place}` is not a type; write a type such as "string"')

    def _parse(self, text: str, place: str) -> Type:
        match = re.fullmatch(r"(enum\s*\((?:[^')]|'(?:[^']|'')*')*\)|[\w-]+)\s*((?:\[\]|\?|\s)*)", text)
        if match is None:
            raise ConfigError(f"{self.path}: `{place}`: `{text}` is not a type")
        word, suffixes = match.groups()
        if word.startswith("enum"):
            found = _enum(word)
        elif word in PLAIN:
            found = PLAIN[word]
        elif word[:1].isupper():
            found = Type("object", lambda value: self._problems_of(word, value, place))
        else:
            raise ConfigError(f"{self.path}: `{place}`: `{word}` is not a type")
        for suffix in re.findall(r"\[\]|\?", suffixes):
            found = _list(found) if suffix == "[]" else _optional(found)
        return found

    def _problems_of(self, model: str, value: Any, place: str) -> list[Problem]:
        if model not in self.models:
            raise ConfigError(f"{self.path}: `{place}` names the model `{model}`, which is not in [models]")
        return self.models[model].problems(value)


def describe(problems: list[Problem]) -> str:
    """Describes problems as the host does."""
    return "; ".join(f"at {place}: {problem}" if place else problem for place, problem in problems)


def json_type(value: Any) -> str:
    """Returns the name of a value's JSON type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _is_type(value: Any) -> bool:
    """A field can have the name of an option, because its value is a type."""
    return isinstance(value, str) and (value.rstrip("?[] ") in PLAIN or value.startswith("enum("))


def _below(segment: str | int, problems: list[Problem]) -> list[Problem]:
    escaped = str(segment).replace("~", "~0").replace("/", "~1")
    return [(f"/{escaped}{place}", problem) for place, problem in problems]


def _scalar(name: str, accepts: Callable[[Any], bool]) -> Type:
    return Type(name, lambda value: [] if accepts(value) else [("", f"expected {name}, got {json_type(value)}")])


def _list(item: Type) -> Type:
    def problems(value: Any) -> list[Problem]:
        if not isinstance(value, list):
            return [("", f"expected array, got {json_type(value)}")]
        return [problem for index, member in enumerate(value) for problem in _below(index, item.problems(member))]

    return Type("array", problems)


def _optional(inner: Type) -> Type:
    return Type(inner.name, lambda value: [] if value is None else inner.problems(value), optional=True)


def _enum(text: str) -> Type:
    values = [
        quoted.replace("''", "'") if quoted else bare.strip()
        for quoted, bare in re.findall(r"\s*(?:'((?:[^']|'')*)'|([^,']+))\s*(?:,|$)", text[text.index("(") + 1 : -1])
    ]
    expected = f"one of {', '.join(values)}"

    def problems(value: Any) -> list[Problem]:
        if value in values and isinstance(value, str):
            return []
        return [
            (
                "",
                f"expected {expected}, got {'another string' if isinstance(value, str) else json_type(value)}",
            )
        ]

    return Type(expected, problems)


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value) is not None and len(value) == 10
    except ValueError:
        return False


def _is_datetime(value: Any) -> bool:
    # `fromisoformat` accepts more than RFC 3339.
    pattern = r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)"
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        return False
    try:
        datetime.fromisoformat(f"{value[:10]} {value[11:17]}{min(int(value[17:19]), 59):02}")
    except ValueError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


PLAIN = {
    "string": _scalar("string", lambda value: isinstance(value, str)),
    "boolean": _scalar("boolean", lambda value: isinstance(value, bool)),
    "number": _scalar("number", _is_number),
    "integer": _scalar("integer", lambda value: _is_number(value) and float(value).is_integer()),
    "date": _scalar("date", _is_date),
    "datetime": _scalar("datetime", _is_datetime),
    "json": Type("any value", lambda value: []),
}
