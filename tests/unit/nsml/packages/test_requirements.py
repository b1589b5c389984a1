"""What requirements files say, as pip reads them, and what of it is never installed."""

from __future__ import annotations

import re

import pytest

from nsml.packages.requirements import (
    ImageRefused,
    Requirements,
    RequirementsRefused,
    canonical,
    name_of,
    read_requirements,
)


def lines(listed: str, **files: str) -> tuple[str, ...]:
    texts = {"requirements.txt": listed, **files}
    return tuple(read_requirements(texts.get, may_build=True).lines)


@pytest.mark.parametrize(
    ("listed", "read"),
    [
        ("six\r\nnumpy\r\n", ("six", "numpy")),
        ("six==1.16.0 \\\n    --hash=sha256:ab \\\n    --hash=sha256:cd\nattrs", ("six", "attrs")),
        ("six==1.16.0 \\\r\n    --hash=sha256:ab\r\nattrs\r\n", ("six", "attrs")),
        ("# uv \\\nsix", ("six",)),
        ("six # note \\\nattrs\n  # other\n", ("six",)),
        ("six \\\n# note\nattrs", ("six", "attrs")),
        ("six\\", ("six",)),
        ("torch==2.1+cu118\n--extra-index-url https://x/y", ("torch",)),
    ],
)
def test_lines_are_those_of_pip(listed: str, read: tuple[str, ...]) -> None:
    assert tuple(filter(None, map(name_of, lines(listed)))) == read


@pytest.mark.parametrize(
    "line",
    [
        *("six=1.16", "six==1==2", "six=>1", "six>=1 <2", "six==", "six 1.16", "six>1,,<2"),
        *("six = 1", "six>=", "six,attrs", "six==1.16 attrs"),
    ],
)
def test_a_version_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(RequirementsRefused, match="is not installed"):
        lines(line)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "six==1.16",
            "six",
            "six>=1,<2",
            "six >= 1 , < 2",
            "six (>=1,<2)",
            "six~=1.4",
            "six!=1.*",
        ),
        *(
            "six===1.16-x",
            "six[a,b]>=1",
            "torch==2.1+cu118",
            "six==1!2.0",
            "six>1;python_version>'3'",
        ),
        "six>=1,",
    ],
)
def test_a_version_is_read(line: str) -> None:
    assert lines(line) == (line,)


def test_files_are_included_from_the_folder_of_the_one_that_names_them() -> None:
    files = {
        "requirements/dev.txt": "-r base.txt\n-r ../more.txt\npytest",
        "requirements/base.txt": "six",
        "more.txt": "attrs",
        "base.txt": "wrong",
    }
    assert lines("-rrequirements/dev.txt", **files) == ("six", "attrs", "pytest")
    assert lines('--requirement="more.txt"', **files) == ("attrs",)
    with pytest.raises(RequirementsRefused, match="leads out of the folder"):
        lines("-r requirements/x.txt", **{"requirements/x.txt": "-r ../../y.txt"})
    with pytest.raises(RequirementsRefused, match="too deeply"):
        lines("-r requirements.txt")


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("Scikit_Learn>=1", "scikit-learn"),
        ("ruamel.yaml", "ruamel-yaml"),
        ("x[extra] ; python_version > '3'", "x"),
        ("a@https://h/b-1-py3-none-any.whl", "a"),
        ("https://h/p/b_c-1.0-py3-none-any.whl#sha256=0", "b-c"),
        ("https://h/b-1.0.tar.gz", "b"),
        ("--pre", ""),
        ("https://h/", ""),
    ],
)
def test_the_name_of_a_requirement(requirement: str, name: str) -> None:
    assert name_of(requirement) == name
    assert canonical(name) == name


def test_a_line_that_names_no_image_is_told_apart() -> None:
    with pytest.raises(ImageRefused):
        lines("#nsml: No Image\nsix")


