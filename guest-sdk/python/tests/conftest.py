"""A fake host for each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline_sdk import functions
from syncline_sdk.testing import Host

CONFIG = Path(__file__).parent / "syncline.toml"


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(CONFIG) as host:
        yield host


@pytest.fixture(autouse=True)
def own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test declares its own functions."""
    monkeypatch.setattr(functions, "_functions", {})
