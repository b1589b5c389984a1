"""Environment variables as users write them: files, words of a command line, names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.spec.variables import (
    MOST_BYTES,
    FileRefused,
    is_reserved,
    parse_file,
    with_values,
    without_values,
)

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not is_reserved(name)
)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("A=", ""),
        ("A=b=c", "b=c"),
        ("  A = b  ", "b"),
        ("export A=b", "b"),
        ("export\tA=b", "b"),
        ("A=b # note", "b"),
        ("A=b#c", "b#c"),
        ("A=# note", ""),
        ("A='b # c'", "b # c"),
        ("A='b\\n'  # note", "b\\n"),
        ('A="b\\n\\"c\\" \\\\ \\$D \\q"', 'b\n"c" \\ $D \\q'),
        ("A=$HOME/x", "$HOME/x"),
        ("A=\N{SNOWMAN}", "\N{SNOWMAN}"),
        ("A=b\r", "b"),
    ],
)
def test_a_line(line, value):
    assert parse_file(line.encode()) == {"A": value}


def test_comments_empty_lines_a_mark_and_the_last_of_one_name():
    text = "\ufeff# note\n\n  # another\nA=1\nB=2\r\nA=3\n"
    assert parse_file(text.encode()) == {"A": "3", "B": "2"}


@pytest.mark.parametrize(
    ("content", "line", "told"),
    [
        (b"A=1\nB\n", 2, "no ="),
        (b"A=1\n\nexport 1=x", 3, "not the name"),
        (b"A='\ntopsecret==\n'", 1, "not closed"),
        (b"top/secret==", 1, "not the name"),
        (b"1A=x", 1, "not the name"),
        (b"A-B=x", 1, "not the name"),
        (b"A=1\nB=2\nC=\xff", 3, "UTF-8"),
        (b"\xff\xfeA\0=\0x", 1, "UTF-8"),
        (b"NSML_X=1", 1, "set by the platform"),
        (b"\nCUDA_VISIBLE_DEVICES=0", 2, "set by the platform"),
        (b"A='topsecret", 1, "not closed"),
        (b'A="topsecret\\"', 1, "not closed"),
        (b"A='topsecret'x", 1, "behind the closing quote"),
        (b"A=topsecret\0", 1, "NUL"),
        (b"A=" + b"x" * MOST_BYTES, 0, "32 KiB"),
    ],
)
def test_what_is_refused_says_where_and_never_the_value(content, line, told):
    with pytest.raises(FileRefused) as refused:
        parse_file(content)
    assert refused.value.line == line
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_written_in_double_quotes_is_read_back(variables):
    def quoted(value):
        for letter, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
            value = value.replace(letter, escaped)
        return f'"{value}"'

    text = "".join(f"{name}={quoted(value)}\n" for name, value in variables.items())
    assert parse_file(text.encode()) == variables


@given(st.binary(max_size=60))
def test_any_bytes_are_taken_or_refused(content):
    try:
        parse_file(content)
    except FileRefused as refused:
        assert refused.line >= 0  # noqa: PT017 - anything else that is raised fails the test


def test_the_words_of_a_command_line():
    words = ["nsml", "run", "--env", "A=1", "-g", "0", "--env=B=2=3", "--env", "A=4", "--env", "C"]
    words += ["--env-file", "f=g", "--", "--env", "D=5"]
    kept = ["nsml", "run", "--env", "A", "-g", "0", "--env=B", "--env", "C"]
    kept += ["--env-file", "f=g", "--", "--env", "D=5"]
    assert without_values(words) == kept
    assert without_values(kept) == kept
    again = with_values(kept, {"A": "4", "B": "2=3", "D": "9"})
    assert again[2:8] == ["--env", "A=4", "-g", "0", "--env=B=2=3", "--env"]
    assert again[8:] == kept[8:]
    assert without_values(["--env"]) == ["--env"]


PIECES = st.sampled_from(
    [["--env", "A=s3cret"], ["--env=B=s3cret"], ["--env", "C"], ["-g", "1"], ["x.py"]]
)


@given(st.lists(PIECES))
def test_no_value_is_left(pieces):
    words = [word for piece in pieces for word in piece]
    kept = without_values(words)
    assert "s3cret" not in " ".join(kept)
    assert without_values(kept) == kept
    assert without_values(with_values(kept, {"A": "1", "B": "--env", "C": ""})) == kept


def test_a_name_that_is_repeated_makes_nothing_large():
    shown = with_values(["--env", "A"] * 4_000, {"A": "x" * 1_000})
    assert sum(map(len, shown)) < 1_100
