"""The dashboard, with keys pressed, on a platform over real gRPC."""

import asyncio
import subprocess
import sys
import threading

import pytest
from textual.widgets import Input

from nsml.common.units import short_moment
from nsml.v1 import nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.tui.conftest import WITHIN_S, said, shows, until
from tui.feed import MOST_IN_LINE
from tui.screens.nodes import NodesScreen
from tui.screens.queue import QueueScreen
from tui.screens.session import SessionScreen
from tui.screens.sessions import SessionsScreen
from tui.sources import Topic

SIZE = (120, 40)


async def test_sessions_come_and_change_while_one_looks(dashboard, server):
    first = server.state.add("kim/mnist/1", memo="baseline")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1", "Running", "1 of 1 session", "● live")
        server.state.add("lee/kin/77", pb.SESSION_STATE_QUEUED, waiting="needs 8 GPUs on one node")
        await shows(pilot, "lee/kin/77", "needs 8 GPUs", "2 of 2 sessions")
        server.state.change(first, state=pb.SESSION_STATE_SUCCEEDED)
        await shows(pilot, "✔ Succeeded")
        assert "kim/mnist/1" in said(dashboard)


async def test_it_says_when_all_sessions_have_come(make_dashboard, server, monkeypatch):
    monkeypatch.setattr("tui.shell.SETTLED_S", 0.01)
    server.state.add("kim/mnist/1")
    counts = []
    dashboard = make_dashboard(settled=lambda: counts.append(dashboard.model.count))
    async with dashboard.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: 1 in counts)


async def test_what_is_reported_as_summary_is_seen_though_nothing_else_changes(dashboard, server):
    session = server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        server.state.summarize(session, loss=0.125)
        await shows(pilot, "loss=0.125")


async def test_what_its_processes_take_is_as_new_as_what_is_shown_of_it(dashboard, server):
    session = server.state.add("kim/mnist/1", replicas=[pb.Replica(node="gpu-1")])
    known = server.state.sessions[session.id]
    known.replicas[0].use.cpu_cores = 1.5
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await pilot.press("enter", "d")
        await shows(pilot, "now: 1.5 cores")
        # Nothing is told of it on any stream.
        known.replicas[0].use.cpu_cores = 3.5
        await shows(pilot, "now: 3.5 cores")


async def test_a_metric_goes_from_the_wire_to_a_chart(dashboard, server):
    session = server.state.add("kim/mnist/1")
    for step in range(50):
        server.state.report(session, "train/loss", 3.0 - step / 25, step=step)
    server.state.log(session, b"epoch 1\nepoch 2 \x1b[31mred\n")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "train/loss  (step)  50 points", "min 1.04", "epoch 2 red")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await pilot.press("p")
        await shows(pilot, "metric 1/1: ", "max 3")
        await pilot.press("full_stop", "full_stop", "y", "X")
        await shows(pilot, "(relative, log, smooth 0.6)", "x: relative")
        server.state.log(session, b"epoch 3\n")
        await pilot.press("l")
        await shows(pilot, "epoch 3", "following · 3 lines")


async def test_an_answer_that_is_the_same_is_drawn_once(dashboard, server, monkeypatch):
    monkeypatch.setattr("tui.feed.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("tui.feed.CALM_EVERY_S", 0.05)
    session = server.state.add("kim/mnist/1")
    server.state.report(session, "loss", 3.0, step=1)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 point")
        drawn, received_at = (
            dashboard.model.shown.groups,
            dashboard.model.sources[Topic.SERIES].received_at,
        )
        await until(pilot, lambda: dashboard.model.sources[Topic.SERIES].received_at > received_at)
        assert dashboard.model.shown.groups is drawn
        server.state.report(session, "loss", 2.0, step=2)
        await shows(pilot, "2 points")


async def test_a_filter_holds_while_it_is_typed_and_says_what_it_does_not_understand(
    dashboard, server
):
    for number in range(1, 5):
        server.state.add(f"kim/mnist/{number}", memo="even" if number % 2 == 0 else "odd")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "4 of 4 sessions")
        await pilot.press(*["slash", *"even"])
        await shows(pilot, "2 of 4 sessions · filter: even")
        assert "kim/mnist/3" not in said(dashboard)
        await pilot.press(*" colour:red")
        await shows(
            pilot, "   ^", "no key 'colour'", "2 of 4 sessions · filter: even", "⏎ Keep", "esc Drop"
        )
        await pilot.press("enter")
        assert isinstance(dashboard.focused, Input)
        await shows(pilot, "   ^", "no key 'colour'", "not applied: correct it, or esc clears it")
        await pilot.press("escape")
        await shows(pilot, "4 of 4 sessions")
        assert not isinstance(dashboard.focused, Input)


