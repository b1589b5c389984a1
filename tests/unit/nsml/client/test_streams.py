"""Streams over connections that break: nothing lost, nothing doubled."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from nsml.client import errors
from nsml.client.streams import (
    _with_report,
    look_again,
    read_logs,
    read_metrics,
    read_series,
    wait_until,
    watch_sessions,
)
from nsml.common.clock import SystemClock
from nsml.v1 import sessions_pb2 as pb


async def restart(server):
    await asyncio.to_thread(server.cut)
    await asyncio.to_thread(server.restore)


async def test_logs_survive_a_restart_of_the_server(client, server):
    session = server.state.add("kim/mnist/1")
    text = b"".join(b"line %d\n" % number for number in range(200))
    server.state.log(session, text[:700])
    links = []
    got = bytearray()
    pieces = read_logs(client, session.id, follow=True, on_link=links.append)
    async with aclosing(pieces):
        async for piece in pieces:
            assert piece.offset == len(got)
            got += piece.data
            if len(got) == 700:
                await restart(server)
                server.state.log(session, text[700:])
                server.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    assert bytes(got) == text
    assert not links[0].is_live
    assert links[-1].is_live


async def test_logs_go_on_with_the_next_attempt(client, server):
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"first attempt\n")
    got = {1: b"", 2: b""}
    pieces = read_logs(client, session.id, follow=True)
    async with asyncio.timeout(60), aclosing(pieces):
        async for piece in pieces:
            got[piece.attempt] += piece.data
            if got == {1: b"first attempt\n", 2: b""}:
                await restart(server)
                server.state.change(session, attempt=2)
                server.state.log(session, b"second\n", attempt=2)
            elif got[2] == b"second\n":  # while it runs
                server.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    assert got == {1: b"first attempt\n", 2: b"second\n"}


async def test_no_other_attempt_follows_one_that_was_asked_for(client, server):
    session = server.state.add("kim/mnist/1")
    server.state.change(session, attempt=2)
    server.state.log(session, b"first attempt\n")
    server.state.log(session, b"second\n", attempt=2)
    got = b""
    pieces = read_logs(client, session.id, attempt=1, follow=True)
    async with asyncio.timeout(60), aclosing(pieces):
        async for piece in pieces:
            got += piece.data
            if got == b"first attempt\n":
                await restart(server)
                server.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    assert got == b"first attempt\n"


async def test_a_tail_is_asked_for_once(client, server):
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"a\nb\nc\nd\n")
    got = bytearray()
    pieces = read_logs(client, session.id, tail_lines=2, follow=True)
    async with aclosing(pieces):
        async for piece in pieces:
            got += piece.data
            if got == b"c\nd\n":
                await restart(server)
                server.state.log(session, b"e\n")
                server.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    assert got == b"c\nd\ne\n"


async def test_metrics_survive_a_restart_of_the_server(client, server):
    session = server.state.add("kim/mnist/1")
    for step in range(7):
        server.state.report(session, "loss", 1 / (step + 1), step=step)
    steps = []
    stream = read_metrics(client, session.id, follow=True)
    async with aclosing(stream):
        async for answer in stream:
            steps += [point.step for point in answer.points]
            if len(steps) == 7:
                await restart(server)
                server.state.report(session, "loss", 0.1, step=7)
                server.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    assert steps == list(range(8))


async def test_points_without_a_mark_behind_them_come_once(client, server):
    session = server.state.add("kim/mnist/1", state=pb.SESSION_STATE_SUCCEEDED)
    for step in range(7):
        server.state.report(session, "loss", 1.0, step=step)
    server.state.breaks_off = 2
    steps = []
    async with aclosing(read_metrics(client, session.id)) as answers:
        async for answer in answers:
            steps += [point.step for point in answer.points]
    assert (steps, server.state.breaks_off) == (list(range(7)), 0)


async def test_series_are_read_session_by_session(client, server):
    sessions = [server.state.add(f"kim/mnist/{number}") for number in (1, 2)]
    for session in sessions:
        for step in range(3):
            server.state.report(session, "loss", 1 / (step + 1), step=step)
    request = pb.ReadSeriesRequest(sessions=[one.id for one in sessions], width=10)
    answers = await read_series(client, request)
    assert [answer.session_id for answer in answers] == [one.id for one in sessions]
    assert [list(answer.series[0].x_low) for answer in answers] == [[0, 1, 2]] * 2


async def test_a_watch_survives_a_restart_and_misses_nothing(client, server):
    first = server.state.add("kim/mnist/1")
    seen = []
    stream = watch_sessions(client, pb.SessionFilter())
    async with aclosing(stream):
        async for answer in stream:
            seen += [(s.name, s.state, s.memo) for s in answer.changed]
            if len(seen) == 1:
                assert answer.reset
                await asyncio.to_thread(server.cut)
                server.state.change(first, memo="while away")
                await asyncio.to_thread(server.restore)
            elif seen[-1][2] == "while away":
                assert not answer.reset
                await restart(server)
                server.state.change(first, state=pb.SESSION_STATE_STOPPED, memo="end")
            elif seen[-1][2] == "end":
                break
    assert [memo for _, _, memo in seen] == ["", "while away", "end"]


async def test_a_watch_that_begins_anew_has_the_ends_that_the_new_list_lacks(client, server):
    """The control plane was started again, and knows no more of those that ended before."""
    stays, ends, goes = (server.state.add(f"kim/mnist/{number}") for number in range(3))
    steps = []
    async with asyncio.timeout(60), aclosing(watch_sessions(client, pb.SessionFilter())) as stream:
        async for answer in stream:
            states = {one.id: one.state for one in answer.changed}
            steps.append((answer.reset, states, set(answer.removed)))
            if len(steps) == 1:
                await asyncio.to_thread(server.cut)
                server.state.change(ends, state=pb.SESSION_STATE_FAILED)
                server.state.add("kim/mnist/3")
                del server.state.sessions[goes.id]
                server.state.oldest_revision = server.state.revision
                await asyncio.to_thread(server.restore)
            elif len(steps) == 3:
                server.state.change(stays, memo="and so on")
            elif len(steps) == 4:
                break
    reset, after, later = steps[1:]
    assert reset[0]
    assert stays.id in reset[1]
    assert ends.id not in reset[1]
    assert after == (False, {ends.id: pb.SESSION_STATE_FAILED}, {ends.id, goes.id})
    assert later[1].keys() == {stays.id}


async def test_reports_change_sessions_as_they_were_told_last(client, server):
    first, second = server.state.add("kim/mnist/1"), server.state.add("kim/mnist/2")
    stream = watch_sessions(client, pb.SessionFilter(), with_reports=True)
    known = {}

    async def until(holds):
        async for answer in stream:
            known.update({one.id: one for one in answer.changed})
            if holds():
                return

    def step(session):
        return known[session.id].summary.fields["step"].number_value

    async with aclosing(stream), asyncio.timeout(60):
        await until(lambda: len(known) == 2)
        before = known[first.id]
        server.state.summarize(first, step=1, loss=0.5)
        await until(lambda: step(first) == 1)
        assert not before.HasField("summary")  # whoever holds it has it as it was
        assert list(known[first.id].summary_names) == ["step", "loss"]
        server.state.change(first, memo="x")
        server.state.summarize(second, step=7)
        await until(lambda: step(second) == 7 and known[first.id].memo == "x")
        server.state.summarize(first, step=2)
        await until(lambda: step(first) == 2)
        assert known[first.id].memo == "x"
        # What was reported while nobody listened is heard once the connection is back.
        await asyncio.to_thread(server.cut)
        server.state.summarize(second, step=8)
        await asyncio.to_thread(server.restore)
        await until(lambda: step(second) == 8)


async def test_a_report_of_a_session_that_is_not_known_makes_none(client, server):
    server.state.add("kim/mnist/1")
    stream = watch_sessions(client, pb.SessionFilter(project="vision"), with_reports=True)
    async with aclosing(stream), asyncio.timeout(60):
        assert not (await anext(stream)).changed
        server.state.summarize(server.state.add("kim/mnist/2"), step=1)
        assert not (await anext(stream)).changed


@pytest.mark.parametrize("is_older", [False, True])
async def test_a_watch_of_a_project_shows_no_other(client, server, is_older):
    server.state.knows_no_project = is_older
    server.state.add("kim/mnist/1")
    server.state.add("kim/mnist/2", project="vision")
    stream = watch_sessions(client, pb.SessionFilter(project="vision"))
    async with aclosing(stream):
        first = await anext(stream)
        assert ([one.name for one in first.changed], first.reset) == (["kim/mnist/2"], True)
        server.state.add("kim/mnist/3")
        server.state.add("kim/mnist/4", project="vision")
        seen = []
        while not seen:
            seen = [one.name for one in (await anext(stream)).changed]
    assert seen == ["kim/mnist/4"]


async def test_patience_ends(client, server):
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"x")
    pieces = read_logs(client, session.id, follow=True, patience_s=0.3)

    async def read():
        async for _ in pieces:
            await asyncio.to_thread(server.cut)

    with pytest.raises(errors.Unavailable):
        await read()


async def test_what_is_not_there_is_not_waited_for(client):
    pieces = read_logs(client, "kim/mnist/1", follow=True)
    with pytest.raises(errors.NotFound):
        await anext(pieces)


async def test_waiting_for_an_end(client, server):
    session = server.state.add("kim/mnist/1")
    states = []

    def reached(seen):
        states.append(seen.state)
        if len(states) == 2:  # the watch runs: only now may it end
            threading.Thread(
                target=server.state.change,
                args=(session,),
                kwargs={"state": pb.SESSION_STATE_FAILED},
            ).start()
        return False

    ended = await wait_until(client, session.id, reached)
    assert ended.state == pb.SESSION_STATE_FAILED


async def test_an_end_before_the_watch_began_is_found(client, server):
    session = server.state.add("kim/mnist/1")

    def reached(seen):
        server.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
        return False

    ended = await asyncio.wait_for(wait_until(client, session.id, reached), 60)
    assert ended.state == pb.SESSION_STATE_SUCCEEDED


async def test_who_looks_again_waits_for_a_connection_that_broke(client, server):
    session = server.state.add("kim/mnist/1")
    links, is_told = [], asyncio.Event()

    def on_link(link):
        links.append(link.is_live)
        is_told.set()

    async def come_back():
        await is_told.wait()
        server.state.change(session, memo="later")
        await asyncio.to_thread(server.restore)

    back = asyncio.create_task(come_back())
    looking = look_again(
        client, lambda: client.sessions.get(session.id), every_s=0.01, on_link=on_link
    )
    async with asyncio.timeout(60), aclosing(looking):
        assert (await anext(looking)).memo == ""
        await asyncio.to_thread(server.cut)
        assert (await anext(looking)).memo == "later"
    await back
    assert (links[0], links[-1]) == (False, True)


async def test_a_platform_that_is_away_for_an_hour_is_still_waited_for(client):
    pauses = []

    class Clock(SystemClock):
        async def sleep(self, seconds):
            pauses.append(seconds)

    client.clock = Clock()
    found = iter(range(2000))

    async def look():
        if (number := next(found)) not in {0, 1999}:
            raise errors.Unavailable("gone")
        return number

    async with aclosing(look_again(client, look, every_s=1.0)) as looking:
        assert [await anext(looking), await anext(looking)] == [0, 1999]
    assert max(pauses) <= 2.0


async def test_a_first_look_that_finds_nobody_is_no_silence(client, server):
    await asyncio.to_thread(server.cut)
    looking = look_again(client, client.nodes.every, every_s=0.01)
    async with aclosing(looking):
        with pytest.raises(errors.Unavailable):
            await anext(looking)
    await asyncio.to_thread(server.restore)


def test_a_report_has_the_time_of_a_newer_checkpoint_and_never_of_an_older_one():
    session = pb.Session()
    assert not _with_report(session, pb.SessionReport(saved_at={"seconds": 9})).HasField("progress")
    session.progress.saved_at.seconds = 5
    for reported, seen in ((9, 9), (3, 5)):
        report = pb.SessionReport(saved_at={"seconds": reported})
        assert _with_report(session, report).progress.saved_at.seconds == seen
    assert session.progress.saved_at.seconds == 5


def test_a_report_has_the_whole_progress_of_a_training():
    session = pb.Session(training={"done": 1, "of": 2, "unit": "epochs"})
    report = pb.SessionReport(training={"done": 2, "of": 2, "unit": "epochs"})
    assert _with_report(session, report).training == report.training
    assert not _with_report(session, pb.SessionReport()).HasField("training")
    assert session.training.done == 1
