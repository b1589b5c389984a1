"""Searches in logs: the lines that `re` finds line by line, however the log is cut; patterns that would hang others."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import InvalidRequest
from controlplane.history.values import LogPage
from controlplane.records.log_matching import LONGEST_LINE, Line, Matcher, Scanner, Search
from tests.support.memory import peak_bytes

PATTERNS = (
    "a",
    "^a",
    "b$",
    "^$",
    "a+b|b{2,3}",
    "[^a]",
    "a.b",
    "(?i)AB",
    "^[^b]*$",
    "",
    "$",
    "\\bb",
)


def page(offset: int, data: bytes, *, missing: int = 0, at: float = 1.0) -> LogPage:
    end = offset + len(data)
    return LogPage(
        attempt=1,
        offset=offset,
        data=data,
        missing_bytes=missing,
        next=end,
        end=end,
        times=((offset, at),),
    )


def searched(text: bytes, sizes: list[int], **search: object) -> list[Line]:
    scanner = Scanner(Matcher(Search(**search)), line=1)  # type: ignore[arg-type]
    found: list[Line] = []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        found += scanner.feed(page(at, text[at : at + size]))
        at, turn = at + size, turn + 1
        assert text[: scanner.place[0]].count(b"\n") + 1 == scanner.place[1]
    return found + scanner.end()


@given(
    text=st.text("ab\n", max_size=80),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    pattern=st.sampled_from([one for one in PATTERNS if one]),
    is_inverted=st.booleans(),
    context=st.integers(0, 3),
)
def test_what_is_found_is_what_fits_line_by_line(
    text: str, sizes: list[int], pattern: str, is_inverted: bool, context: int
) -> None:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    fits = [
        number
        for number, line in enumerate(lines)
        if (re.search(pattern, line) is None) == is_inverted
    ]
    shown = sorted(
        {n for fit in fits for n in range(fit - context, fit + context + 1) if 0 <= n < len(lines)}
    )
    found = searched(
        text.encode(), sizes, pattern=pattern, is_inverted=is_inverted, context_lines=context
    )
    assert [(line.number, line.data.decode(), line.is_context) for line in found] == [
        (n + 1, lines[n], n not in fits) for n in shown
    ]
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in shown]
    assert [line.offset for line in found] == starts


def test_texts_are_taken_as_they_are() -> None:
    text = "a.b\nA.B (1)\nÉté\n\xff[".encode() + b"\xff\xfe raw\n"
    assert [line.data for line in searched(text, [5], pattern="a.b", is_literal=True)] == [b"a.b"]
    found = searched(text, [99], pattern="A.b", is_literal=True, ignores_case=True)
    assert [line.number for line in found] == [1, 2]
    assert [line.number for line in searched(text, [99], pattern="(1", is_literal=True)] == [2]
    assert [line.number for line in searched(text, [3], pattern="éT", ignores_case=True)] == [3]
    assert [line.number for line in searched(text, [3], pattern="raw$")] == [4]


def test_times_and_losses() -> None:
    scanner = Scanner(Matcher(Search(pattern="x")), line=1)
    assert [line.received_at for line in scanner.feed(page(0, b"x1\nx", at=1.0))] == [1.0]
    found = scanner.feed(page(4, b"2\nx3\n", at=2.0))
    assert [(line.data, line.received_at) for line in found] == [(b"x2", 1.0), (b"x3", 2.0)]
    assert not scanner.feed(page(9, b"x4"))
    found = scanner.feed(page(20, b"x\n", missing=9, at=3.0))
    assert [(line.offset, line.data, line.number) for line in found] == [
        (9, b"x4", 4),
        (20, b"x", 0),
    ]


def test_a_line_of_a_gigabyte_is_searched_in_parts_of_bounded_memory() -> None:
    scanner = Scanner(Matcher(Search(pattern="n{3}")), line=1)
    found: list[Line] = []
    piece = b"-" * (256 << 10)

    def search() -> None:
        for number in range(60):
            found.extend(scanner.feed(page(number * len(piece), piece)))
        found.extend(scanner.feed(page(60 * len(piece), b"nnn\n")))

    assert peak_bytes(search) < 4 << 20
    assert [(line.offset, line.number) for line in found] == [(60 * len(piece), 1)]
    assert len(piece) >= LONGEST_LINE


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"pattern": ""}, "a piece of one line"),
        ({"pattern": "a\nb"}, "a piece of one line"),
        ({"pattern": "(a"}, "not a regular expression"),
        ({"pattern": "*"}, "not a regular expression"),
        ({"pattern": "(?=a)"}, "not a regular expression"),
        ({"pattern": r"(a)\1"}, "not a regular expression"),
        ({"pattern": r"\Aepoch"}, "say nothing of a line"),
        ({"pattern": "é" * 501}, "501 characters"),
        ({"pattern": "((a{100}){100}){100}"}, "not a regular expression"),
        ({"pattern": "(a{0,100}b?){9}" * 9}, "too large"),
        ({"pattern": "a", "context_lines": 101}, "101 lines"),
    ],
)
def test_what_is_no_pattern_is_refused(search: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        Matcher(Search(**search))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern", ["(x+x+)+y", "(x|xx)*y", "(.*)*=(.*)*!", "^(([a-z])+.)+[A-Z]$", "(x?){400}y"]
)
def test_patterns_that_never_end_elsewhere_end_here(pattern: str) -> None:
    begin = time.thread_time()
    assert not searched(b"x" * 200_000, [50_000], pattern=pattern)
    assert time.thread_time() - begin < 2


@pytest.mark.parametrize(
    ("text", "pattern", "match"),
    [
        (b"a loss\n", "loss", b"loss"),
        (b"\rloss 1\rloss 22\rloss 333\r\n", "loss \\d+", b"loss 333"),
        (b"\rloss 1\rloss nan\rloss 333\r\n", "nan", b"nan"),
        (b"x" * (LONGEST_LINE + 70) + b"needle" + b"y" * 200 + b"\n", "needle", b"needle"),
        (b"x" * (LONGEST_LINE - 3) + b"needle" + b"y" * LONGEST_LINE + b"\n", "needle", b"needle"),
    ],
)
def test_a_line_says_where_its_match_is(text: bytes, pattern: str, match: bytes) -> None:
    [line] = searched(text, [len(text)], pattern=pattern)
    assert line.data[slice(*line.match)] == match
    assert text[line.offset :].startswith(line.data)
    assert len(line.data) <= LONGEST_LINE
    context = searched(b"no\n" + text, [len(text) + 3], pattern=pattern, context_lines=1)
    assert [one.match for one in context] == [(0, 0), line.match]
    inverted = searched(b"no\n", [3], pattern=pattern, is_inverted=True)
    assert [one.match for one in inverted] == [(0, 0)]
