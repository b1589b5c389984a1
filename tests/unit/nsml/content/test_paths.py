from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.content.errors import PathRefused
from nsml.content.paths import MAX_COMPONENT_BYTES, PathSet, split_path

REFUSED = [
    "",
    "/",
    "/abs",
    "//x",
    "../x",
    "a/../b",
    "a/..",
    "..",
    ".",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "..\\x",
    "a\\b",
    "C:\\x",
    "C:x",
    "c:/x",
    "a\0b",
    "a\nb",
    "a\x1b[2J",
    "a\x7f",
    "a\x85b",
    "a\u202eb",
    "a\u2066b",
    "a\u2028b",
    "CON",
    "con",
    "con.txt",
    "x/NUL",
    "aux.tar.gz",
    "COM1",
    "lpt9.x",
    "nul ",
    "dot.",
    "space ",
    "x/....",
    "a" * (MAX_COMPONENT_BYTES + 1),
    "é" * 128,
    "/".join(["d"] * 65),
    "/".join(["d" * 200] * 21),
    "\ud800",
]
ACCEPTED = [
    "a",
    "a/b",
    ".nsmlignore",
    "-rf",
    "~root",
    "%2e%2e%2f",
    "..;",
    "#/x",
    "file:/x",
    "a b",
    "ab:c",
    "두번째/시도.py",
    "a\u2215b",
    "a" * MAX_COMPONENT_BYTES,
    "console",
    "com10",
    "...x",
]


@pytest.mark.parametrize("path", REFUSED)
def test_a_dangerous_path_is_refused(path: str) -> None:
    with pytest.raises(PathRefused):
        split_path(path)


@pytest.mark.parametrize("path", ACCEPTED)
def test_an_unusual_but_harmless_path_is_kept(path: str) -> None:
    assert "/".join(split_path(path)) == path


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a", "a"),
        ("a", "A"),
        ("Dir/x", "dir/y"),
        ("straße", "STRASSE"),
        (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
        ("a", "a/b"),
        ("a/b", "a"),
        ("x/a/b", "x/A"),
    ],
)
def test_twins_are_refused(first: str, second: str) -> None:
    paths = PathSet()
    paths.add(first)
    with pytest.raises(PathRefused):
        paths.add(second)


def test_equal_names_in_different_folders_are_no_twins() -> None:
    paths = PathSet()
    for path in ["a/x", "b/x", "b/c/x", "A2/x", "a/y"]:
        paths.add(path)


@given(st.text(max_size=40))
def test_what_is_accepted_stays_inside(path: str) -> None:
    try:
        parts = split_path(path)
    except PathRefused:
        return
    assert parts
    assert all(part not in {"", ".", ".."} for part in parts)
    assert not any(ord(char) < 32 or char == "\\" for char in path)
