"""Times as people type and read them: in their own zone, also where its clock is changed."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.time_zone import local, typed, zone_name
from nsml.common.units import local_moment, moment, short_moment
from nsml.view.plot import axis_texts
from nsml.view.projects import day
from nsml.view.series import Axis
from nsml.view.ticks import place_ticks
from tests.support.zones import zone

ZONES = [
    "UTC",
    "Asia/Seoul",
    "Asia/Kolkata",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Kiritimati",
]


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("name", "text", "utc"),
    [
        ("Asia/Seoul", "2026-12-01T09:30", "2026-12-01T00:30"),
        ("Asia/Seoul", "2026-12-01", "2026-11-30T15:00"),
        ("Asia/Seoul", "2026-12-01T09:30Z", "2026-12-01T09:30"),
        ("Asia/Seoul", "2026-12-01T09:30+05:30", "2026-12-01T04:00"),
        ("UTC", "2026-12-01T09:30", "2026-12-01T09:30"),
        ("America/New_York", "2026-07-01T12:00", "2026-07-01T16:00"),
        ("America/New_York", "2026-12-01T12:00", "2026-12-01T17:00"),
        # the hour that comes twice (of 1 November), and the one that is skipped (on 8 March)
        ("America/New_York", "2026-11-01T01:30", "2026-11-01T05:30"),
        ("America/New_York", "2026-11-01T01:30-05:00", "2026-11-01T06:30"),
        ("America/New_York", "2026-03-08T02:30", "2026-03-08T07:30"),
        ("Australia/Lord_Howe", "2026-04-05T01:45", "2026-04-04T14:45"),
    ],
)
def test_a_time_without_a_zone_is_that_of_the_users_clock(name, text, utc):
    with zone(name):
        assert moment(typed(text).timestamp()) == f"{utc}:00.000Z"


@given(st.sampled_from(ZONES), st.integers(0, 4_000_000_000_000))
def test_what_is_shown_can_be_typed(name, milliseconds):
    seconds = milliseconds / 1000
    with zone(name):
        assert round(typed(local_moment(seconds)).timestamp() * 1000) == milliseconds
        assert moment(seconds).endswith("Z")


def test_shown_in_the_users_zone():
    now = at("2026-11-23T05:20:07")
    with zone("Asia/Seoul"):
        assert local_moment(now) == "2026-11-23T14:20:07.000+09:00"
        assert short_moment(now, now) == "11-23 14:20"
        assert short_moment(now, now, has_seconds=True) == "11-23 14:20:07"
        assert short_moment(at("2025-12-31T20:00"), now) == "2026-01-01"
        assert axis_texts(now, now + 60, Axis.WALL)[0] == "2026-11-23T14:20:07.000+09:00"
        assert day(at("2026-11-30T15:00")) == "2026-12-01"
        assert day(at("2026-12-01T00:00")) == "2026-12-01 09:00"
    assert short_moment(now, now) == "11-23 05:20Z"
    assert local_moment(now) == "2026-11-23T05:20:07.000Z"
    assert day(at("2026-11-30T15:00")) == "2026-11-30 15:00Z"
    with zone("Europe/London"):
        assert short_moment(now, now) == "11-23 05:20"


def test_an_hour_that_the_clock_shows_twice_is_told_with_its_zone():
    with zone("Europe/Berlin"):
        first, second = at("2026-10-25T00:30:07"), at("2026-10-25T01:30:07")
        assert short_moment(first, first) == "10-25 02:30 CEST"
        assert short_moment(second, second, has_seconds=True) == "10-25 02:30:07 CET"
        assert short_moment(at("2026-10-25T02:30"), second) == "10-25 03:30"
        assert short_moment(at("2026-03-29T01:30"), first) == "2026-03-29"
        assert short_moment(at("2026-03-29T01:30"), at("2026-03-29T02:00")) == "03-29 03:30"
        assert local_moment(second) == "2026-10-25T02:30:07.000+01:00"
        typed_day = at("2026-10-25T01:00")
        assert day(typed_day) == "2026-10-25 02:00 CET"


@given(st.sampled_from(ZONES), st.integers(0, 2_000_000_000), st.integers(60, 20 * 86_400))
def test_ticks_are_at_even_times_of_the_users_clock(name, begin, span):
    with zone(name):
        found = place_ticks(begin, begin + span, Axis.WALL, most=6)
        assert all(begin <= one <= begin + span for one in found.at)
        assert list(found.at) == sorted(set(found.at))
        assert found.unit.split(",")[0] == zone_name(found.at[0])
        if span > 7 * 3600:
            # Whole hours; half of one where that is skipped by half an hour.
            assert {f"{local(one):%M:%S}" for one in found.at} <= {"00:00", "30:00"}


def test_days_begin_at_midnight_also_where_the_clock_is_changed():
    with zone("America/New_York"):
        found = place_ticks(at("2026-10-30T00:00"), at("2026-11-04T12:00"), Axis.WALL, most=6)
        assert found.texts == (
            "2026-10-30",
            "2026-10-31",
            "2026-11-01",
            "2026-11-02",
            "2026-11-03",
            "2026-11-04",
        )
        assert [f"{local(one):%H:%M}" for one in found.at] == ["00:00"] * 6


def test_a_time_of_the_day_is_one_of_today():
    with zone("Asia/Seoul"):
        now = datetime(2026, 12, 1, 8, 15, tzinfo=UTC).timestamp()
        for text in ("09:30", "09:30:00", "2026-12-01T09:30"):
            assert typed(text, now=now) == datetime(2026, 12, 1, 0, 30, tzinfo=UTC)
    for text, at in (("09:30", None), ("9:3", now), ("25:00", now)):
        with pytest.raises(ValueError, match=r"."):
            typed(text, now=at)
