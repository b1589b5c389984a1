"""Which processes of a replica a change is for, as its agent hears them."""

from __future__ import annotations

from nodeagent.replica.program_changes import ReplicaChanges, Wanted
from nsml.v1 import sessions_pb2


def test_who_is_started_anew_takes_the_place_of_one_that_ended() -> None:
    changes = ReplicaChanges(tell=lambda: None)
    ended: set[str] = set()

    def says(process: str, local_rank: int, world: int) -> bool:
        said = {"process": process, "local_rank": local_rank, "local_world_size": world}
        return changes.hear(said, lambda: process not in ended)

    assert all(says(f"first {rank}", rank, 3) for rank in range(3))
    assert not says("a worker's child", 0, 3)
    ended |= {"first 0", "first 1", "first 2"}
    assert says("second 0", 0, 2)
    assert not says("a worker's child", 0, 2)
    assert says("second 1", 1, 2)
    assert [one.process for one in changes.members] == ["second 0", "second 1"]


def test_who_ended_before_it_made_what_is_decided_holds_up_nobody() -> None:
    told: list[None] = []
    changes = ReplicaChanges(tell=lambda: told.append(None))
    is_there = {"lives": True, "ended": True}
    for rank, process in enumerate(is_there):
        said = {"process": process, "local_rank": rank, "local_world_size": 2}
        assert changes.hear(said, lambda process=process: is_there[process])
    change = sessions_pb2.ProgramChange(
        number=3,
        kind=sessions_pb2.PROGRAM_CHANGE_KIND_SET,
        phase=sessions_pb2.PROGRAM_CHANGE_PHASE_PREPARE,
        values={"lr": "1"},
        counter="step",
        at=9,
    )
    changes.want(Wanted(change=change))
    is_there["ended"] = False
    changes.note_ended()
    assert not changes.is_settled, "before it is decided, that is waited for"
    change.phase = sessions_pb2.PROGRAM_CHANGE_PHASE_COMMIT
    changes.want(Wanted(change=change))
    told.clear()
    before = changes.members
    changes.note_ended()
    assert before != changes.members, "so that it is told"
    changes.note_ended()
    lives, ended = changes.members
    assert lives.state != ended.state
    assert (ended.state, ended.number, ended.reason) == (
        sessions_pb2.MEMBER_STATE_MISSED,
        3,
        "its process has ended",
    )
    assert len(told) == 1
