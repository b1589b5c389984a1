"""Metrics out of a log: well-known lines and others, patterns, hostile input, and any cut into pieces."""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.log_metrics.patterns import MOST_PATTERNS, check_all, pattern_of
from nsml.log_metrics.recognisers import State
from nsml.log_metrics.scanner import LONGEST_LINE, LineValues, Scanner
from tests.support.printed_lines import ORDINARY, TRAINING, Printed

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALL = "".join(one.text for one in TRAINING) + ORDINARY + "\n"
_MIXED = ("auto", r"first=(\d+)", r"odd=(?i)loss\W+(?P<step>\d)?\d?(\.\d+)", r"last=(\d+)$")


def found_in(data: bytes, requests: Sequence[str] = ("auto",)) -> list[LineValues]:
    scanner = Scanner(requests)
    return [*scanner.feed(data), *scanner.end()]


@pytest.mark.parametrize("printed", TRAINING, ids=lambda one: one.program)
def test_a_line_of_a_training_program_has_its_metrics(printed: Printed) -> None:
    found = found_in(printed.text.encode())
    assert [(one.step, one.values) for one in found] == list(printed.points)


@pytest.mark.parametrize("line", ORDINARY.splitlines())
def test_an_ordinary_line_has_none(line: str) -> None:
    assert found_in(f"{line}\n".encode()) == []


@pytest.mark.parametrize("tag", ["[rank{}]: ", "[rank{0}]: [rank{0}]: ", "[1,{}]<stdout>: "])
@pytest.mark.parametrize("requests", [["auto"], [r"loss=^step \d+: loss=(\S+)"]])
def test_of_a_launchers_processes_one_has_curves(tag: str, requests: list[str]) -> None:
    lines = [
        f"{tag.format(rank)}step {step}: loss={rank}.{step}\n" for step in (1, 2) for rank in (3, 2)
    ]
    data = "".join(["step 0: loss=7.5\n", *lines]).encode()
    scanner = Scanner(requests, process=2)
    found = [*scanner.feed(data[:30]), *scanner.feed(data[30:]), *scanner.end()]
    assert [(one.step, one.values) for one in found] == [
        (0, {"loss": 7.5}),
        (1, {"loss": 2.1}),
        (2, {"loss": 2.2}),
    ]


def test_a_pattern_gives_a_number_and_a_step() -> None:
    data = b"at 7 the L is 0.5!\nat 8 the L is nan\nthe L is none\nat 9 the L is 1e-3.\n"
    found = found_in(data, [r"L=at (?P<step>\d+) .*L is (\S+)"])
    assert [(one.step, list(one.values)) for one in found] == [(7, ["L"]), (8, ["L"]), (9, ["L"])]
    values = [one.values["L"] for one in found]
    assert values[0] == 0.5
    assert math.isnan(values[1])
    assert values[2] == 0.001


def test_without_a_group_of_the_step_the_line_gives_it() -> None:
    assert found_in(b"step 12 q: 5\n", [r"q=q: (\d+)"])[0].step == 12
    assert found_in(b"q: 5\n", [r"q=q: (\d+)"])[0].step is None


