from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from syncline_sdk._typed import Mismatch, read


@dataclass
class Point:
    x: int
    y: float = 0.5


@pytest.mark.parametrize(
    ("expected", "value", "result"),
    [
        (int, 5.0, 5),
        (float, 5, 5),
        (float | None, None, None),
        (int | str, "a", "a"),
        (list[Point], [{"x": 1, "z": 2}], [Point(1)]),
        (dict[str, Point], {"a": {"x": 1, "y": 2}}, {"a": Point(1, 2)}),
        (Literal["a", 1], 1, 1),
        (Any, {"a": [1]}, {"a": [1]}),
        (dict, {"a": 1}, {"a": 1}),
    ],
)
def test_a_value_is_converted(expected: Any, value: Any, result: Any) -> None:
    assert read(expected, value) == result
    assert type(read(expected, value)) is type(result)


@pytest.mark.parametrize(
    ("expected", "value", "problem"),
    [
        (int, True, "expected integer, got boolean"),
        (int, 5.5, "expected integer, got number"),
        (int, float("inf"), "expected integer, got number"),
        (float, False, "expected number, got boolean"),
        (bool, 1, "expected boolean, got integer"),
        (int | str, None, "expected integer, got null or expected string, got null"),
        (Literal["a", 1], True, "expected one of a, 1, got another boolean"),
        (list[Point], [{"x": 1}, {"x": "1"}], "at /1/x: expected integer, got string"),
        (dict[str, int], [], "expected object, got array"),
        (None, 0, "expected null, got integer"),
    ],
)
def test_a_value_of_another_type_is_refused(expected: Any, value: Any, problem: str) -> None:
    with pytest.raises(Mismatch) as failed:
        read(expected, value)
    assert str(failed.value) == problem


def test_a_type_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot convert JSON to `bytes`; use a dataclass"):
        read(bytes, "a")
