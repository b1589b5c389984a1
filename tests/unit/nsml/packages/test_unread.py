"""Files that list packages and are not read."""

from __future__ import annotations

import pytest

from nsml.packages.unread import lock_of, unread_files

SCRIPT = """#!/usr/bin/env -S uv run
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "requests<3",
#
#   "rich",
# ]
# ///
import requests
"""
CONDA = """name: x
channels:
  - conda-forge
dependencies:
  - python=3.10   # ours
  - numpy=1.26=py310
  - conda-forge::scipy>=1
  - pytorch
  - pip
  - pip:
    - einops==0.7
prefix: /opt/x
"""


@pytest.mark.parametrize(
    ("file", "content", "lines"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["six>=1", "attrs"]', ["six>=1", "attrs"]),
        ("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.10"\nsix = "*"', ["six"]),
        ("pyproject.toml", "[tool.ruff]\nline-length = 100", None),
        ("pyproject.toml", "[project", None),
        ("pyproject.toml", "project = 5", None),
        ("pyproject.toml", "[project]\ndependencies = 5", None),
        ("Pipfile", '[packages]\nsix = "*"\n[dev-packages]\npytest = "*"', ["six"]),
        (
            "setup.cfg",
            "[options]\ninstall_requires =\n  six\n  attrs>=1\nx = 1",
            ["six", "attrs>=1"],
        ),
        ("environment.yml", CONDA, ["numpy", "scipy>=1", "torch", "einops==0.7"]),
        (
            "environment.yaml",
            CONDA.replace("\n", "\r\n"),
            ["numpy", "scipy>=1", "torch", "einops==0.7"],
        ),
        ("environment.yml", "dependencies: [six", None),
    ],
)
def test_what_a_file_lists(file: str, content: str, lines: list[str] | None) -> None:
    found = unread_files({file: content}.get, [])
    assert [(one.file, [*one.lines]) for one in found] == ([(file, lines)] if lines else [])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_block_of_a_script(end: str) -> None:
    (found,) = unread_files({"main.py": SCRIPT.replace("\n", end)}.get, ["main.py", "other.py"])
    assert found == ("the script block of main.py", ["requests<3", "rich"])
    assert unread_files({"main.py": "# /// script\n# x\n"}.get, ["main.py"]) == []


def test_a_lock_is_named() -> None:
    assert lock_of({"uv.lock": ""}.get) == "uv.lock"
    assert lock_of({}.get) == ""
