"""Which tests take turns: `tests/lanes.py`."""

from types import SimpleNamespace

import pytest

from tests import lanes

TURNS = ("1/3", "2/3", "3/3")


@pytest.fixture
def items(monkeypatch):
    """Sixty tests, of which every tenth runs every time, and every other one takes long."""
    recorded = {f"test {number}": (3.0 * (number % 2), 0.1) for number in range(60)}
    monkeypatch.setattr(lanes, "_TESTS", recorded)
    return [
        SimpleNamespace(
            nodeid=name,
            get_closest_marker=lambda mark, number=number: (
                (mark == "every_time" and number % 10 == 1) or None
            ),
        )
        for number, name in enumerate(recorded)
    ]


def kept(items, turn):
    return {item.nodeid for item in lanes._in_turn(items, turn)}


def test_each_that_takes_long_has_its_turn_once_and_the_others_each_time(items):
    ran = [kept(items, turn) for turn in TURNS]
    each_time = set.intersection(*ran)
    assert each_time == {f"test {n}" for n in range(60) if n % 2 == 0 or n % 10 == 1}
    assert set.union(*ran) == {item.nodeid for item in items}
    assert sum(map(len, ran)) == 60 + 2 * len(each_time)


def test_what_is_not_recorded_runs_each_time(items):
    new = SimpleNamespace(nodeid="new", get_closest_marker=lambda _: None)
    assert all("new" in kept([*items, new], turn) for turn in TURNS)


def test_all_have_their_turn_unless_it_is_asked_for(items):
    assert len(kept(items, "1/1")) == 60


def test_no_turn_is_refused(items):
    with pytest.raises(pytest.UsageError, match="for example 2/5"):
        kept(items, "4/3")