@pytest.mark.parametrize(
    ("listed", "are_pinned"),
    [
        ("", True),
        ("six==1.16.0", True),
        ("six===1.16.0 --hash=sha256:ab", True),
        ("six (==1.16.0)\ntorch == 2.1+cu118 ; python_version > '3'", True),
        ("a @ https://h/a-1-py3-none-any.whl\n--pre", True),
        ("https://h/p/b_c-1.0-py3-none-any.whl#sha256=0", True),
        ("--extra-index-url https://x/y\nsix==1", True),
        ("six", False),
        ("six==1.*", False),
        ("six>=1.16", False),
        ("six~=1.16", False),
        ("six!=1.16", False),
        ("six>=1 ; python_version == '3.11'", False),
        ("six==1\nattrs", False),
    ],
)
def test_requirements_are_pinned_when_each_names_one_version(listed: str, are_pinned: bool) -> None:
    assert Requirements(lines=lines(listed)).are_pinned is are_pinned


def test_system_packages_are_pinned_by_version() -> None:
    assert Requirements(packages=("libgl1=1.0",)).are_pinned
    assert not Requirements(packages=("libgl1",)).are_pinned


@pytest.mark.parametrize("may_build", [True, False])
@pytest.mark.parametrize(
    "line",
    [
        "--index-url https:evil.example/simple",
        "-i file:///opt/index",
        "--find-links /opt/wheels",
        "--extra-index-url https://a/simple https://b/simple",
        "--trusted-host evil.example",
    ],
)
def test_an_index_is_named_by_a_whole_url_in_images_and_environments_alike(
    line: str, *, may_build: bool
) -> None:
    with pytest.raises(RequirementsRefused):
        read_requirements({"requirements.txt": line}.get, may_build=may_build)
    for option in ("-i", "--index-url", "--extra-index-url", "-f", "--find-links"):
        given = f"{option} https://a/simple"
        read = read_requirements({"requirements.txt": given}.get, may_build=may_build)
        assert (read.lines, read.has_own_sources) == ((given,), True)


@pytest.mark.parametrize(
    ("written", "installed"),
    [
        ("sklearn", "scikit-learn"),
        ("sklearn==0.0.post5", "scikit-learn"),
        ("SKLearn >= 1.2 ; python_version > '3'", "scikit-learn>= 1.2; python_version > '3'"),
        ("PIL==1.1.7", "pillow"),
        ("tensorflow-gpu==2.11", "tensorflow==2.11"),
        ("bs4[lxml]==0.0.1", "beautifulsoup4[lxml]"),
        ("pytorch", "torch"),
    ],
)
def test_a_retired_name_is_installed_by_the_one_that_took_its_place(
    written: str, installed: str
) -> None:
    found = read_requirements({"requirements.txt": f"numpy\n{written}\n"}.get)
    assert found.lines == ("numpy", installed)
    (note,) = found.notes
    assert note.startswith(re.split(r"\W", written.replace("-", "_"))[0].replace("_", "-"))
    assert "is installed in its place" in note


@pytest.mark.parametrize(
    "line",
    [
        *("nsml", "NSML==0.0", "nsml>=0.1 ; python_version > '3'", "nsml==0.0 --hash=sha256:ab"),
        "https://a/nsml-0.2-py3-none-any.whl",
        "nsml @ git+https://github.com/n-CLAIR/nsml-local@8927e5c",
        *(
            f"{before}git+https://github.com/n-CLAIR/nsml-local{after}"
            for before in ("", "-e ", "nsml-local @ ")
            for after in ("", ".git", ".git@master#egg=nsml", "#egg=nsml")
        ),
    ],
)
def test_the_sdk_of_the_session_is_not_installed_beside_it(line: str) -> None:
    read = read_requirements({"requirements.txt": f"six\n{line}\n"}.get)
    assert read.lines == ("six",)
    assert read.notes == ("nsml is left out: a session has that of its node",)
    alone = read_requirements({"requirements.txt": line}.get)
    assert (alone.lines, alone.source) == ((), "")


def test_what_only_begins_as_the_sdk_is_another_package() -> None:
    assert lines("nsml-tools==1.0") == ("nsml-tools==1.0",)
    with pytest.raises(RequirementsRefused, match="repositories"):
        lines("git+https://a/nsml-local-tools")


@pytest.mark.parametrize(
    "line",
    ["scikit-learn==0.0", "sklearn @ https://a/sklearn-1.0-py3-none-any.whl", "sklearn-x", "--pre"],
)
def test_what_is_no_retired_name_stays_as_it_is(line: str) -> None:
    found = read_requirements({"requirements.txt": line}.get)
    assert (found.lines, found.notes) == ((line,), ())
