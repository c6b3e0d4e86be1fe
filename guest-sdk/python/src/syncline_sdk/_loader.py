"""Imports the project's modules while a component is built, so that tracebacks name files as the project does."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module from a folder of the build, under its path in the project."""

    def __init__(self, name: str, path: str, folder: str) -> None:
        super().__init__(name, path)
        self._folder = folder

    def get_data(self, path: str) -> bytes:
        with open(f"{self._folder}/{path}", "rb") as file:
            return file.read()

    def get_code(self, fullname: str) -> CodeType:
        # Does not look for compiled files, whose content depends on the time.
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


class Finder:
    """Finds the project's modules, which `files` maps to paths in the project."""

    def __init__(self, files: dict[str, str], folder: str) -> None:
        self._files = files
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        package = [file.rpartition("/")[0]] if file.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, file, loader=Loader(fullname, file, self._folder), submodule_search_locations=package
        )


def load(files: dict[str, str], folder: str, preload: list[str], module: str) -> dict[str, str]:
    """Imports `module`, and afterwards what functions import when they run. Returns the text of each project file."""
    sys.meta_path.insert(0, Finder(files, folder))
    importlib.import_module(module)
    for name in preload:
        try:
            importlib.import_module(name)
        except ImportError:
            # The project may be able to do without it. Otherwise its own import fails with a message.
            continue
    sources = {}
    for path in files.values():
        with open(f"{folder}/{path}", encoding="utf-8") as file:
            sources[path] = file.read()
    return sources
