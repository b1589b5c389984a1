from __future__ import annotations

import os
import unicodedata
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml._path_text import bytes_of, text_of
from nsml.content.errors import PathRefused
from nsml.content.paths import (
    MAX_COMPONENT_BYTES,
    SortedPaths,
    native_parts,
    split_path,
)

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
    "a\\",
    r"a\b",
    r"a\x41",
    r"\x2e\x2e/x",
    r"a\x2fb",
    r"a\x00b",
    r"a\xE9",
    r"a\xe9\\",
    r"caf\xc3\xa9",
    "a\0b",
    "a\nb",
    "a\x1b[2J",
    "a\x7f",
    "a\x85b",
    "a\u202eb",
    "a\u2066b",
    "a\u2028b",
    "a" * (MAX_COMPONENT_BYTES + 1),
    "é" * 128,
    "/".join(["d"] * 65),
    "/".join(["d" * 200] * 21),
    r"\xe9" * (MAX_COMPONENT_BYTES + 1),
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
    "...x",
    "C:x",
    "con",
    "x/aux",
    "dot.",
    "space ",
    r"caf\xe9",
    r"a\x5cb",
    r"a\x0ab",
    r"\xe9" * MAX_COMPONENT_BYTES,
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
        ("a", "a/b"),
        ("a/b", "a"),
        ("x/a/b", "x/a"),
        ("b", "a"),
        (r"\xe9", r"\xe9/b"),
    ],
)
def test_a_path_that_is_there_twice_or_out_of_order_is_refused(first: str, second: str) -> None:
    paths = SortedPaths()
    paths.add(first)
    with pytest.raises(PathRefused):
        paths.add(second)


def test_names_that_linux_tells_apart_are_kept() -> None:
    forms = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    listed = ["a/x", "b/x", "b/c/x", "A/x", "a/y", "straße", "STRASSE", r"\xe9", *forms]
    paths = SortedPaths()
    for path in sorted(listed, key=str.encode):
        paths.add(path)


NAMES = st.binary(min_size=1, max_size=40).filter(lambda name: not {0, 47} & {*name})


@given(NAMES.filter(lambda name: name not in {b".", b".."}))
def test_each_name_of_a_system_has_one_text(name: bytes) -> None:
    text = text_of(name)
    assert split_path(text) == (text,)
    assert bytes_of(text) == name
    assert [os.fsencode(part) for part in native_parts(text)] == [name]
    assert "\n" not in text
    text.encode()


@given(st.text(alphabet="a\\x2ef09c3/.é", max_size=12))
def test_each_text_has_one_name(text: str) -> None:
    with suppress(ValueError):
        assert text_of(bytes_of(text)) == text


@given(st.text(max_size=40))
def test_what_is_accepted_stays_inside(path: str) -> None:
    try:
        parts = split_path(path)
    except PathRefused:
        return
    assert parts
    assert all(part not in {"", ".", ".."} for part in parts)
    assert not any(ord(char) < 32 for char in path)
    assert len(native_parts(path)) == len(parts)


PATHS = st.lists(st.sampled_from(["a", "b", "a-b", "a.b", "ab", "~"]), min_size=1, max_size=4)


@given(st.lists(PATHS.map("/".join), max_size=12))
def test_a_tree_has_each_path_once_as_a_file_or_as_a_folder(listed: list[str]) -> None:
    listed.sort(key=str.encode)
    folders = {path[:at] for path in listed for at in range(len(path)) if path[at] == "/"}
    paths, is_tree = SortedPaths(), True
    try:
        for path in listed:
            paths.add(path)
    except PathRefused:
        is_tree = False
    assert is_tree == (len({*listed}) == len(listed) and not folders & {*listed})
    assert not is_tree or paths.folders == len(folders)