async def test_what_is_marked_is_stopped_once_that_is_confirmed(dashboard, server):
    for number in range(1, 4):
        server.state.add(f"kim/mnist/{number}")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "3 of 3 sessions")
        await pilot.press("space", "space")
        await shows(pilot, "2 marked")
        await pilot.press("ctrl+k")
        await shows(pilot, "Stop 2 sessions?", "$ nsml stop kim/mnist/3 kim/mnist/2")
        await pilot.press("n")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionsScreen))
        assert server.state.sessions[f"s{3:016d}"].state == pb.SESSION_STATE_RUNNING
        await pilot.press("ctrl+k", "y")
        await shows(pilot, "■ Stopped", "● Running")
        states = [one.state for one in server.state.sessions.values()]
        assert states.count(pb.SESSION_STATE_STOPPED) == 2
        await pilot.press("G", "ctrl+k")
        told = "of the 2 marked ones none runs: u unmarks"
        await until(pilot, lambda: told in {one.message for one in dashboard._notifications})
        await pilot.press("u", "ctrl+k")
        await shows(pilot, "Stop kim/mnist/1?")


async def test_stopping_names_signals_only_if_a_program_runs(dashboard, server):
    server.state.add("kim/mnist/1")
    server.state.add("kim/mnist/2", pb.SESSION_STATE_QUEUED)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions")
        await pilot.press("ctrl+k")
        await shows(pilot, "Stop kim/mnist/2?")
        assert "SIGTERM" not in said(dashboard)
        await pilot.press("n", "space", "space", "ctrl+k")
        await shows(pilot, "Stop 2 sessions? SIGTERM first, SIGKILL after the grace.")


async def test_of_several_only_the_one_that_was_not_stopped_is_said_not_to_be(dashboard, server):
    gone, stays = server.state.add("kim/mnist/1"), server.state.add("kim/mnist/2")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions")
        del server.state.sessions[gone.id]
        await pilot.press("space", "space", "ctrl+k", "y")
        await shows(pilot, "■ Stopped")
        await until(pilot, lambda: any(one.severity == "error" for one in dashboard._notifications))
        [told] = [one.message for one in dashboard._notifications if one.severity == "error"]
        assert told.startswith("not done: $ nsml stop kim/mnist/1\n")
        assert server.state.sessions[stays.id].state == pb.SESSION_STATE_STOPPED


async def test_what_the_platform_refuses_is_told_and_the_dashboard_stays(dashboard, server):
    session = server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        gone = server.state.sessions.pop(session.id)
        await pilot.press("m", *"note", "enter")
        await until(pilot, lambda: any(one.severity == "error" for one in dashboard._notifications))
        server.state.put(gone)
        await pilot.press("m", *"note", "enter")
        await until(pilot, lambda: server.state.sessions[f"s{1:016d}"].memo == "note")
        await shows(pilot, "note")


async def test_a_platform_that_is_away_is_told_waited_for_and_its_return_shown(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1", "● live")
        await asyncio.to_thread(server.cut)
        await shows(pilot, "✗ offline", "unreachable for", "data from", "kim/mnist/1")
        server.state.add("kim/mnist/2")
        await asyncio.to_thread(server.restore)
        await shows(pilot, "● live", "kim/mnist/2")
        await until(pilot, lambda: "unreachable" not in said(dashboard))


async def test_that_the_preview_alone_is_old_is_told(dashboard, server):
    session = server.state.add("kim/mnist/1")
    server.state.report(session, "loss", 0.5, step=1)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "loss  (step)", "● live")
        server.state.away = frozenset({"ReadSeries"})
        await shows(pilot, "● live", "✗ metrics: unreachable for", "loss  (step)")
        server.state.away = frozenset()
        await until(pilot, lambda: "unreachable" not in said(dashboard))


