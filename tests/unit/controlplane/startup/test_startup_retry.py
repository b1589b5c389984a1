"""What a start waits for, what ends it at once, and what is told of that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from controlplane.domain.errors import NsmlError, Unavailable
from controlplane.history.errors import (
    HistoryCorrupt,
    HistoryDenied,
    HistoryFull,
    HistoryRefused,
    HistoryTooNew,
    HistoryUnavailable,
)
from controlplane.objects.errors import ObjectsDenied, ObjectsFull, ObjectsUnavailable
from controlplane.startup.ownership import BackendSettings, Coordination, StartRefused
from controlplane.startup.startup_retry import Absence, Waiting, absence
from controlplane.store.interface import (
    CommitUnknown,
    StoreCorrupt,
    StoreLocked,
    StoreRefused,
    StoreReplaced,
    StoreUnavailable,
)
from tests.unit.controlplane.workbench import HandClock

SHARED = BackendSettings(
    coordination=Coordination("https://a:2379"), history="postgresql:///x", objects="s3://b"
)
ALONE = BackendSettings(coordination=Coordination("etcd"))
EMBEDDED = BackendSettings(coordination=Coordination("embedded"), history="postgresql:///x")


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (StoreUnavailable("x"), "etcd"),
        (CommitUnknown("x"), "etcd"),
        (HistoryUnavailable("x"), "history"),
        (HistoryFull("x"), "history"),
        (ObjectsUnavailable("x"), "objects"),
        (ObjectsFull("x"), "objects"),
    ],
)
def test_what_others_run_may_be_away(error: Exception, part: str) -> None:
    assert absence(error, SHARED) == Absence(part, "x")
    assert absence(error, ALONE) is None, "what lies in the data folder is there or broken"
    assert (absence(error, EMBEDDED) is not None) == (part == "history")


@pytest.mark.parametrize(
    "error",
    [
        StoreRefused("x"),
        StoreReplaced("x"),
        StoreLocked("x"),
        StoreCorrupt("x"),
        HistoryDenied("x"),
        HistoryRefused("x"),
        HistoryTooNew("x"),
        HistoryCorrupt("x"),
        ObjectsDenied("x"),
        StartRefused("x"),
        Unavailable("x"),
        OSError("x"),
    ],
)
async def test_a_refusal_ends_it_at_once(error: Exception) -> None:
    tried: list[str] = []

    async def attempt() -> None:
        tried.append("once")
        raise error

    told: list[str] = []
    with pytest.raises(type(error)), capture_logs() as logged:
        await Waiting(SHARED, HandClock(), told.append).until_there(attempt)
    assert tried == ["once"]
    assert told == logged == []


class Flowing(HandClock):
    """Time passes while somebody sleeps."""

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def waited(failures: Sequence[Exception]) -> tuple[list[str], list[dict[str, object]]]:
    """What is told to `nsml up`, and what is logged, over failures and then a success."""
    left = list(failures)

    async def attempt() -> str:
        if left:
            raise left.pop(0)
        return "there"

    told: list[str] = []
    with capture_logs() as logged:
        assert await Waiting(SHARED, Flowing(), told.append).until_there(attempt) == "there"
    return told, [{key: one[key] for key in one if key != "log_level"} for one in logged]


async def test_one_line_begins_it_one_a_minute_goes_on_and_one_ends_it() -> None:
    refused = HistoryUnavailable("the history at x cannot be used now", why="Connection refused")
    starting = HistoryUnavailable("the history at x cannot be used now", why="starting up")
    told, logged = await waited([refused] * 200 + [starting] * 50)
    words = "the history at x cannot be used now"
    assert told == [f"{words} (Connection refused)", f"{words} (starting up)", ""]
    line = {"event": "controlplane.waiting", "part": "history"}
    assert logged == [
        {**line, "reason": f"{words} (Connection refused)", "waited_s": 0},
        {**line, "reason": f"{words} (Connection refused)", "waited_s": 60},
        {**line, "reason": f"{words} (starting up)", "waited_s": 120},
        {"event": "controlplane.waited", "part": "history", "waited_s": 125},
    ]


async def test_each_part_has_its_own_lines() -> None:
    told, logged = await waited([StoreUnavailable("no etcd"), ObjectsUnavailable("no bucket")])
    assert told == ["no etcd", "", "no bucket", ""]
    assert [(one["event"].rpartition(".")[2], one["part"]) for one in logged] == [
        ("waiting", "etcd"),
        ("waited", "etcd"),
        ("waiting", "objects"),
        ("waited", "objects"),
    ]


async def test_nothing_is_told_where_nothing_is_away() -> None:
    assert await waited([]) == ([], [])


async def test_a_refusal_after_a_while_ends_it_too() -> None:
    errors: list[NsmlError] = [HistoryDenied("no"), HistoryUnavailable("away")]

    async def attempt() -> None:
        raise errors.pop()

    with pytest.raises(HistoryDenied):
        await Waiting(SHARED, Flowing(), lambda _: None).until_there(attempt)
