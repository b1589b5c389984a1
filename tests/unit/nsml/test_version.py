"""The version is written twice: for installers, and for programs that start fast."""

import tomllib
from importlib import metadata
from pathlib import Path

from nsml._version import VERSION

ROOT = Path(__file__).parents[3]


def test_the_constant_is_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert metadata.version("nsml") == VERSION