async def test_that_another_leads_is_said(dashboard, server):
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "● live", "leader cp-1")
        server.state.leader = "cp-2"
        await shows(pilot, "leader cp-2")
        assert [one.message for one in dashboard._notifications] == ["leader cp-1 -> cp-2"]


async def test_it_starts_while_the_platform_is_away(dashboard, server):
    await asyncio.to_thread(server.cut)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "✗ offline")
        server.state.add("kim/mnist/1")
        await asyncio.to_thread(server.restore)
        await shows(pilot, "● live", "kim/mnist/1")


async def test_one_that_is_removed_while_one_looks_at_it_is_said_to_be(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        (session,) = dashboard.model.shown.session_ids
        with server.state.changed:
            server.state.revision += 1
            server.state.removed[server.state.revision] = session
            server.state.changed.notify_all()
        await shows(pilot, "kim/mnist/1 was removed")
        await pilot.press("escape")
        await shows(pilot, "no sessions yet")


async def test_names_and_lines_that_a_terminal_would_obey_are_shown(dashboard, server):
    session = server.state.add("kim/mnist/1", memo="\x1b]0;owned\x07 [bold]x[/bold]")
    server.state.log(session, b"\x1b[2J\x1b]52;c;cm0gLXJm\x07done\n")
    server.state.report(session, "loss\x1b[31m", 1.0, step=1)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "␛]0;owned␇ [bold]x[/bold]", "done", "loss␛[31m")
        assert "\x1b" not in said(dashboard)


async def test_a_note_that_a_terminal_would_obey_is_shown_where_it_is_written_anew(
    dashboard, server
):
    memo = "\x1b]0;owned\x07 base"
    session = server.state.add("kim/mnist/1", memo=memo)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1")
        await pilot.press("m")
        await shows(pilot, "Memo of kim/mnist/1", "␛]0;owned␇ base")
        assert "\x1b" not in said(dashboard)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionsScreen))
        assert server.state.sessions[session.id].memo == memo
        await pilot.press("m", "end", *"line", "enter")
        await shows(pilot, "␛]0;owned␇ baseline")


async def test_of_a_progress_bar_the_last_state_is_shown(dashboard, server):
    session = server.state.add("kim/mnist/1")
    server.state.piece = 1_000
    server.state.log(session, b"begin\nepoch 10%\repoch 20%")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await pilot.press("l")
        await shows(pilot, "epoch 20%")
        server.state.log(session, b"\x1b[2K\ra: 1\nb: 1\n\x1b[2Aa: 2\nb: 3\b2\nend\n")
        await shows(pilot, "begin", "a: 2", "b: 2", "end")
        assert not any(old in said(dashboard) for old in ("epoch", "a: 1", "b: 3"))


async def test_a_line_without_an_end_is_shown_in_parts(dashboard, server):
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"x" * (3 * MOST_IN_LINE + 1))
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await pilot.press("l")
        await shows(pilot, "following · 3 lines")
        server.state.log(session, b"y" * (MOST_IN_LINE - 1) + b"\nz\n")
        await shows(pilot, "following · 6 lines")
        assert max(map(len, dashboard.model.shown.lines)) == MOST_IN_LINE


async def test_a_context_that_is_broken_while_one_looks_is_told_and_waited_for(
    dashboard, server, tmp_path, monkeypatch
):
    monkeypatch.setattr("tui.shell.ASK_AGAIN_S", 0.05)
    session = server.state.add("kim/mnist/1")
    token = tmp_path / "token"
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1", "● live")
        whole = token.read_text()
        token.unlink()
        token.mkdir()
        await pilot.press("ctrl+r")
        await shows(pilot, "✗ denied", "cannot read the token file", "kim/mnist/1")
        await pilot.press("m", *"note", "enter")
        await until(pilot, lambda: any(one.severity == "error" for one in dashboard._notifications))
        token.rmdir()
        token.write_text(whole)
        token.chmod(0o600)
        await shows(pilot, "● live")
        server.state.log(session, b"goes on\n")
        await shows(pilot, "goes on")


