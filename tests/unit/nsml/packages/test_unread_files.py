"""Files that list packages and are not read."""

from __future__ import annotations

import pytest

from nsml.packages.requirements import RequirementsRefused
from nsml.packages.unread_files import lock_of, unread_files

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


LOCK = """version = 1
[[package]]
name = "six"
version = "1"
[[package]]
name = "ours"
source = { virtual = "." }
[[package]]
name = "attrs"
source = { registry = "https://pypi.org/simple" }
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
        ("conda.yml", "dependencies: [six, 'numpy=1.26'] # x", ["six", "numpy"]),
        ("env-gpu.yaml", CONDA, ["numpy", "scipy>=1", "torch", "einops==0.7"]),
        ("environments/train.yml", "dependencies:\n- six", ["six"]),
        ("config.yml", "dependencies:\n- six", None),
        (
            "pixi.toml",
            '[dependencies]\npytorch="*"\n[pypi-dependencies]\nsix="*"',
            ["torch", "six"],
        ),
        ("pyproject.toml", '[tool.pixi.pypi-dependencies]\nsix = "*"', ["six"]),
        ("requirements/base.txt", "# ours\nsix>=1\n-r more.txt\n", ["six>=1"]),
        ("requirements-gpu.txt", "six", ["six"]),
        ("requirements.in", "six", ["six"]),
        ("requirements/dev.txt", "pytest", None),
        ("requirements-test.txt", "pytest", None),
        ("uv.lock", LOCK, ["six", "attrs"]),
        ("poetry.lock", LOCK, ["six", "attrs"]),
        ("pdm.lock", LOCK, ["six", "attrs"]),
        ("pylock.toml", LOCK.replace("[[package]]", "[[packages]]"), ["six", "attrs"]),
        ("Pipfile.lock", '{"default": {"six": {"version": "==1"}}, "develop": {"x": {}}}', ["six"]),
        ("requirements.lock", "six==1 --hash=sha256:00", ["six==1 --hash=sha256:00"]),
    ],
)
def test_what_a_file_lists(file: str, content: str, lines: list[str] | None) -> None:
    found = unread_files({file: content}.get, [], [file])
    assert [(one.file, [*one.lines]) for one in found] == ([(file, lines)] if lines else [])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_block_of_a_script(end: str) -> None:
    (found,) = unread_files({"main.py": SCRIPT.replace("\n", end)}.get, ["main.py", "other.py"])
    assert found == ("the script block of main.py", ["requests<3", "rich"], "")
    assert unread_files({"main.py": "# /// script\n# x\n"}.get, ["main.py"]) == []


def test_a_lock_is_named() -> None:
    assert lock_of({"uv.lock": ""}.get) == "uv.lock"
    assert lock_of({}.get) == ""


@pytest.mark.parametrize("other", ["requirements.txt", "setup.py"])
@pytest.mark.parametrize("file", ["uv.lock", "requirements/base.txt", "requirements-gpu.txt"])
def test_what_only_says_more_is_named_where_nothing_else_is_there(file: str, other: str) -> None:
    files = {file: LOCK if file == "uv.lock" else "six"}
    (found,) = unread_files(files.get, [], files)
    assert found.file == file
    assert found.advice
    assert unread_files({**files, other: ""}.get, [], [*files, other]) == []


def test_a_lock_is_not_named_beside_what_it_locks() -> None:
    files = {"pyproject.toml": '[project]\ndependencies = ["six"]', "uv.lock": LOCK}
    assert [one.file for one in unread_files(files.get, [], files)] == ["pyproject.toml"]


@pytest.mark.parametrize("file", ["uv.lock", "pixi.lock", "conda-lock.yml"])
def test_a_lock_that_cannot_be_read_is_named_all_the_same(file: str) -> None:
    def text(name: str) -> str | None:
        if name == file:
            raise RequirementsRefused("too long")
        return None

    (found,) = unread_files(text, [], [file])
    assert (found.file, [*found.lines]) == (file, [])
    assert lock_of(text) == file
