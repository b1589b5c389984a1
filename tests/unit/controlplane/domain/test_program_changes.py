"""Changes of running programs: what a session keeps of what its processes said."""

from __future__ import annotations

from controlplane.domain.program_changes import (
    MOST_MEMBER_BYTES,
    ChangeKind,
    ChangePhase,
    KnobChange,
    MemberState,
    ProgramChange,
    Said,
    decide,
)

CHANGE = ProgramChange(
    number=1,
    kind=ChangeKind.SET,
    attempt=1,
    asked_by="kim",
    asked_at=0.0,
    phase=ChangePhase.COMMIT,
)


def said(rank: int, state: MemberState, characters: int) -> Said:
    """What a process says of its own, as long as it may be."""
    text = f"{rank:0{characters}}"
    knobs = tuple(KnobChange(name=f"{n}", before=text, after=text) for n in range(16))
    return Said(rank=rank, local_rank=0, number=1, state=state, knobs=knobs, reason=text)


def test_of_much_that_processes_say_a_part_is_kept() -> None:
    """User code is behind it, and the record of a session has to hold it."""
    for count, characters in ((2, 8), (16, 300), (1024, 300)):
        states = [MemberState.DONE] * (count - 1) + [MemberState.MISSED]
        all_said = [said(rank, state, characters) for rank, state in enumerate(states)]
        over = decide(CHANGE, range(count), all_said, 1.0)
        assert over.phase is ChangePhase.DIVIDED
        assert sum(one.size for one in over.members) <= MOST_MEMBER_BYTES
        assert over.size <= MOST_MEMBER_BYTES + 4 * 1024
        missed = [one.rank for one in over.members if one.state is MemberState.MISSED]
        assert missed == [count - 1], "who did not make it is among them"
        assert all(one.knobs for one in over.members) == (characters < 300)