async def test_ended_sessions_stay_while_the_history_is_away_and_those_left_out_are_said(
    dashboard, server
):
    for number in range(2):
        server.state.add(f"kim/mnist/{number}", pb.SESSION_STATE_SUCCEEDED)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions", "kim/mnist/1")
        assert "older" not in said(dashboard)
        server.state.lacks_ended = True
        await pilot.press("ctrl+r")
        await shows(pilot, "✗ ended sessions: unreachable", "the history does not answer")
        await shows(pilot, "2 of 2 sessions", "kim/mnist/1")
        server.state.lacks_ended = False
        server.state.add("kim/mnist/2", pb.SESSION_STATE_SUCCEEDED)
        await pilot.press("ctrl+r")
        # The platform of tests gives two at a time.
        await shows(pilot, "2 of 2 sessions", "older ended ones: $ nsml ps -a", "kim/mnist/2")


async def test_a_token_that_is_refused_is_not_sent_again_and_another_is_taken_once_there(
    make_dashboard, server, tmp_path, monkeypatch
):
    monkeypatch.setattr("tui.shell.TOKEN_LOOK_S", 0.02)
    server.state.add("kim/mnist/1")
    token, looks = tmp_path / "token", 0

    def look():
        nonlocal looks
        looks += 1
        return token.read_text().strip()

    dashboard = make_dashboard(token=look, start_with="nsml up")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1", "● live")
        server.state.tokens = {"renewed-token-of-kim": "kim"}
        await shows(pilot, "✗ denied", "the token is not valid", "nsml login gpu.lab")
        await shows(pilot, "data from", "kim/mnist/1")
        assert "starts it" not in said(dashboard)
        await until(pilot, lambda: dashboard.client is None)
        calls, before = len(server.state.calls), looks
        await until(pilot, lambda: looks > before + 10)
        assert len(server.state.calls) == calls
        assert dashboard.user == ""
        server.state.add("kim/mnist/2")
        token.write_text("renewed-token-of-kim\n")
        await shows(pilot, "● live", "kim/mnist/2")
        await until(pilot, lambda: dashboard.user == "kim")


async def test_whoever_starts_with_a_token_that_is_refused_is_told_what_signs_in(
    make_dashboard, server, monkeypatch
):
    monkeypatch.setattr("tui.shell.SAME_TOKEN_AGAIN_S", 0.05)
    monkeypatch.setattr("tui.shell.TOKEN_LOOK_S", 0.02)
    known, server.state.tokens = server.state.tokens, {}
    server.state.add("kim/mnist/1")
    dashboard = make_dashboard()
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "✗ denied", "the token is not valid · nsml login gpu.lab")
        server.state.tokens = known  # the platform had lagged behind: the same one is tried again
        await shows(pilot, "● live", "kim/mnist/1")


async def test_what_is_wrong_comes_before_notices_and_is_counted_where_it_has_no_room(
    dashboard, server
):
    def add(name, subject, meaning):
        one = nodes_pb2.Condition(name=name, subject=subject, meaning=meaning)
        server.state.conditions = [*server.state.conditions, one]

    add(nodes_pb2.CONDITION_NAME_JOIN_REFUSED, "192.0.2.7", "was refused")
    for node in ("gpu-1", "gpu-2"):
        add(nodes_pb2.CONDITION_NAME_NODES_SILENT, node, "word " * 40)
    async with dashboard.run_test(size=(80, 24)) as pilot:
        await shows(
            pilot,
            " ! NODES_SILENT (gpu-1): word",
            " ! NODES_SILENT (gpu-2): word",
            " i notice JOIN_REFUSED (192.0.2.7): was refused",
        )
        lines = said(dashboard).splitlines()
        assert [line[1] for line in lines if line[1] in "!i"] == ["!", "!", "i"]
        for node in ("gpu-3", "gpu-4"):
            add(nodes_pb2.CONDITION_NAME_NODES_SILENT, node, "w")
        await shows(pilot, "(gpu-3)", " and 2 more: $ nsml status")


async def test_a_queue_that_is_longer_than_what_is_listed_says_so(dashboard, server, monkeypatch):
    for number in range(5):
        server.state.add(f"kim/mnist/{number}", pb.SESSION_STATE_QUEUED)
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await shows(pilot, "kim/mnist/4", "queue 5")
        assert "nsml queue" not in said(dashboard)
        monkeypatch.setattr("tui.feed.MOST_WAITING", 4)
        await shows(pilot, "the first 4, all: $ nsml queue · queue 5")
        await until(pilot, lambda: "kim/mnist/4" not in said(dashboard))


