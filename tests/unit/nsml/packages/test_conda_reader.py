"""Environment files of conda: what is listed, and what of YAML and of conda is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.packages import conda_reader
from nsml.packages.conda_reader import is_of_anaconda, read
from nsml.packages.requirements import RequirementsRefused, read_requirements

FILE = """\
---
name: train   # ours
channels:
  - conda-forge
  - https://conda.anaconda.org/pytorch/
  - nodefaults
dependencies:
- python=3.11
- "numpy>=1.20,<2"
- conda-forge::scipy 1.11.*
- pytorch
- pip
- pip:
    - einops==0.7 ; python_version < "3.12"
    - --extra-index-url https://index.example/simple
- r-base
prefix: /home/kim/envs/train
variables:
  LD_PRELOAD: /tmp/evil.so
"""


def test_what_a_file_lists(tmp_path: Path) -> None:
    found = read(FILE)
    assert found.refused == ""
    assert found.channels == ("conda-forge", "pytorch")
    assert found.specs == (
        *("python=3.11", "numpy>=1.20,<2", "conda-forge::scipy 1.11.*"),
        *("pytorch", "pip", "r-base"),
    )
    assert found.pip == (
        'einops==0.7 ; python_version < "3.12"',
        "--extra-index-url https://index.example/simple",
    )
    assert [*found.notes] == [
        "the variables of the environment file are not set: nsml run --env NAME=VALUE sets them"
    ]
    path = tmp_path / "environment.yml"
    path.write_text(FILE)
    run = [sys.executable, "-I", conda_reader.__file__, str(path)]
    said = subprocess.run(run, capture_output=True, check=True).stdout
    assert json.loads(said) == json.loads(json.dumps(found)), "as a program in a sandbox, too"


def test_lists_on_one_line_and_the_ends_of_lines_of_windows() -> None:
    found = read("channels: [a, 'b']\r\ndependencies: [python, numpy=1.26]\r\n")
    assert (found.channels, found.specs) == (("a", "b"), ("python", "numpy=1.26"))
    assert read("dependencies:\n  - numpy\n").channels == ("conda-forge",)
    assert read("") == read("name: x\n") == conda_reader.CondaFile()


@pytest.mark.parametrize(
    "name",
    [
        *("defaults", "anaconda", "main", "r", "pkgs/main", "pkgs/r", "pkgs/free"),
        *("https://repo.anaconda.com/pkgs/main/", "https://repo.continuum.io/pkgs/free"),
        *("https://conda.anaconda.org/anaconda", "'defaults'"),
    ],
)
def test_channels_of_anaconda_are_noted(name: str) -> None:
    found = read(f"channels:\n- {name}\n- conda-forge\n- nodefaults\ndependencies:\n- numpy\n")
    channel, other = found.channels
    assert (found.refused, other, is_of_anaconda(channel)) == ("", "conda-forge", True)
    note = f"packages of channel {channel} are taken from conda-forge, unless the node has that channel"
    assert found.notes == (note,)
    spec = name.strip("'/")
    found = read(f"channels: [nodefaults]\ndependencies: [{spec}::numpy, {spec}::scipy]\n")
    assert (found.channels, len(found.notes)) == (("conda-forge",), 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dependencies:\n- &a numpy\n- *a", "line 2: '&a numpy' is not read"),
        ("dependencies: &a [x]", "line 1: dependencies is a list"),
        ("dependencies:\n- !!python/object:os.system x", "is not read"),
        ("dependencies:\n- {numpy: 1}", "is not read"),
        ("dependencies:\n- numpy: 1", "is not read"),
        ("dependencies:\n- sel(linux): numpy", "is not read"),
        ("dependencies:\n- |\n  numpy", "is not read"),
        ("dependencies:\n- numpy\n  -e .", "line 3: '-e .' is no item"),
        ("dependencies:\n- numpy\n  - evil", "line 3: it is indented otherwise"),
        ("dependencies:\n-\tnumpy", "line 2: it has a tab"),
        ("dependencies:\n- nu\x00mpy", "line 2: it has a tab or another character"),
        ("dependencies:\n- a\ndependencies:\n- b", "line 3: dependencies is there twice"),
        ("- numpy", "belongs to nothing"),
        ("numpy", "is no NAME: VALUE"),
        ("x" * 5_000, "line 1: it has over 2,000 characters"),
        ("dependencies:\n- -e .", "is not installed"),
        ("dependencies:\n- ./local.conda", "is not installed"),
        ("dependencies:\n- /opt/x.tar.bz2", "is not installed"),
        ("dependencies:\n- https://x.example/linux-64/a-1-0.conda", "is not installed"),
        ("dependencies:\n- numpy --channel http://evil.example", "is not installed"),
        ("dependencies:\n- '@EXPLICIT'", "is not installed"),
        ("dependencies:\n- numpy[url=file:///etc/passwd]", "is not installed"),
        ("dependencies:\n- file:///srv::numpy", "channel 'file:///srv' is neither"),
        ("channels:\n- file:///srv\ndependencies: [a]", "channel 'file:///srv' is neither"),
        ("channels:\n- http://x.example/c\ndependencies: [a]", "is neither a name"),
        ("channels:\n- https://kim:pw@x.example/c\ndependencies: [a]", "is neither a name"),
        ("channels:\n- ../c\ndependencies: [a]", "is neither a name"),
        ("channels:\n- a/../b\ndependencies: [a]", "is neither a name"),
        ("channels:\n- ${HOME}\ndependencies: [a]", "is neither a name"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    found = read(text)
    assert why in found.refused
    assert found == conda_reader.CondaFile(refused=found.refused)


@given(st.text(alphabet="ab-:&*[]{}'\"\\#\t \n|>!%@=./$", max_size=200))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    found = read(f"channels:\n{text}\ndependencies:\n{text}")
    for spec in found.specs:
        assert conda_reader.name_of_spec(spec)
        assert " -" not in spec
        assert not spec.startswith(("-", "@", "#"))


@pytest.mark.parametrize("name", ["environment.yml", "environment.yaml"])
def test_it_counts_where_nothing_else_lists_packages(name: str) -> None:
    found = read_requirements({name: FILE}.get)
    assert found.conda is not None
    assert (found.source, found.conda.channels) == (name, ("conda-forge", "pytorch"))
    assert {"numpy", "scipy", "torch", "einops"} <= found.names
    assert not {"python", "pytorch"} & found.names
    assert not found.are_pinned
    for other, text in {
        "requirements.txt": "six\n",
        "requirements-gpu.txt": "six\n",
        "pyproject.toml": '[project]\nname = "x"\ndependencies = ["six"]\n',
    }.items():
        files = {name: FILE, other: text}
        assert read_requirements(files.get, files=files).conda is None


def test_in_containers_it_is_left_out_in_words() -> None:
    more = {"nsml_package.txt": "libgl1\n"}
    named = {"requirements.txt": "#nsml: pytorch/pytorch\n"}
    for text, words in (
        (FILE, "environment.yml is not built: containers have"),
        ("dependencies:\n- {numpy: 1}", "the packages of environment.yml cannot be read: line 2"),
        (FILE.replace("einops==0.7", "-e ."), "'-e . ; python"),
    ):
        for files, has_image in ((more, True), (more | named, False)):
            left = read_requirements({"environment.yml": text, **files}.get, has_image=has_image)
            assert (left.conda, [*left.lines], left.source) == (None, [], "")
            assert [*left.packages] == ["libgl1"]
            assert words in left.notes[-1]
    pip = {"environment.yml": "dependencies:\n- pip:\n  - six\n"}
    assert [*read_requirements(pip.get, has_image=True).lines] == ["six"]
    listed = {"environment.yml": FILE, "requirements.txt": "six\n"}
    assert not read_requirements(listed.get, has_image=True).notes


def test_with_packages_of_pip_alone_no_conda_is_needed() -> None:
    found = read_requirements({"environment.yml": "dependencies:\n- pip:\n  - six\n"}.get)
    assert (found.conda, [*found.lines]) == (None, ["six"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-r requirements.txt", "options are those"),
        ("-e .", "not folders"),
        ("./wheels/a.whl", "it is a file or folder"),
        ("git+https://x.example/a", "nodes fetch no repositories"),
        ("a @ https://x.example/a.tar.gz", "only wheels"),
        ("${TOKEN}", "names a variable"),
    ],
)
def test_packages_of_pip_are_held_to_the_rules_of_requirements(line: str, why: str) -> None:
    text = f"dependencies:\n- python\n- pip:\n  - {line}\n"
    with pytest.raises(RequirementsRefused, match=why):
        read_requirements({"environment.yml": text}.get, may_build=True)
