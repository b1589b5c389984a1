"""Where those who ask the wrong control plane are sent."""

from __future__ import annotations

from tests.unit.controlplane.rig import serving, surroundings, until


async def test_nobody_is_sent_to_where_they_are() -> None:
    """A predecessor at the same address has died, and its lease has not ended yet."""
    async with (
        surroundings() as on,
        serving(on, member="died", address="a.example:1") as died,
        serving(on, member="again", address="a.example:1") as again,
        serving(on, member="other", address="b.example:1") as other,
    ):

        async def seen() -> bool:
            known = [one.plane.leading.leader for one in (died, again, other)]
            return all(known) and len({leader.member for leader in known if leader}) == 1

        await until(seen, "all know the leader")
        leader = other.plane.leading.leader
        assert leader is not None
        elsewhere = "" if leader.member == "other" else "a.example:1"
        assert other.plane.leading.leader_address() == elsewhere
        expected = "b.example:1" if leader.member == "other" else ""
        assert again.plane.leading.leader_address() == expected
        assert died.plane.leading.leader_address() == expected
