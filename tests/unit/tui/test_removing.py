"""Sessions are removed from the dashboard, on a platform over real gRPC."""

from nsml.v1 import checkpoints_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.tui.conftest import said, shows, until
from tui.screens.sessions import SessionsScreen

SIZE = (120, 40)


async def test_what_is_marked_and_has_ended_is_removed_once_that_is_confirmed(dashboard, server):
    first, second = (server.state.add(f"kim/mnist/{n}", pb.SESSION_STATE_FAILED) for n in (1, 2))
    live = server.state.add("kim/mnist/3")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "3 of 3 sessions")
        await pilot.press("space", "space", "space")
        await shows(pilot, "3 marked")
        await pilot.press("ctrl+d")
        await shows(pilot, "Remove 2 sessions, logs and metrics, for good? 1 live session")
        await shows(pilot, "kim/mnist/1  ✗ Failed")
        await shows(pilot, "$ nsml rm kim/mnist/2 kim/mnist/1")
        await pilot.press("n")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionsScreen))
        assert len(server.state.sessions) == 3
        await pilot.press("ctrl+d", "y")
        await shows(pilot, "1 of 1 session")
        await until(pilot, lambda: {*server.state.sessions} == {live.id})
        assert first.id not in server.state.sessions
        assert second.id not in server.state.sessions


async def test_to_remove_more_than_ten_their_number_is_typed(dashboard, server):
    sessions = [server.state.add(f"kim/mnist/{number}") for number in range(11)]
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "11 of 11 sessions")
        for one in sessions:
            server.state.change(one, state=pb.SESSION_STATE_FAILED)
        await until(pilot, lambda: said(dashboard).count("✗ Failed") == 11)
        await pilot.press(*["space"] * 11)
        await shows(pilot, "11 marked")
        for answer in (["y", "enter"], ["1", "0", "enter"], ["escape"]):
            await pilot.press("ctrl+d")
            await shows(pilot, "Remove 11 sessions", "... and 1 more", "Type 11 to confirm:")
            await pilot.press(*answer)
            await until(pilot, lambda: isinstance(dashboard.screen, SessionsScreen))
            assert len(server.state.sessions) == 11
        await pilot.press("ctrl+d")
        await shows(pilot, "Type 11 to confirm:")
        await pilot.press("1", "1", "enter")
        await until(pilot, lambda: not server.state.sessions)


async def test_a_removal_says_what_is_lost_and_whose_it_is(dashboard, server):
    state = server.state
    ended = state.add("lee/mnist/1", pb.SESSION_STATE_FAILED, checkpoint_count=2)
    state.checkpoints[ended.id] = [
        checkpoints_pb2.Checkpoint(name=name, session=ended.name, size_bytes=1_500_000_000)
        for name in ("1", "2")
    ]
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "lee/mnist/1")
        await pilot.press("ctrl+d")
        await shows(pilot, "Remove lee/mnist/1 of lee, 2 checkpoints (3.0 GB), logs and metrics")
        await pilot.press("escape")
        assert ended.id in state.sessions


async def test_one_that_runs_is_not_removed(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await pilot.press("ctrl+d")
        told = [one.message for one in dashboard._notifications]
        assert told == ["nothing to remove: it has not ended · ctrl+k stops it"]
        assert isinstance(dashboard.screen, SessionsScreen)


async def test_what_the_platform_refuses_to_remove_stays_and_is_told(dashboard, server):
    gone = server.state.add("kim/mnist/1", pb.SESSION_STATE_FAILED)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        del server.state.sessions[gone.id]
        await pilot.press("ctrl+d", "y")
        await until(pilot, lambda: any(one.severity == "error" for one in dashboard._notifications))
        [told] = [one.message for one in dashboard._notifications if one.severity == "error"]
        assert told.startswith("not done: $ nsml rm kim/mnist/1\n")
        assert "1 of 1 session" in said(dashboard)
