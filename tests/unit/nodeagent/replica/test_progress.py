"""How old what was saved is, told by a machine whose wall clock is set."""

from __future__ import annotations

import pytest

from nodeagent.folders import ReplicaId
from nodeagent.link.reports import progress_report
from nodeagent.replica.progress import Looks, Progress

HOUR_S = 3_600.0
REPLICA = ReplicaId(session_id="s" + 16 * "a", attempt=1, rank=0)
WALL = 1_700_000_000.0


def told_s(looks: Looks, found: Progress, *, wall: float, steady: float, later_s: float) -> float:
    noted = looks.found(found, wall=wall, steady=steady)
    report = progress_report(REPLICA, noted, now=steady + later_s)
    return report.since_saved.ToNanoseconds() / 1e9


@pytest.mark.parametrize("by_s", [0.0, HOUR_S, -HOUR_S])
def test_what_was_saved_ages_by_what_goes_by(by_s: float) -> None:
    looks = Looks()
    looks.found(Progress(), wall=WALL, steady=100.0)
    saved = Progress(is_resumable=True, saved_at=WALL + 4)
    assert told_s(looks, saved, wall=WALL + 10, steady=110.0, later_s=0) == 6
    # The clock is set between two looks.
    assert told_s(looks, saved, wall=WALL + 20 + by_s, steady=120.0, later_s=5) == 21


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_is_set_between_a_save_and_the_look_at_it(by_s: float) -> None:
    looks = Looks()
    looks.found(Progress(), wall=WALL, steady=100.0)
    saved = Progress(is_resumable=True, saved_at=WALL + 4)
    assert 0 <= told_s(looks, saved, wall=WALL + 10 + by_s, steady=110.0, later_s=0) <= 10


def test_what_an_agent_finds_when_it_starts_is_as_old_as_its_file_says() -> None:
    saved = Progress(is_resumable=True, saved_at=WALL - 500)
    assert told_s(Looks(), saved, wall=WALL, steady=10.0, later_s=1) == 501
    unsaved = Looks().found(Progress(is_resumable=True), wall=WALL, steady=10.0)
    assert not progress_report(REPLICA, unsaved, now=20.0).HasField("since_saved")
