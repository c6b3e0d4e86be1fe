"""The Python code of the documentation."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import syncline_sdk
from syncline_sdk.testing import Host

REPOSITORY = Path(__file__).parents[3]
PAGES = [
    "docs/how-to/write-functions-in-python.md",
    "docs/reference/python-sdk.md",
    "examples/hubspot/README.md",
    "guest-sdk/python/README.md",
]


def blocks() -> list[Any]:
    """The Python blocks of all pages, and the code in tables of the reference."""
    found = []
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            found.append(pytest.param(block, id=f"{Path(page).stem}-{number}"))
    return found


@pytest.mark.parametrize("block", blocks())
def test_code_uses_names_that_exist(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("syncline_sdk"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = getattr(syncline_sdk, node.value.id, None)
            assert owner is None or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("name", ["answer", "fail", "keep", "call", "cancel", "set_time", "records", "log", "progress"])
def test_the_guide_names_members_of_the_fake_host(name: str) -> None:
    assert hasattr(Host, name)
    guide = (REPOSITORY / PAGES[0]).read_text()
    assert f"`{name}" in guide or f"host.{name}" in guide


def test_the_reference_names_every_public_item() -> None:
    reference = (REPOSITORY / "docs/reference/python-sdk.md").read_text()
    names = set(syncline_sdk.__all__)
    for module in ("http", "checkpoint", "connection", "env", "log", "run"):
        source = ast.parse(Path(importlib.import_module(f"syncline_sdk.{module}").__file__ or "").read_text())
        names |= {node.name for node in source.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", reference)] == []
