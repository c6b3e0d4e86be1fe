"""Builds a component from a Python project: `python -m syncline_sdk.componentize --out FILE.wasm`.

Run it in a folder with a `pyproject.toml`. The component contains the modules that the project imports, already
imported, and the Python interpreter.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from . import functions

WORLD = "syncline:integration/integration"
# The world of components that import `syncline_sdk.wasi_http`. componentize-py cannot join worlds with resources.
HTTP_WORLD = "syncline:python/with-wasi-http"
# Names of generated modules, which would otherwise depend on the worlds.
INTERFACES = [("syncline:integration/types@0.1.1", "integration_types"), ("wasi:http/types@0.2.0", "http_types")]
# Number of components that are kept for further builds of the same source, each of about 20 MB.
MAX_KNOWN_BUILDS = 16
# Modules of the SDK that a component does not need.
OUTSIDE_OF_COMPONENTS = {"componentize.py", "testing", "testing.py"}
NATIVE = {".so", ".pyd", ".dylib"}
# Modules that the standard library imports when it first needs them, which is too late in a component.
IMPORTED_LATE = ["_strptime"] + [
    f"encodings.{name}"
    for name in (
        "ascii",
        "base64_codec",
        "cp1252",
        "hex_codec",
        "idna",
        "iso8859_1",
        "iso8859_15",
        "latin_1",
        "punycode",
        "raw_unicode_escape",
        "unicode_escape",
        "utf_16",
        "utf_16_be",
        "utf_16_le",
        "utf_32",
        "utf_8_sig",
    )
]


class BuildError(Exception):
    """A mistake in the project: a message with the place and a next step."""


@dataclass
class Project:
    """A Python project and its entry module."""

    folder: Path
    module: str
    search_path: list[Path]

    @classmethod
    def read(cls, folder: Path) -> Project:
        """Reads `pyproject.toml`."""
        file = folder / "pyproject.toml"
        try:
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BuildError(
                f"{file}: the file does not exist; create it, or run the command in another folder"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise BuildError(f"{file}: not a TOML file: {problem}") from None
        search_path = [path for path in (folder / "src", folder) if path.is_dir()]
        module = settings.get("tool", {}).get("syncline", {}).get("module")
        if module is None:
            module = _default_module(search_path, settings.get("project", {}).get("name", ""))
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise BuildError(
                f'{file}: `module` in [tool.syncline] must be the name of a module, such as "main" (got `{module}`)'
            )
        if _find(search_path, module) is None:
            raise BuildError(
                f"{file}: there is no module `{module}` in {' or '.join(_shown(path) for path in search_path)}; "
                'create main.py, or set `module = "NAME"` in [tool.syncline] to the module with the functions'
            )
        return cls(folder, module, search_path)

    def relative(self, path: str) -> str | None:
        """Returns a file's path in the project, or `None` if it belongs to a package or to Python."""
        inside = Path(path)
        if not inside.is_relative_to(self.folder) or any(_is_package_folder(parent) for parent in inside.parents):
            return None
        return inside.relative_to(self.folder).as_posix()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m syncline_sdk.componentize", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the component to write")
    arguments = parser.parse_args()
    try:
        build(Path.cwd(), arguments.out.absolute())
    except BuildError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def build(folder: Path, out: Path) -> None:
    """Builds the component of the project in `folder`. Raises `BuildError`."""
    project = Project.read(folder.resolve())
    componentize_py = _componentize_py()
    before = set(sys.modules)
    lazy = _import_project(project)
    loaded = {name: module for name, module in sys.modules.items() if name not in before}
    wit, world = [_wit()], WORLD
    if "syncline_sdk.wasi_http" in loaded:
        wit.append(Path(__file__).parent / "wasi")
        world = HTTP_WORLD
    with tempfile.TemporaryDirectory(prefix="syncline-") as staging:
        stage = Path(staging)
        files = _stage_project(project, stage / "project")
        _stage_packages(project, loaded, stage)
        _stage_sdk(stage)
        _write_entry(stage, files, lazy, project.module)
        known = _known_build([stage, *wit])
        if not known.is_file():
            built = known.with_name(f"{known.name}.{os.getpid()}")
            try:
                componentize_py.componentize(
                    wit_path=wit,
                    worlds=[world],
                    features=[],
                    all_features=False,
                    world_module=None,
                    python_path=[str(stage)],
                    module_worlds=[],
                    app_name="syncline_entry",
                    output_path=built,
                    stub_wasi=False,
                    import_interface_names=INTERFACES,
                    export_interface_names=[],
                    full_names=False,
                    intersect_world=None,
                )
            except AssertionError as problem:
                raise _explained(str(problem)) from None
            built.replace(known)
    os.utime(known)
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(known, out)
    _forget_old_builds(known.parent)