def test_a_pattern_wins_over_the_recogniser_of_the_same_name() -> None:
    (one,) = found_in(b"step 1: loss=0.5 acc=0.1 (true loss 7)\n", ["auto", r"loss=true loss (\d)"])
    assert one == LineValues(0, 39, 1, {"loss": 7.0, "acc": 0.1})


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        (["loss"], "takes auto or NAME=PATTERN"),
        (["=(x)"], "takes auto or NAME=PATTERN"),
        (["loss=loss"], "no group"),
        ([r"loss=(?P<step>\d+)"], "no group"),
        (["loss=(loss"], "no valid regular expression"),
        ([r"loss=(\d)\1"], "no valid regular expression"),
        ([r"loss=(?=a)(\d)"], "no valid regular expression"),
        (["loss=(" + "a?" * 600 + ")"], "too long"),
        (["loss=((a{50}){50})"], "regular expression"),
        (["loss=((.{30}){30})"], "too large"),
        (["loss=(a\nb)"], "spans lines"),
        ([r"loss=\A(\d)"], "use ^ and $"),
        ([r"loss=(?-m)(\d)"], "use ^ and $"),
        (["a\x1bb=(x)"], "visible characters"),
        ([" a=(x)"], "visible characters"),
        (["a" * 201 + "=(x)"], "visible characters"),
        (["a=(x)", "a=(y)"], "two patterns"),
        ([f"a{n}=(x)" for n in range(MOST_PATTERNS + 1)], "is the most"),
        (["loss=(\udcff)"], "UTF-8"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(requests: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=r"(?s).") as error:
        check_all(requests)
    assert why in str(error.value)


@given(cuts=st.lists(st.integers(0, len(_ALL.encode())), max_size=40))
def test_points_do_not_depend_on_how_the_log_is_cut(cuts: list[int]) -> None:
    data = _ALL.encode()
    scanner = Scanner(_MIXED)
    found: list[LineValues] = []
    edges = [0, *sorted(cuts), len(data)]
    for low, high in itertools.pairwise(edges):
        found += scanner.feed(data[low:high])
    found += scanner.end()
    assert found == found_in(data, _MIXED)


_PIECES = st.sampled_from(
    [
        b"loss=0.5",
        b"step 3",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"first=7",
        b"Epoch 2",
        b"\x1b[1m",
        b"\x08",
        b"5",
        b"\x00",
        b"\xff",
        b"x" * (LONGEST_LINE - 3),
        b"10%|#| 1/9 [00:01<0, loss=",
        b"|",
        b": ",
    ]
)


@given(pieces=st.lists(_PIECES, max_size=30), cuts=st.lists(st.integers(0, 1 << 16), max_size=10))
def test_points_of_odd_logs_do_not_depend_on_cuts_either(
    pieces: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(pieces)
    whole = found_in(data, _MIXED)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    scanner = Scanner(_MIXED)
    found: list[LineValues] = []
    for low, high in itertools.pairwise(edges):
        found += scanner.feed(data[low:high])
    found += scanner.end()
    assert repr(found) == repr(whole)
    byte_by_byte = Scanner(_MIXED)
    if len(data) < 2_000:
        each = [one for n in range(len(data)) for one in byte_by_byte.feed(data[n : n + 1])]
        assert repr([*each, *byte_by_byte.end()]) == repr(whole)


@given(pieces=st.lists(_PIECES, max_size=30), data=st.data())
def test_a_scanner_goes_on_behind_any_point(pieces: list[bytes], data: st.DataObject) -> None:
    """As an agent does after a crash: nothing is repeated or lost."""
    text = b"".join(pieces)
    scanner = Scanner(_MIXED)
    found = [(one, State.of(scanner.state.saved())) for one in scanner.feed(text)]
    if not found:
        return
    at = data.draw(st.integers(0, len(found) - 1))
    last, state = found[at]
    while at + 1 < len(found) and found[at + 1][0].offset == last.offset:
        at += 1
    again = Scanner(_MIXED, offset=last.end, state=state)
    rest = [*again.feed(text[last.end :]), *again.end()]
    whole = [*(one for one, _ in found), *scanner.end()]
    assert repr(rest) == repr(whole[at + 1 :])


def test_of_a_long_line_only_the_beginning_is_read() -> None:
    line = b"loss=1 " + b"x" * (1 << 20) + b" acc=2\nloss=3\n"
    scanner = Scanner(["auto"])
    found: list[LineValues] = []
    for at in range(0, len(line), 4096):
        found += scanner.feed(line[at : at + 4096])
        assert len(scanner._rest) <= LONGEST_LINE
    assert [one.values for one in found] == [{"loss": 1.0}, {"loss": 3.0}]
    assert found[-1].end == len(line)


@pytest.mark.parametrize(
    "line",
    [
        b"a" * LONGEST_LINE,
        b"a=" * (LONGEST_LINE // 2),
        b"1 " * (LONGEST_LINE // 2),
        b"a 1" * (LONGEST_LINE // 3),
        b"loss " * (LONGEST_LINE // 5),
        b"train " * (LONGEST_LINE // 6) + b"loss=1",
        b"step [" * (LONGEST_LINE // 6),
        b"1/2 " * (LONGEST_LINE // 4) + b"loss=1",
        b"epoch " * (LONGEST_LINE // 6) + b"loss=1",
        b"9" * LONGEST_LINE,
        b"loss=" + b"9" * (LONGEST_LINE - 5),
        b"50%|" * (LONGEST_LINE // 4),
        b"'" * LONGEST_LINE,
        b"-" * (LONGEST_LINE - 8) + b"Epoch 1",
        b"| a b " * (LONGEST_LINE // 6) + b"loss: 1",
        b"loss=1 " * (LONGEST_LINE // 7),
        b"\x1b[" * (LONGEST_LINE // 2),
        bytes(range(256)) * (LONGEST_LINE // 256),
        b"a1" * (LONGEST_LINE // 2) + b"loss=1",
        b"x.y-" * (LONGEST_LINE // 4) + b"=1 loss=2",
    ],
    ids=range(20),
)
def test_no_line_takes_long(line: bytes) -> None:
    found_in(b"loss=1\n")
    began = time.process_time()
    found_in(line + b"\n", ["auto", r"a=(\w+)+(x+x+)+y", r"loss=loss.*(\d+)"])
    # A quadratic search of such a line takes seconds; this is a bound of its growth, not of speed.
    assert time.process_time() - began < 2.0


def test_a_bar_gives_a_point_a_percent_and_a_second_of_its_clock_and_its_last() -> None:
    bars = "".join(
        f"\r {n // 50}%|# | {n}/1000 [00:{n // 100:02}<00:09, 99it/s, loss={n}.0]"
        for n in range(1000)
    )
    found = found_in(f"{bars}\n".encode())
    assert len(found) == 21
    assert found[-1].values == {"loss": 999.0}
    assert found[-1].step == 999


def test_patterns_are_compiled_once() -> None:
    assert pattern_of(r"loss=(\d)") is pattern_of(r"loss=(\d)")
