"""The models that `syncline generate` writes, and the validation of all kinds of types."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline_sdk import Error, Writer
from syncline_sdk._typed import Mismatch, json_name, read, write
from syncline_sdk.testing import ConfigError, Host
from syncline_sdk.testing.models import Config
from tests.generated import models

CONFIG = Path(models.__file__).with_name("syncline.toml")

PERSON = {"id": "p1", "manager": {"id": "p2", "manager": None, "reports": []}, "reports": []}
SAMPLE: dict[str, Any] = {
    "id": "s1",
    "flag": True,
    "amount": 1,
    "count": 12345678901234567890,
    "day": "2024-02-29",
    "time": "2026-03-01T09:00:00.25+01:00",
    "anything": None,
    "state": "it's done",
    "tags": ["a"],
    "maybe_text": None,
    "maybe_list": [1],
    "list_of_maybe": [1.5, None],
    "matrix": [[1], []],
    "maybe_anything": {"a": [1]},
    "maybe_state": "low",
    "owner": PERSON,
    "maybe_owner": None,
    "people": [PERSON],
    "address": {"street": "Main St", "zip": None},
    "delivery": {"street": "Side St", "place": {"lat": 1.5, "lon": -2}},
    "lines": [{"sku": "x", "quantity": 1}],
}
NAMES: dict[str, Any] = {
    "id": 1,
    "postal-code": "50667",
    "class": "a",
    "from": "b",
    "2fa": True,
    "naïve key": 1,
    "str": "c",
    "list": ["d"],
    "Person": None,
    "__private": "e",
}


@pytest.mark.parametrize(("model", "value"), [(models.Sample, SAMPLE), (models.Names, NAMES), (models.Person, PERSON)])
def test_generated_models_read_and_write_every_kind_of_type(model: type, value: dict[str, Any]) -> None:
    found = read(model, value)
    assert isinstance(found, model)
    assert write(found) == value
    assert Config.read(CONFIG).models[model.__name__].problems(write(found)) == []


def test_generated_models_have_the_fields_of_the_file() -> None:
    file = tomllib.loads(CONFIG.read_text())
    for name, table in file["models"].items():
        model = getattr(models, name)
        if dataclasses.is_dataclass(model):
            declared = [key.removesuffix("?") for key in table if key != "strict"]
            assert [json_name(field) for field in dataclasses.fields(model)] == declared


def wrong_values() -> Iterator[tuple[str, Any, str]]:
    yield "flag", 1, "at /flag: expected boolean, got integer"
    yield "amount", "1", "at /amount: expected number, got string"
    yield "amount", True, "at /amount: expected number, got boolean"
    yield "count", 1.5, "at /count: expected integer, got number"
    yield "tags", None, "at /tags: expected array, got null"
    yield "list_of_maybe", [1, "x"], "at /list_of_maybe/1: expected number, got string"
    yield "matrix", [[1], ["x"]], "at /matrix/1/0: expected integer, got string"
    yield "owner", {"id": "p"}, "at /owner/reports: is missing, expected array"
    yield "address", [], "at /address: expected object, got array"
    yield "lines", [{"sku": "x"}], "at /lines/0/quantity: is missing, expected integer"
    yield "state", "closed", "at /state: expected one of open, on hold, it's done, got another string"
    yield "state", 1, "at /state: expected one of open, on hold, it's done, got integer"
    yield "delivery", {"street": "s", "place": {"lat": 1}}, "at /delivery/place/lon: is missing, expected number"
    for day in ("2026-02-29", "20260301", "2026-3-1", ""):
        yield "day", day, "at /day: expected date, got string"
    for time in ("2026-03-01", "2026-03-01 09:00:00Z", "2026-03-01T09:00:00", "2026-03-01T24:00:00Z"):
        yield "time", time, "at /time: expected datetime, got string"


@pytest.mark.parametrize(("key", "value", "problem"), list(wrong_values()))
def test_the_fake_host_finds_values_that_do_not_match(key: str, value: Any, problem: str) -> None:
    with Host(CONFIG) as host:
        samples = Writer("Sample")
        samples.save({**SAMPLE, key: value})
        with pytest.raises(Error) as failed:
            samples.flush()
        assert failed.value.message.endswith(problem)
        assert host.records("Sample") == []


@pytest.mark.parametrize("key", ["flag", "count", "tags", "owner", "anything", "state"])
def test_a_missing_field_is_a_mismatch_of_the_generated_model(key: str) -> None:
    with pytest.raises(Mismatch, match=f"`{key}` is missing"):
        read(models.Sample, {name: value for name, value in SAMPLE.items() if name != key})


def test_a_strict_model_refuses_other_fields() -> None:
    with Host(CONFIG), pytest.raises(Error, match="at /more: is not declared, and the model is strict"):
        with Writer("Locked") as locked:
            locked.save({"id": "1", "more": 2})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = [", "not a TOML file"),
        ("[models.Aa]\nid = 'strng'", "`Aa.id`: `strng` is not a type"),
        ("[models.Aa]\nid = 7", "`Aa.id` is not a type"),
        ("[integrations.a.syncs.b]\nmodel = 'Bb'", "names the model `Bb`, which is not in"),
        ("[models.Aa]\nschema = 'missing.json'", "could not read the JSON Schema of the model `Aa`"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "syncline.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        Host(tmp_path)


def test_a_missing_file_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no syncline.toml .* pass its path as"):
        Host()