async def test_other_screens_show_the_queue_and_the_nodes(dashboard, server):
    server.state.add("lee/kin/77", pb.SESSION_STATE_QUEUED)
    server.state.rows = [
        pb.QueuedSession(place=1, session="lee/kin/77", owner="lee", reason="needs 8 on one node")
    ]
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: isinstance(dashboard.screen, QueueScreen))
        await shows(pilot, "lee/kin/77", "needs 8 on one node")
        await pilot.press("slash", *"kim", "enter")
        await shows(pilot, "0 of 2 · queue ", "no match: esc shows all again", "filter: kim")
        await pilot.press("escape")
        await shows(pilot, "lee/kin/77", "needs 8 on one node")
        await pilot.press("3")
        await until(pilot, lambda: isinstance(dashboard.screen, NodesScreen))
        await shows(pilot, "no nodes yet")
        await pilot.press("1")
        await shows(pilot, "1 of 1 session")


async def test_the_queue_says_why_each_time_that_it_is_shown(dashboard, server):
    waits = server.state.add("kim/mnist/2", pb.SESSION_STATE_QUEUED)
    server.state.add("kim/mnist/3")
    server.state.why[waits.name] = pb.Waiting(reason="needs 8", place=1, queued=1)
    async with dashboard.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: isinstance(dashboard.screen, SessionsScreen))
        await shows(pilot, "kim/mnist/3", "kim/mnist/2")
        for _ in range(3):
            await pilot.press("2")
            await until(pilot, lambda: isinstance(dashboard.screen, QueueScreen))
            await shows(pilot, "kim/mnist/2", "why: needs 8", "place: 1 of 1")
            await pilot.press("1")
            await until(pilot, lambda: isinstance(dashboard.screen, SessionsScreen))
            # This screen looks at the one under its own cursor.
            await until(pilot, lambda: dashboard.model.shown.session_ids != (waits.id,))


async def test_a_queue_of_before_is_said_to_be_of_then_while_the_platform_is_away(
    dashboard, server
):
    server.state.rows = [
        pb.QueuedSession(place=1, session="lee/kin/77", owner="lee", reason="full")
    ]
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await shows(pilot, "lee/kin/77")
        await pilot.press("1")
        seen_at = dashboard.model.sources[Topic.QUEUE].received_at
        await until(pilot, lambda: dashboard.model.sources[Topic.CLUSTER].received_at > seen_at + 1)
        server.cut()
        await pilot.press("2")
        moment = short_moment(
            dashboard.model.sources[Topic.QUEUE].received_at, seen_at, has_seconds=True
        )
        await shows(pilot, "lee/kin/77", f"data from {moment}")


async def test_only_what_is_in_front_is_asked_for_again_and_again(dashboard, server):
    asked = server.state.calls.count
    async with dashboard.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: asked("GetCluster") > 1)
        assert not asked("ListQueue")
        await pilot.press("2")
        await until(pilot, lambda: asked("ListQueue") > 1)
        assert not asked("ListNodes")
        await pilot.press("3")
        await until(pilot, lambda: asked("ListNodes"))
        seen, before = asked("ListQueue"), asked("ListNodes")
        await until(pilot, lambda: asked("ListNodes") > before + 1)
        assert asked("ListQueue") == seen


async def test_the_cursor_stays_on_its_session_and_in_sight_whatever_comes_above(dashboard, server):
    for number in range(120):  # more than one message of a watch has
        server.state.add(f"kim/mnist/{number}")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "120 of 120 sessions", "kim/mnist/119 ")
        table = dashboard.screen.table
        assert table.current.name == "kim/mnist/119"
        await pilot.press("down", "up")
        for number in range(120, 180):
            server.state.add(f"kim/mnist/{number}")
        await shows(pilot, "180 of 180 sessions", "kim/mnist/119 ")
        assert table.current.name == "kim/mnist/119"
        await pilot.press("g")
        await shows(pilot, "kim/mnist/179 ")
        assert table.current.name == "kim/mnist/179"


async def test_a_cursor_that_nobody_has_moved_stays_at_the_top(dashboard, server):
    server.state.add("kim/mnist/0")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session", "kim/mnist/0 ")
        for number in range(1, 121):
            server.state.add(f"kim/mnist/{number}")
        await shows(pilot, "121 of 121 sessions", "kim/mnist/120 ")
        assert dashboard.screen.table.current.name == "kim/mnist/120"


