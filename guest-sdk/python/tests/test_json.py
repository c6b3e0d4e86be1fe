from __future__ import annotations

from typing import Any

import pytest

from syncline_sdk import _json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345678901234567890123, "12345678901234567890123"),
        (0.09815842978200795, "0.09815842978200795"),
        ("Köln\u2028\0", '"Köln\u2028\\u0000"'),
        ("\ud800", '"\\ud800"'),
        ({"a": [None, True, {}]}, '{"a":[null,true,{}]}'),
    ],
)
def test_values_survive_unchanged(value: Any, text: str) -> None:
    assert _json.dumps(value) == text
    assert _json.loads(text) == value
    if "\ud800" not in str(value):
        assert _json.loads(b"\xef\xbb\xbf" + text.encode()) == value


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", "{", "", "[1,]", "{'a': 1}", b"\xff", b'"\xed\xa0\x80"'])
def test_malformed_texts_are_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        _json.loads(text)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), {1, 2}, b"bytes", object()])
def test_values_that_are_not_json_are_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        _json.dumps([value])
