"""When a session is idle or a zombie, and how its episodes follow one another."""

from __future__ import annotations

import pytest

from controlplane.domain.idle import MOST_EPISODES, Seen, WasteRule, following, judged
from controlplane.domain.values import Episode, EpisodeKind

RULE = WasteRule(percent=1.0, after_s=600.0)
NOW = 10_000.0
LONG, SHORT = NOW - 600.0, NOW - 599.0


@pytest.mark.parametrize(
    ("seen", "kind", "since"),
    [
        (Seen(), None, 0),
        (Seen(idle_since=SHORT), None, 0),
        (Seen(idle_since=LONG), EpisodeKind.IDLE, LONG),
        # Who computes is no zombie, whatever the driver tells of processes.
        (Seen(empty_since=LONG), None, 0),
        (Seen(idle_since=LONG, empty_since=NOW - 59), EpisodeKind.IDLE, LONG),
        (Seen(idle_since=LONG - 60, empty_since=LONG), EpisodeKind.ZOMBIE, LONG),
        (Seen(strangers=["GPU 0 of a is used by process 7"]), EpisodeKind.ZOMBIE, NOW),
    ],
)
def test_what_stands_against_a_session(seen: Seen, kind: EpisodeKind | None, since: float) -> None:
    found = judged(seen, RULE, NOW)
    assert (found and found.kind) is kind
    if found is not None:
        assert found.since == since
    assert judged(seen, WasteRule(after_s=0.0), NOW) is None


def test_the_reason_says_what_was_seen() -> None:
    def reason(seen: Seen) -> str:
        found = judged(seen, RULE, NOW)
        assert found is not None
        return found.reason

    assert reason(Seen(idle_since=LONG)) == "none of its GPUs did more than 1 %"
    empty = Seen(idle_since=LONG, empty_since=LONG)
    assert reason(empty) == "no process is on its GPUs"
    taken = Seen(idle_since=LONG, empty_since=LONG, memory_bytes=12 << 30)
    assert reason(taken) == "no process is on its GPUs, and 12.0 GiB of their memory are in use"
    assert reason(Seen(strangers=["one", "another"])) == "one; another"


def test_an_episode_goes_on_as_it_began_and_ends_once() -> None:
    idle = Episode(kind=EpisodeKind.IDLE, since=100.0, reason="first")
    begun = following((), idle, 700.0)
    assert begun == (idle,)
    later = Episode(kind=EpisodeKind.IDLE, since=150.0, reason="second")
    assert following(begun, later, 800.0) is begun
    ended = following(begun, None, 900.0)
    assert [(one.since, one.until) for one in ended] == [(100.0, 900.0)]
    assert following(ended, None, 1000.0) is ended


def test_another_kind_ends_the_one_that_stood_and_they_do_not_overlap() -> None:
    idle = Episode(kind=EpisodeKind.IDLE, since=100.0, reason="")
    zombie = Episode(kind=EpisodeKind.ZOMBIE, since=300.0, reason="")
    both = following((idle,), zombie, 900.0)
    assert [(one.kind, one.since, one.until) for one in both] == [
        (EpisodeKind.IDLE, 100.0, 900.0),
        (EpisodeKind.ZOMBIE, 900.0, 0.0),
    ]


def test_only_the_newest_episodes_are_kept() -> None:
    episodes: tuple[Episode, ...] = ()
    for number in range(MOST_EPISODES + 3):
        found = Episode(kind=EpisodeKind.IDLE, since=number * 10.0, reason="")
        episodes = following(episodes, found, number * 10.0 + 1)
        episodes = following(episodes, None, number * 10.0 + 2)
    assert len(episodes) == MOST_EPISODES
    assert episodes[0].since == 30.0
