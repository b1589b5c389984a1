"""Which processes of a replica a change is for, as its agent hears them."""

from __future__ import annotations

from nodeagent.replica.program_changes import ReplicaChanges


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