async def test_a_change_out_of_sight_draws_nothing_and_one_in_sight_its_line(
    dashboard, server, monkeypatch
):
    monkeypatch.setattr("tui.feed.LOOK_EVERY_S", 1000.0)  # how long answers take is shown
    monkeypatch.setattr("tui.sources.STALE_S", 1000.0)
    oldest, *_, newest = [server.state.add(f"kim/mnist/{number}") for number in range(60)]
    drawn = []
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "60 of 60 sessions", "nothing was reported yet", "nothing was printed")

        async def changed(session, memo):
            server.state.change(session, memo=memo)
            await until(pilot, lambda: received(session.id) == memo)
            seconds = dashboard._seconds
            await until(pilot, lambda: dashboard._seconds > seconds + 1)

        def received(session_id):
            return dashboard.model.row(session_id).session.memo

        await changed(newest, "first")  # its column is there from here on
        monkeypatch.setattr(dashboard, "_display", lambda _, update: drawn.append(update))
        await changed(oldest, "other")
        assert [update for update in drawn if update is not None] == []
        await changed(newest, "again")
        lines = [update for update in drawn if update is not None]
        assert lines
        assert all(len(update.spans) == 1 for update in lines)
        assert "again" in said(dashboard)


@pytest.mark.parametrize(
    "size",
    [
        (20, 5),
        pytest.param((40, 12), marks=pytest.mark.variant),
        (80, 24),
        pytest.param((120, 40), marks=pytest.mark.variant),
        (300, 100),
    ],
)
async def test_every_size_has_room_for_something(dashboard, server, size):
    session = server.state.add("kim/mnist/1", memo="둘째 시도 😀")
    server.state.report(session, "loss", 1.0, step=1)
    async with dashboard.run_test(size=size) as pilot:
        for keys in ("2", "3", "1", "enter", "p", "l"):
            await pilot.press(keys)
            await pilot.pause()
        assert all(len(line) <= 2 * size[0] for line in said(dashboard).splitlines())
        await pilot.resize_terminal(100, 30)
        await shows(pilot, "kim/mnist/1")


async def test_the_frame_is_there_at_once_and_keys_wait_for_what_they_are_for(
    dashboard, server, monkeypatch
):
    for number in range(1, 4):
        server.state.add(f"kim/mnist/{number}")
    may_go_on = threading.Event()
    monkeypatch.setattr("tui.app._import_rest", lambda: may_go_on.wait(WITHIN_S))
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "nsml  test  ○ loading", "1 Sessions", "loading...", "^q Quit")
        await pilot.press("slash", *"mnist/2")
        assert "mnist/2" not in said(dashboard)
        may_go_on.set()
        await shows(pilot, "1 of 3 sessions · filter: mnist/2", "● live")


async def test_one_may_leave_while_it_opens(dashboard, monkeypatch):
    may_go_on = threading.Event()
    monkeypatch.setattr("tui.app._import_rest", lambda: may_go_on.wait(WITHIN_S))
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "loading...")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: not dashboard.is_running)
        may_go_on.set()


def test_what_draws_the_first_frame_imports_neither_grpc_nor_what_fills_it():
    program = "import sys, tui.main, tui.app; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert "tui.screens.opening" in imported
    assert not imported & {"grpc", "numpy", "tui.feed", "tui.screens.modes", "nsml.view.plot"}


async def test_nothing_is_looked_for_while_nothing_happens_and_again_once_something_does(
    dashboard, server, monkeypatch
):
    monkeypatch.setattr("tui.feed.LOOK_EVERY_S", 1000.0)
    monkeypatch.setattr("tui.sources.STALE_S", 1000.0)
    session = server.state.add("kim/mnist/1")

    def is_calm():
        return not dashboard._painting._active.is_set()

    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session", "nothing was reported yet")
        await until(pilot, is_calm)
        server.state.change(session, memo="received")
        await shows(pilot, "received")
        await until(pilot, is_calm)
        dashboard.model.show("another")  # as what is behind a key may, a while after it
        await until(pilot, lambda: dashboard._drawn == dashboard.model.version)
