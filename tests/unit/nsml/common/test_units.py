from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.units import (
    ago,
    counted,
    duration_text,
    exact_size_text,
    meant_duration,
    memory_text,
    moment,
    number_text,
    number_within,
    parse_duration,
    parse_size,
    size_text,
    thousandths,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "just now"),
        (0, "just now"),
        (40, "40 seconds ago"),
        (60, "a minute ago"),
        (150, "2 minutes ago"),
        (3600, "an hour ago"),
        (7300, "2 hours ago"),
        (86400, "a day ago"),
        (3 * 86400, "3 days ago"),
        (40 * 86400, "a month ago"),
        (800 * 86400, "2 years ago"),
    ],
)
def test_ago(seconds, words):
    assert ago(seconds) == words


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("24G", 24 * 10**9),
        ("24g", 24 * 10**9),
        ("24GB", 24 * 10**9),
        ("24Gi", 24 << 30),
        ("24000000000", 24 * 10**9),
        ("1.5k", 1500),
        ("0", 0),
    ],
)
def test_sizes(text, count):
    assert parse_size(text) == count


@given(st.integers(0, 1 << 60))
def test_an_exact_size_is_read_as_the_same_number(count):
    assert parse_size(exact_size_text(count)) == count


def test_counts_agree_with_their_nouns():
    said = [counted(n, "file") for n in (0, 1, 2, 1204)]
    assert said == ["0 files", "1 file", "2 files", "1,204 files"]
    assert [counted(n, "retry", "retries") for n in (1, 2)] == ["1 retry", "2 retries"]


def test_exact_sizes():
    sizes = [0, 999, 1000, 1_500_000, 12 * 10**9, 1 << 31, 3 * 10**15, 96 << 30, 1025]
    said = [exact_size_text(size) for size in sizes]
    assert said == ["0", "999", "1K", "1.5M", "12G", "2Gi", "3000T", "96Gi", "1.025K"]


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1 2", "9" * 400, "1" * 5000])
def test_no_sizes(text):
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("1h30m", 5400), ("2d", 172800), ("500ms", 0.5)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1x", "1h foo", "-5s"])
def test_no_durations(text):
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.integers(0, 10**7))
def test_durations_written_are_read_again(seconds):
    """Two units at most are shown: what is left out is below the second of them."""
    again = parse_duration(duration_text(seconds))
    assert again <= seconds < again + max(3600, again / 24 if again >= 86400 else 60)


def test_texts():
    assert size_text(0) == "0 Bytes"
    assert size_text(1) == "1 Byte"
    assert size_text(3_500_000) == "3.5 MB"
    assert memory_text(80 << 30) == "80.0 GiB"
    assert thousandths(500) == "0.5"
    assert thousandths(2000) == "2"
    assert moment(0) == "1970-01-01T00:00:00.000Z"
    assert number_text(float("nan")) == "nan"
    assert number_text(12384.0) == "12,384"
    assert number_text(0.24871) == "0.2487"


@pytest.mark.parametrize("number", [10**400, 2**1024, -(2**1024), 12_345 * 10**396])
def test_an_integer_that_no_float_is_has_a_text(number):
    exact = Decimal(number)
    for text in (number_text(number), number_within(number, 12)):
        assert len(text) <= 12
        assert abs(Decimal(text) - exact) < abs(exact) / 1000


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("two hours", "2h"),
        ("2 hours", "2h"),
        ("an hour", "1h"),
        ("half an hour", "0.5h"),
        ("1 day and 12 hours", "1d12h"),
        ("1 day, 12 hours", "1d12h"),
        ("1h 30m", "1h30m"),
        ("90min", "90m"),
        ("2:30:00", "2h30m"),
        ("-5m", "5m"),
        ("-5", ""),
        ("soon", ""),
        ("hours", ""),
        ("two", ""),
        ("and", ""),
        ("one fortnight", ""),
        ("", ""),
        ("0:00:00", ""),
    ],
)
def test_what_a_time_in_words_may_mean(text, meant):
    assert meant_duration(text) == meant


@given(st.text())
def test_what_may_be_meant_can_be_read(text):
    assert not (meant := meant_duration(text)) or parse_duration(meant) >= 0