def _known_build(folders: list[Path]) -> Path:
    """Returns the file of the component that was built from the same content.

    Python orders sets by a random seed while it starts, and the component contains the result. So two builds of the
    same source differ, and the host would have to compile the component again.
    """
    digest = hashlib.sha256(version("componentize-py").encode())
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "syncline" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    return cache / f"{digest.hexdigest()}.wasm"


def _forget_old_builds(cache: Path) -> None:
    """Keeps the components that were used last."""
    known = sorted(cache.glob("*.wasm*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in known[MAX_KNOWN_BUILDS:]:
        old.unlink(missing_ok=True)


def _componentize_py() -> ModuleType:
    try:
        return importlib.import_module("componentize_py")
    except ModuleNotFoundError:
        raise BuildError(
            f"componentize-py is not installed for {sys.executable}; run `pip install 'syncline-sdk[build]'` "
            "in the project's virtual environment"
        ) from None


def _wit() -> Path:
    """The WIT files are in the installed package, or in the repository."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "wit", here.parents[3] / "wit" / "0.1.1"):
        if (candidate / "world.wit").is_file():
            return candidate
    raise BuildError(f"the WIT files of syncline-sdk are missing in {here}; install the package again")


def _import_project(project: Project) -> list[str]:
    """Imports the project here, because mistakes are found in milliseconds and with the paths of the project.

    Returns the names of the modules that its functions import when they run.
    """
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(path) for path in project.search_path]
    try:
        importlib.import_module(project.module)
    except SyntaxError as mistake:
        raise BuildError(_syntax_error(mistake, project)) from None
    except BaseException as problem:
        raise BuildError(_import_error(problem, project)) from None
    if not functions.functions():
        raise BuildError(
            f"{_shown_file(project, project.module)}: the module declares no functions; "
            "decorate one with `@sync`, `@action`, `@webhook` or `@lifecycle`, or import the module that does"
        )
    lazy = set()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and project.relative(path) and path.endswith(".py"):
            lazy |= set(_imports(Path(path), module.__package__ or ""))
    for name in sorted(lazy):
        try:
            importlib.import_module(name)
        except ImportError:
            lazy.discard(name)
    return sorted(lazy)


def _imports(path: Path, package: str) -> Iterator[str]:
    """Returns the modules that a file imports anywhere except for type checkers."""
    pending: list[ast.AST] = [ast.parse(path.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            yield importlib.util.resolve_name(name, package) if node.level else name
        pending.extend(ast.iter_child_nodes(node))


def _stage_project(project: Project, target: Path) -> dict[str, str]:
    """Copies the project's modules that were imported. Returns their paths by name."""
    files = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        relative = project.relative(path) if path else None
        if path and relative and path.endswith(".py") and name != "__main__":
            files[name] = relative
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)
    return files


def _stage_packages(project: Project, loaded: dict[str, ModuleType], stage: Path) -> None:
    """Copies the installed packages of which the project imported a module."""
    for name in sorted({name.partition(".")[0] for name in loaded} - {"syncline_sdk"}):
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        # A namespace package has folders, but no file.
        folders = [Path(path).parent] if path and Path(path).name == "__init__.py" else []
        if path is None:
            folders = [Path(folder) for folder in getattr(module, "__path__", [])]
        for folder in folders:
            if _is_installed(folder) and not project.relative(str(folder)):
                shutil.copytree(folder, stage / name, ignore=_not_python, dirs_exist_ok=True)
        if path and not folders and path.endswith(".py") and _is_installed(Path(path)) and not project.relative(path):
            shutil.copyfile(path, stage / Path(path).name)


def _not_python(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name in ("__pycache__", "tests") or Path(name).suffix in {*NATIVE, ".pyc"}]


def _stage_sdk(stage: Path) -> None:
    shutil.copytree(
        Path(__file__).parent,
        stage / "syncline_sdk",
        ignore=lambda folder, names: [n for n in names if n in OUTSIDE_OF_COMPONENTS | {"__pycache__", "wasi", "wit"}],
    )


def _write_entry(stage: Path, files: dict[str, str], lazy: list[str], module: str) -> None:
    """Writes the module that componentize-py imports, and whose class `Functions` it exports."""
    (stage / "syncline_entry.py").write_text(
        "from syncline_sdk._component import Functions, start\n"
        "from syncline_sdk._loader import load\n"
        f"start(load({files!r}, '/0/project', {IMPORTED_LATE + lazy!r}, {module!r}))\n",
        encoding="utf-8",
    )


def _explained(output: str) -> BuildError:
    """Explains why the project cannot be imported in a component, although it can be imported here."""
    missing = re.search(r"ModuleNotFoundError: No module named '([^']+)'", output)
    place = _last_place(output)
    if missing:
        name = missing[1]
        files = [
            Path(path)
            for loaded_name, module in sys.modules.items()
            if f"{loaded_name}.".startswith(f"{name}.") and (path := getattr(module, "__file__", None))
        ]
        native = next((file.name for file in files if file.suffix in NATIVE), None)
        if native:
            return BuildError(
                f"{place}: the module `{name}` contains native code ({native}), which a component cannot run; "
                "use a package that is written in Python only"
            )
        return BuildError(f"{place}: the module `{name}` does not exist in a component; do without it")
    return BuildError(f"{place}: could not import the project in a component:\n{output.strip()}")


def _last_place(output: str) -> str:
    places = re.findall(r'File "(?!/|<)([^"]+)", line (\d+)', output)
    return ":".join(places[-1]) if places else "the project"


def _syntax_error(mistake: SyntaxError, project: Project) -> str:
    path = project.relative(mistake.filename or "") or mistake.filename
    line = (mistake.text or "").rstrip()
    return f"{path}:{mistake.lineno}: {mistake.msg}" + (f"\n    {line.strip()}" if line else "")


def _import_error(problem: BaseException, project: Project) -> str:
    """Names the last line of the project that took part."""
    own = [
        (relative, frame)
        for frame in traceback.extract_tb(problem.__traceback__)
        if (relative := project.relative(frame.filename))
    ]
    if isinstance(problem, functions.DeclarationError):
        path, _, line = problem.place.rpartition(":")
        return f"{project.relative(path) or path}:{line}:{str(problem).removeprefix(problem.place + ':')}"
    place = f"{own[-1][0]}:{own[-1][1].lineno}" if own else project.module
    if isinstance(problem, ModuleNotFoundError) and problem.name:
        package = problem.name.partition(".")[0]
        return (
            f"{place}: there is no module `{problem.name}`; if a package contains it, add the package to "
            f"`dependencies` in pyproject.toml, and run `{_shown(Path(sys.executable))} -m pip install {package}`"
        )
    details = "".join(traceback.format_exception_only(problem)).strip()
    source = f"\n    {own[-1][1].line}" if own and own[-1][1].line else ""
    return f"{place}: {details}{source}"


def _default_module(search_path: list[Path], name: str) -> str:
    package = re.sub(r"[-.]+", "_", name)
    candidates = ["main", package] if package else ["main"]
    for candidate in candidates:
        if _find(search_path, candidate):
            return candidate
    return "main"


def _find(search_path: list[Path], module: str) -> Path | None:
    relative = Path(*module.split("."))
    for folder in search_path:
        for candidate in (folder / relative.with_suffix(".py"), folder / relative / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _shown_file(project: Project, module: str) -> str:
    found = _find(project.search_path, module)
    return found.relative_to(project.folder).as_posix() if found else module


def _shown(path: Path) -> str:
    here = Path.cwd()
    return (path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)) or "."


def _is_package_folder(folder: Path) -> bool:
    return folder.name in ("site-packages", "dist-packages") or (folder / "pyvenv.cfg").is_file()


def _is_installed(path: Path) -> bool:
    """Whether a file belongs to a package, and not to Python's standard library."""
    if any(parent.name in ("site-packages", "dist-packages") for parent in path.parents):
        return True
    standard = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")}
    return not any(path.resolve().is_relative_to(folder) for folder in standard)


if __name__ == "__main__":
    # Does not wait for componentize-py's threads.
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
