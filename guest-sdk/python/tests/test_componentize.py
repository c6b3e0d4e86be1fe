"""The command that builds a component. Tests of mistakes do not build one."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

MINIMAL = """
from typing import Any
from syncline_sdk import action

@action
def echo(value: Any) -> Any:
    '''Returns its input.'''
    return value
"""
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def componentize(folder: Path, cache: Path, out: str = "build/it.wasm") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "syncline_sdk.componentize", "--out", out],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(REPOSITORY / "guest-sdk/python/src")},
        capture_output=True,
        text=True,
    )


def write(folder: Path, **files: str) -> None:
    for name, text in {"pyproject": '[project]\nname = "it"\n', **files}.items():
        path = folder / (f"{name}.toml" if name == "pyproject" else f"{name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("main", "problem"),
    [
        ("def x(:", "main.py:1: invalid syntax\n    def x(:"),
        ("import json\nimport abscent\n", "main.py:2: there is no module `abscent`; if a package contains it, add"),
        ("import syncline_sdk\n", "main.py: the module declares no functions; decorate one with `@sync`"),
        ("import syncline_sdk as s\n@s.sync\ndef a(b): ...\n", "main.py:2: `a` has the parameters `b`; functions of"),
        ("def f():\n    return 1 / 0\nf()\n", "main.py:2: ZeroDivisionError: division by zero\n    return 1 / 0"),
        ("from syncline_sdk import Writr\n", "main.py:1: ImportError: cannot import name 'Writr'"),
        ("raise SystemExit(3)\n", "main.py:1: SystemExit: 3"),
    ],
)
def test_a_mistake_is_reported_with_its_place(tmp_path: Path, cache: Path, main: str, problem: str) -> None:
    write(tmp_path, main=main)
    built = componentize(tmp_path, cache)
    assert (built.returncode, built.stdout) == (1, "")
    assert built.stderr.startswith(problem)
    assert "Traceback" not in built.stderr


def test_a_mistake_in_another_module_is_reported_there(tmp_path: Path, cache: Path) -> None:
    write(tmp_path, main="import shop.orders\n", **{"shop/orders": "\n\nx = {}['a']\n"})
    assert componentize(tmp_path, cache).stderr.startswith("shop/orders.py:3: KeyError: 'a'")


@pytest.mark.parametrize(
    ("pyproject", "problem"),
    [
        (None, "the file does not exist; create it, or run the command in another folder"),
        ("[project", "not a TOML file"),
        ('[tool.syncline]\nmodule = "nope"', "there is no module `nope` in .; create main.py, or set `module ="),
        ("[tool.syncline]\nmodule = 7", "`module` in [tool.syncline] must be the name of a module"),
    ],
)
def test_a_mistake_in_pyproject_is_reported(tmp_path: Path, cache: Path, pyproject: str | None, problem: str) -> None:
    if pyproject is not None:
        write(tmp_path, pyproject=pyproject)
    built = componentize(tmp_path, cache)
    assert built.returncode == 1
    assert built.stderr.startswith(f"{tmp_path}/pyproject.toml: {problem}")


def test_the_same_source_is_built_once(tmp_path: Path, cache: Path) -> None:
    for name in ("first", "second"):
        write(tmp_path / name, main=MINIMAL)
        built = componentize(tmp_path / name, cache)
        assert (built.returncode, built.stderr) == (0, "")
    first, second = ((tmp_path / name / "build/it.wasm").read_bytes() for name in ("first", "second"))
    assert first[:4] == b"\0asm" and first == second
    assert len(list(cache.rglob("*.wasm"))) == 1
    assert b"main.py" in first, "tracebacks name the file as the project does"
    assert str(tmp_path).encode() not in first, "a component does not tell where it was built"


def test_a_module_with_native_code_is_named(tmp_path: Path, cache: Path) -> None:
    write(tmp_path, main=f"import json\nimport mmap\n{MINIMAL}")
    built = componentize(tmp_path, cache)
    assert built.returncode == 1
    assert built.stderr.startswith("main.py:2: the module `mmap` ")


def test_the_wheel_contains_everything_that_the_command_needs(tmp_path: Path, cache: Path) -> None:
    package = REPOSITORY / "guest-sdk/python"
    run = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*run, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(package)]
    subprocess.run(wheel, check=True)
    [built] = tmp_path.glob("*.whl")
    names = {name.removeprefix("syncline_sdk/") for name in zipfile.ZipFile(built).namelist()}
    wit = {f"wit/{path.name}" for path in (REPOSITORY / "wit/0.1.1").iterdir()}
    assert wit | {"py.typed", "wasi/world.wit", "wasi/deps/http/types.wit", "testing/models.py"} <= names
    subprocess.run([*run, "install", "--no-deps", "--target", str(tmp_path / "site"), str(built)], check=True)
    write(tmp_path / "project", main=MINIMAL)
    command = [sys.executable, "-m", "syncline_sdk.componentize", "--out", "it.wasm"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "XDG_CACHE_HOME": str(cache)}
    subprocess.run(command, cwd=tmp_path / "project", env=environment, check=True)
    assert (tmp_path / "project/it.wasm").stat().st_size > 1_000_000
