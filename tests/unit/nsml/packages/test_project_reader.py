"""What `pyproject.toml`, `uv.lock` and blocks of scripts list, and which of a folder's files counts."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from packaging.requirements import Requirement
from uv import find_uv_bin

from nsml.packages.project_reader import Listed, read
from nsml.packages.requirements import Requirements, RequirementsRefused, read_requirements

HASH = f"sha256:{'a' * 64}"
PROJECT = """[project]
name = "demo"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["one>=1", "two[fast]; sys_platform == 'linux'"]
[dependency-groups]
dev = ["never"]
"""
LOCK = f"""version = 1
requires-python = ">=3.11"
[[package]]
name = "demo"
version = "0.1"
source = {{ virtual = "." }}
dependencies = [
    {{ name = "one" }},
    {{ name = "two", extra = ["fast"], marker = "sys_platform == 'linux'" }},
    {{ name = "fork", version = "1.0", marker = "python_version < '3.12'" }},
    {{ name = "fork", version = "2.0", marker = "python_version >= '3.12'" }},
]
[package.dev-dependencies]
dev = [{{ name = "never" }}]
[[package]]
name = "one"
version = "1.5"
source = {{ registry = "https://pypi.org/simple" }}
dependencies = [{{ name = "shared", marker = "os_name == 'nt'" }}]
wheels = [{{ url = "https://f/one.whl", hash = "{HASH}" }}]
[[package]]
name = "two"
version = "2.5"
source = {{ registry = "https://index.example/simple" }}
dependencies = [{{ name = "shared" }}, {{ name = "one" }}]
wheels = [{{ url = "https://f/two.whl", hash = "{HASH}" }}]
[package.optional-dependencies]
fast = [{{ name = "three" }}]
slow = [{{ name = "never" }}]
[[package]]
name = "three"
version = "3.5"
source = {{ registry = "https://pypi.org/simple" }}
dependencies = [{{ name = "two" }}]
sdist = {{ url = "https://f/three.tar.gz", hash = "{HASH}" }}
[[package]]
name = "shared"
version = "4"
source = {{ registry = "https://pypi.org/simple" }}
wheels = [{{ url = "https://f/shared.whl", hash = "{HASH}" }}]
[[package]]
name = "fork"
version = "1.0"
source = {{ registry = "https://pypi.org/simple" }}
wheels = [{{ url = "https://f/fork.whl", hash = "{HASH}" }}]
[[package]]
name = "fork"
version = "2.0"
source = {{ registry = "https://pypi.org/simple" }}
wheels = [{{ url = "https://f/fork.whl", hash = "{HASH}" }}]
[[package]]
name = "never"
version = "1"
source = {{ registry = "https://pypi.org/simple" }}
"""
SCRIPT = '# /// script\n# requires-python = ">=3.12"\n# dependencies = ["six"]\n# ///\n'


def installed(lines: tuple[str, ...], **environment: str) -> set[str]:
    """The packages that lines install there."""
    found = set()
    for line in lines:
        if not line.startswith("-"):
            one = Requirement(line.partition(" --hash")[0])
            if one.marker is None or one.marker.evaluate(environment):
                found.add(f"{one.name}{one.specifier}")
    return found


def test_a_lock_installs_what_the_project_needs_there_and_no_groups() -> None:
    found = read("lock", LOCK, PROJECT)
    assert (found.refused, found.python) == ("", ">=3.11")
    assert found.notes == (
        "uv.lock is older than the dependencies in pyproject.toml: uv lock renews it",
    )
    assert found.lines[0] == "--extra-index-url https://index.example/simple"
    assert all(line.endswith(f" --hash={HASH}") for line in found.lines[1:])
    linux = {"sys_platform": "linux", "os_name": "posix", "python_version": "3.11"}
    every = {"one==1.5", "two==2.5", "three==3.5", "shared==4", "fork==1.0"}
    assert installed(found.lines, **linux) == every
    windows = {"sys_platform": "win32", "os_name": "nt", "python_version": "3.13"}
    assert installed(found.lines, **windows) == {"one==1.5", "shared==4", "fork==2.0"}
    mac = {"sys_platform": "darwin", "os_name": "posix", "python_version": "3.13"}
    assert installed(found.lines, **mac) == {"one==1.5", "fork==2.0"}
    asked = read_requirements({"uv.lock": LOCK, "pyproject.toml": PROJECT}.get)
    assert (asked.source, asked.are_pinned, asked.is_of_lists) == ("uv.lock", True, False)
    assert asked.lines == found.lines


def test_many_ways_to_a_package_are_no_long_marker() -> None:
    edges = "".join(f"{{ name = 'one', marker = \"extra_{n} == '{n}'\" }}, " for n in range(50))
    text = LOCK.replace('{ name = "one" },', edges)
    [line] = [one for one in read("lock", text, "").lines if one.startswith("one==")]
    assert line == f"one==1.5 --hash={HASH}"


def test_uv_itself_says_the_same_of_a_lock_that_it_made(tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "demo"\nversion = "0.1"\nrequires-python = ">=3.11"\ndependencies = []\n'
    )
    subprocess.run(
        [find_uv_bin(), "lock", "--offline", "-q"], cwd=tmp_path, check=True, env=_environment()
    )
    lock = (tmp_path / "uv.lock").read_text()
    assert read("lock", lock, "") == Listed(python=">=3.11")


def _environment() -> dict[str, str]:
    return {**os.environ, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}


@pytest.mark.parametrize(
    ("kind", "texts", "why"),
    [
        ("project", ("[project",), "no TOML"),
        ("project", ("a = " + "[" * 50_000,), "TOML|deeply"),
        ("project", ("project = 5",), "no table"),
        ("project", ("[project]\ndependencies = [5]",), "no list of texts"),
        ("project", ("[project]\ndependencies = ['a']\nrequires-python = 3",), "no text"),
        ("lock", ("version = 9", ""), "format version 9"),
        ("lock", (LOCK.replace('{ name = "one" },', '{ name = "gone" },'), ""), "malformed"),
        ("lock", (LOCK, "[project"), "no TOML"),
        ("script", (SCRIPT + "x = 1\n" + SCRIPT,), "two blocks"),
        ("script", (SCRIPT.replace("[", "[[["),), "no TOML"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(kind, texts, why) -> None:
    found = read(kind, *texts)
    assert found.lines == ()
    assert re.search(why, found.refused), found.refused


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ('git = "https://a/b.git?rev=1"', "no repositories|not installed"),
        ('directory = "../other"', ""),
        ('url = "https://a/one-1.5.tar.gz"', "only wheels"),
        ('path = "one.whl"', "file or folder"),
        ('url = "http://a/one-1.5-py3-none-any.whl"', "https"),
    ],
)
def test_what_a_lock_has_from_elsewhere_is_refused_or_noted(source, told) -> None:
    text = LOCK.replace('registry = "https://pypi.org/simple"', source, 1)
    if not told:
        found = read_requirements({"uv.lock": text}.get)
        assert "one" not in found.names
        assert "the folder ../other" in found.notes[0]
        return
    with pytest.raises(RequirementsRefused, match=told):
        read_requirements({"uv.lock": text}.get)


def test_a_lock_whose_files_have_no_hashes_names_versions_alone() -> None:
    found = read("lock", LOCK.replace(f', hash = "{HASH}"', "", 1), "")
    assert not any("--hash" in line for line in found.lines)


def test_the_first_file_with_packages_counts() -> None:
    files = {
        "main.py": SCRIPT,
        "setup.py": "from setuptools import setup\nsetup(install_requires=['a'])\n",
        "requirements.txt": "b\n",
        "uv.lock": LOCK,
        "pyproject.toml": PROJECT,
        "requirements-gpu.txt": "c\n",
    }

    def of(*left_out: str, entry: str = "main.py") -> Requirements:
        some = {name: text for name, text in files.items() if name not in left_out}
        return read_requirements(some.get, entry=entry, files=some)

    script = of()
    assert (script.source, script.lines) == ("the script block of main.py", ("six",))
    assert script.refuses_python("3.11.9")
    assert not script.refuses_python("3.11.9", "3.12.0")
    both = of(entry="")
    assert (both.source, both.lines) == ("setup.py and requirements.txt", ("a", "b"))
    assert of("main.py", "setup.py").source == "requirements.txt"
    lists = ["main.py", "setup.py", "requirements.txt"]
    assert of(*lists).source == "uv.lock"
    found = of(*lists, "uv.lock")
    assert found.source == "pyproject.toml"
    assert found.lines == ("one>=1", "two[fast]; sys_platform == 'linux'")
    assert of(*lists, "uv.lock", "pyproject.toml").lines == ("c",)
    files["more_requirements.txt"] = "d\n"  # which of them is not known
    assert of(*lists, "uv.lock", "pyproject.toml") == Requirements()


def test_sources_of_uv_are_honoured_or_refused() -> None:
    tool = "[[tool.uv.index]]\nurl = 'https://wheels.example/cpu'\n[tool.uv.sources]\n"
    found = read("project", f"{PROJECT}{tool}one = {{ index = 'cpu' }}\n")
    assert found.lines[2:] == ("--extra-index-url https://wheels.example/cpu",)
    wheel = "https://a/one-1-py3-none-any.whl"
    found = read("project", f"{PROJECT}[tool.uv.sources]\none = {{ url = '{wheel}' }}\n")
    assert found.lines[0] == f"one @ {wheel}"
    dynamic = PROJECT.replace("dependencies = [", "dynamic = ['dependencies']\nother = [", 1)
    assert "computes" in read("project", dynamic).notes[0]


def test_hostile_names_and_lines_are_refused() -> None:
    for name in ("one; --index-url https://evil", "-e .", "one\\n--pre", "${HOME}", "a" * 3_000):
        text = PROJECT.replace("one>=1", name)
        with pytest.raises(RequirementsRefused):
            read_requirements({"pyproject.toml": text}.get)
    many = ", ".join(f"'p{number}'" for number in range(10_001))
    text = f"[project]\ndependencies = [{many}]\n"
    with pytest.raises(RequirementsRefused, match="over 10,000"):
        read_requirements({"pyproject.toml": text}.get)
