"""Leaves the commit that a wheel or source archive is built from in nsml/COMMIT, where nsml._version reads it."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds the file; nothing where the commit is not known, and in a development install, which reads .git itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See BuildHookInterface."""
        package = Path(self.root) / "nsml"
        commit = _commit_of(package)
        if version == "editable" or not commit or (package / "COMMIT").exists():
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "COMMIT"
        file.write_text(commit + "\n", encoding="ascii")
        build_data["force_include"][str(file)] = "nsml/COMMIT"


def _commit_of(package: Path) -> str:
    spec = importlib.util.spec_from_file_location("nsml_version", package / "_version.py")
    if spec is None or spec.loader is None:
        return ""
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.commit_of(str(package)))
