"""The charts and the log of one session."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.events import MouseScrollDown, MouseScrollUp

from nsml.common.text import width
from nsml.v1 import sessions_pb2 as pb
from tests.unit.tui.conftest import said, shows, until
from tests.unit.tui.story import demo, running
from tui.appearance import Appearance
from tui.screens.picking import Picker
from tui.screens.session import SessionScreen
from tui.widgets.log_view import GOES_ON, LogView, rows

SIZE = (120, 40)


async def opened(pilot, *keys):
    """Open the session under the cursor, and press keys."""
    await shows(pilot, "1 of 1 session")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SessionScreen))
    await pilot.press(*keys)


async def picked(pilot, key, *typed):
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, Picker))
    await pilot.press(*typed)
    await until(pilot, lambda: isinstance(pilot.app.screen, SessionScreen))


async def test_it_is_received_whatever_the_list_looks_at_as_it_is_left():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.model.shown.session_ids)
        other = running(app)[0]
        assert app.model.shown.session_ids != (other.id,)
        app.action_go("queue")
        await until(pilot, lambda: app.screen.is_mounted)
        app.action_go("sessions")
        app.open_session(other)
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        await pilot.press("l")
        await until(pilot, lambda: app.screen.query_one(LogView).max_scroll_y)
        assert app.model.shown.session_ids == (other.id,)


async def test_metrics_are_chosen_by_name(dashboard, server):
    session = server.state.add("kim/mnist/1")
    for name in ("loss", "val/acc", "odd[1]*", "v@vector:a", "x\x1b"):
        server.state.report(session, name, 1.0, step=1)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "p")
        await shows(pilot, "metric 1/5: ")
        await picked(pilot, "i", *"vac", "space", "enter")
        await shows(pilot, "metric 1/1: ", "1 metric chosen: i", "val/acc  (step)")
        assert "loss" not in said(dashboard)
        await until(pilot, lambda: list(dashboard.model.shown.groups) == ["val/acc"])
        for letters, title in (("odd", "odd[1]*  (step)"), ("vect", "v@vector  (step)")):
            await picked(pilot, "i", "space", *letters, "space", "enter")
            await shows(pilot, "metric 1/1: ", title)
        await picked(pilot, "i", "space", "enter")
        await shows(pilot, "metric 1/5: ")


async def test_a_metric_says_which_library_reported_it(dashboard, server):
    session = server.state.add("kim/mnist/1")
    for name, origin in (("loss", "log"), ("acc", "wandb"), ("own", "")):
        server.state.report(session, name, 1.0, step=1, origin=origin)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "p")
        await shows(pilot, "metric 1/3: ")
        await pilot.press("i")
        await until(pilot, lambda: isinstance(dashboard.screen, Picker))
        await shows(pilot, "loss  from the log", "acc  from wandb")
        await pilot.press(*"acc", "space", "enter")
        await until(pilot, lambda: list(dashboard.model.shown.groups) == ["acc"])


async def test_the_metric_that_one_went_on_to_stays_on_another_axis_and_beside_new_ones(
    dashboard, server
):
    session = server.state.add("kim/mnist/1")
    for name in ("loss", "acc", "b", "c", "d"):
        server.state.report(session, name, 1.0, step=1)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "p")
        await shows(pilot, "metric 1/5: ", "acc  (step)")
        await pilot.press("N", "n", "n", "n")
        await shows(pilot, "metric 4/5: c ", "c  (step)")
        await pilot.press("X")
        await shows(pilot, "metric 4/5: ", "c  (relative)")
        server.state.report(session, "val/loss", 1.0, step=1)
        await shows(pilot, "metric 5/6: ", "c  (relative)")
        # Of those that are chosen one goes on among these.
        await picked(pilot, "i", *"acc", "space", "enter")
        await shows(pilot, "metric 1/1: ", "acc  (relative)")
        await pilot.press("n")
        await shows(pilot, "metric 1/1: ", "acc  (relative)")
        await picked(pilot, "i", *"d", "space", "enter")
        await shows(pilot, "metric 1/2: ", "2 metrics chosen: i")
        await pilot.press("n")
        await shows(pilot, "metric 2/2: ", "d  (relative)")
        assert "acc  (relative)" not in said(dashboard)
        await pilot.press("N")
        await shows(pilot, "metric 1/2: ", "acc  (relative)", "d  (relative)")
        await picked(pilot, "i", "space", "down", "space", "enter")
        await shows(pilot, "metric 1/6: ")


@pytest.mark.parametrize("count", [1, 3])
async def test_the_log_of_any_replica_is_shown(dashboard, server, count):
    spec = pb.SessionSpec(entry="main.py", replica_count=count)
    session = server.state.add("kim/mnist/1", spec=spec)
    for rank in range(count):
        server.state.log(session, f"this is rank {rank}\n".encode(), rank=rank)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "l")
        await shows(pilot, "this is rank 0")
        if count == 1:
            await pilot.press("r")
            assert isinstance(dashboard.screen, SessionScreen)
            return
        await shows(pilot, "of rank 0: r chooses another")
        await picked(pilot, "r", *"2", "enter")
        await shows(pilot, "this is rank 2", "of rank 2: r chooses another")
        assert "this is rank 0" not in said(dashboard)
        server.state.log(session, b"more\n", rank=2)
        server.state.log(session, b"hidden\n", rank=0)
        await shows(pilot, "more", "2 lines")
        await picked(pilot, "r", *"rank0", "enter")
        await shows(pilot, "this is rank 0", "hidden")


async def test_a_progress_bar_is_one_line_and_a_long_line_says_that_it_goes_on(dashboard, server):
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"begun\n" + b"".join(b"\r%d%%" % one for one in range(100)))
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "l")
        await shows(pilot, "begun", "99%")
        assert "98%" not in said(dashboard)
        server.state.log(session, b"\r100%\n" + b"x" * 1_500 + b"y\n")
        await shows(pilot, "100%", f"xxx{GOES_ON}", "…xxx", "4 lines")
        assert "99%" not in said(dashboard)


async def test_what_is_typed_right_behind_the_search_is_sought_from_any_tab(dashboard, server):
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"a line\n" * 100 + b"the end\n")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "p", "slash", *"end", "enter")
        await shows(pilot, "the end")
        await pilot.press("g", "n")
        view = dashboard.screen.query_one(LogView)
        await until(pilot, lambda: view.has_found and view.top == view.max_scroll_y)


async def test_how_many_lines_have_what_is_sought_is_said_and_which_of_them_one_is_at(
    dashboard, server
):
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"".join(b"line %d\n" % one for one in range(100)))
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "slash", *"line 9")
        await shows(pilot, "found: 11 lines")
        await pilot.press("enter")  # the last one, which is in sight
        await shows(pilot, "found: 11 of 11")
        await pilot.press("N")
        await shows(pilot, "found: 10 of 11")
        await pilot.press("N", "n", "n")
        await shows(pilot, "found: 11 of 11")
        await pilot.press("g")  # away from it
        await shows(pilot, "found: 11 lines")
        await pilot.press("n")
        await shows(pilot, "found: 1 of 11")
        await pilot.press("n", "n")
        await shows(pilot, "found: 3 of 11")
        server.state.log(session, b"line 9 once more\nno such line\nline 9")
        await shows(pilot, "found: 3 of 13")
        server.state.log(session, b" ends\n")
        await shows(pilot, "103 lines", "found: 3 of 13")
        await pilot.press("n", "slash", *"x", "enter")
        await shows(pilot, "found: none")


async def test_what_is_found_in_a_long_line_is_in_sight(dashboard, server):
    session = server.state.add("kim/mnist/1")
    long = "a" * 400 + "\t漢字 needle " + "b" * 400
    server.state.log(session, f"first needle\n{long}\n{'c' * 700}\n".encode() + b"line\n" * 50)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "l")
        await shows(pilot, "53 lines")  # the search begins at the last of them
        await pilot.press("slash", *"needle", "enter")
        await shows(pilot, "found: 2 of 2", "漢字 needle bbb")
        await pilot.press("N")
        await shows(pilot, "found: 1 of 2", "first needle")
        await pilot.press("n")
        await shows(pilot, "found: 2 of 2", "漢字 needle bbb")


async def test_a_log_is_of_one_attempt_and_says_which_and_how_the_one_before_is_shown(
    dashboard, server
):
    session = server.state.add("kim/mnist/1")
    session.attempt = 1
    server.state.log(session, b"begun\n\r45%|###", attempt=1)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "l")
        await shows(pilot, "45%|###", "1 line")
        assert "attempt" not in said(dashboard)
        server.state.log(session, b"again\n", attempt=2)
        session.attempt = 2
        await shows(pilot, "again", "attempt 2, before it: $ nsml logs kim/mnist/1 --attempt 1")
        assert "45%" not in said(dashboard)
        await shows(pilot, "1 line")


async def test_what_was_found_stays_where_it_is_while_the_beginning_of_a_log_goes():
    class Alone(App):
        def compose(self):
            yield LogView()

    async with Alone().run_test(size=(40, 10)) as pilot:
        view = pilot.app.query_one(LogView)
        lines = [f"{number} {'xo'[number % 2]}" for number in range(100)]
        view.show(lines)
        await until(pilot, lambda: view.allow_vertical_scroll)
        view.action_first()
        view.seek("o")
        view.action_find(1)
        view.action_find(1)
        await until(pilot, lambda: view.found_words == "found: 2 of 50")
        view.show([*lines[2:], "100 o"], first=2)
        await until(pilot, lambda: view.found_words == "found: 1 of 50")
        view.show([*lines[4:], "100 o", "101 x"], first=4)
        await until(pilot, lambda: view.found_words == "found: 49 lines")
        view.show(["o"], first=0)
        await until(pilot, lambda: view.found_words == "found: 1 line")
        view.seek("")
        assert view.found_words == ""


@given(line=st.text("ab 한é\u0301👩\u200d", max_size=40), room=st.integers(2, 9))
def test_rows_are_the_line_and_fit(line, room):
    found = rows(line, room)
    assert "".join(found) == line
    assert all(width(row) <= room for row in found)
    assert len(found) <= max(1, width(line))


async def test_wrapped_lines_are_whole_and_still_followed_sought_and_turned_by_pages(
    dashboard, server
):
    session = server.state.add("kim/mnist/1")
    long = b"".join(b"line %03d " % one + b"x" * 190 + b"tail%03d\n" % one for one in range(60))
    server.state.log(session, long)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "l")
        await shows(pilot, "line 059", GOES_ON)
        assert "tail059" not in said(dashboard)
        await pilot.press("w")
        await shows(pilot, "line 059", "tail059")
        assert GOES_ON not in said(dashboard)
        server.state.log(session, b"y" * 500 + b"newest\n")
        await shows(pilot, "newest", "following")
        await pilot.press("g")
        await shows(pilot, "line 000", "tail000")
        seen = set()
        for _ in range(60):
            seen |= {one for one in range(60) if f"tail{one:03}" in said(dashboard)}
            if len(seen) == 60:
                break
            await pilot.press("pagedown")
            await pilot.pause()
        assert seen == set(range(60))
        await pilot.press("f", "slash", *"tail030", "enter")
        await shows(pilot, "line 030", "tail030")
        await pilot.press("g", "n")
        await until(pilot, lambda: said(dashboard).count("line 030"))
        await pilot.press("f", "escape")
        await until(pilot, lambda: not isinstance(dashboard.screen, SessionScreen))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await pilot.press("l")
        await shows(pilot, "newest", "tail059")
        await pilot.press("w")
        await shows(pilot, "line 059", GOES_ON)


async def test_the_wheel_moves_wrapped_lines_and_what_is_selected_with_them(dashboard, server):
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"".join(b"%03d " % one + b"x" * 300 + b"\n" for one in range(60)))
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "l", "w", "g")
        await shows(pilot, "000 xxx", "60 lines", "paused")
        view = dashboard.screen.query_one(LogView)
        await until(pilot, lambda: view.has_focus and view.is_wrapped and view.scroll_offset.y == 0)
        await until(pilot, lambda: view.allow_vertical_scroll)  # else the wheel moves nothing
        first = view.top
        at = {"x": 1, "y": 1, "delta_x": 0, "delta_y": 0, "button": 0}
        view.post_message(MouseScrollDown(view, **at, shift=False, meta=False, ctrl=False))
        await until(pilot, lambda: view.scroll_offset.y > 0)
        await until(pilot, lambda: view.top - first == 3 * int(view.scroll_offset.y))
        await pilot.press("g")
        await until(pilot, lambda: view.scroll_offset.y == 0 and view.top == first)


def turned(view, kind):
    """The wheel, turned once."""
    at = {"x": 1, "y": 1, "delta_x": 0, "delta_y": 0, "button": 0}
    view.post_message(kind(view, **at, shift=False, meta=False, ctrl=False))


async def test_the_wheel_goes_as_far_up_as_down():
    class Alone(App):
        def compose(self):
            yield LogView()

    async with Alone().run_test(size=(40, 10)) as pilot:
        view = pilot.app.query_one(LogView)
        view.show([str(number) for number in range(100)])
        await until(pilot, lambda: view.allow_vertical_scroll)
        view.action_first()
        for is_wrapped in (False, True):
            view.wrap(is_on=is_wrapped)
            for _ in range(2):
                turned(view, MouseScrollDown)
                await pilot.pause()
            down = view.scroll_offset.y
            turned(view, MouseScrollUp)
            await pilot.pause()
            assert view.scroll_offset.y == down / 2
            turned(view, MouseScrollUp)
            await until(pilot, lambda: view.scroll_offset.y == 0)


async def test_all_of_a_wrapped_line_that_is_higher_than_the_screen_is_seen():
    class Alone(App):
        def compose(self):
            yield LogView()

    high = "".join(f"<{number:02}>" + "." * 16 for number in range(15))
    async with Alone().run_test(size=(21, 6)) as pilot:  # a cell for the bar
        view = pilot.app.query_one(LogView)

        def seen():
            return [line.strip() for line in said(pilot.app).split("\n")]

        def first():
            return view.make_line(0).text.strip()[:4]

        async def goes(press, *rows):
            for row in rows:
                press()
                await until(pilot, lambda: first() == row)  # noqa: B023 - at once

        view.show(["begun", high, "more", "end"])
        view.wrap(is_on=True)
        view.action_first()
        await until(pilot, lambda: view.allow_vertical_scroll and first() == "begu")
        numbers = [f"<{number:02}>" for number in range(10)]
        await goes(view.action_scroll_down, *numbers, "more")
        await goes(view.action_scroll_up, "<09>", "<08>")
        await goes(view.action_page_up, "<02>", "<00>", "begu")
        await goes(view.action_page_down, "<00>", "<06>", "<09>", "more")
        turned(view, MouseScrollUp)
        await until(pilot, lambda: first() == "<08>")
        turned(view, MouseScrollDown)
        await until(pilot, lambda: first() == "more")
        view.seek("<13>")
        view.action_find(-1)
        await until(pilot, lambda: first() == "<09>" and any("<13>" in line for line in seen()))
        view.action_first()
        await until(pilot, lambda: first() == "begu")
        view.show(["begun", high])  # its end is followed
        view.action_follow()
        await until(pilot, lambda: first() == "<09>")
        view.show([high])  # nothing but it, so there is no bar
        await until(pilot, lambda: first() == "<09>")
        await goes(view.action_scroll_up, "<08>")
        await goes(view.action_scroll_down, "<09>")
        view.action_first()
        await until(pilot, lambda: first() == "<00>")


async def test_lines_that_are_the_same_are_not_made_again():
    class Counted(LogView):
        made = 0

        def make_line(self, y):
            self.made += 1
            return super().make_line(y)

    class Alone(App):
        def compose(self):
            yield Counted()

    async with Alone().run_test(size=(40, 10)) as pilot:
        view, lines = pilot.app.query_one(Counted), ["one", "two"]
        view.show(lines)
        await until(pilot, lambda: "two" in said(pilot.app))
        made = view.made
        view.show(list(lines))
        assert view.made == made
        lines.append("three")  # as whoever gave them may
        view.refresh()
        await until(pilot, lambda: view.made > made)
        assert "three" not in said(pilot.app)
        view.show(lines)
        await until(pilot, lambda: "three" in said(pilot.app))


async def test_the_command_that_shows_the_same_is_that_of_what_is_in_front(dashboard, server):
    spec = pb.SessionSpec(entry="main.py", replica_count=2)
    session = server.state.add("kim/mnist/1", spec=spec)
    server.state.add("kim/mnist/2", state=pb.SESSION_STATE_SUCCEEDED)
    for step in range(3):
        server.state.report(session, "loss", 1.0, step=step)
    async with dashboard.run_test(size=SIZE) as pilot:

        async def copies(command):
            dashboard.copy_to_clipboard("")
            await pilot.press("Y")
            await until(pilot, lambda: dashboard._clipboard == command)

        await shows(pilot, "2 of 2 sessions")
        await copies("nsml ps -a")
        await pilot.press("2")
        await shows(pilot, "no queued sessions")
        await copies("nsml queue")
        await pilot.press("1", "G", "enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await copies("nsml status --explain kim/mnist/1")
        await pilot.press("l")
        await copies("nsml logs -f kim/mnist/1")
        await picked(pilot, "r", *"1", "enter")
        await copies("nsml logs -f kim/mnist/1 --rank 1")
        await pilot.press("p")
        await shows(pilot, "loss  (step)")
        await copies("nsml plot kim/mnist/1")
        await picked(pilot, "i", "space", "enter")
        await pilot.press("full_stop", "y", "plus")
        await copies("nsml plot kim/mnist/1 -m loss --smooth 0.3 --log-y --range 0:2")
        await pilot.press("0", "X")
        await copies("nsml plot kim/mnist/1 -m loss -x relative --smooth 0.3 --log-y")
        await pilot.press("escape", "asterisk", "x")
        await shows(pilot, "$ nsml diff kim/mnist/2 kim/mnist/1")
        await copies("nsml diff kim/mnist/2 kim/mnist/1")


async def test_the_table_and_the_session_show_how_far_its_training_is(dashboard, server):
    session = server.state.add("kim/mnist/1")
    session.training.CopyFrom(pb.TrainingProgress(done=3, of=10, unit="epochs", attempt=1))
    session.training.reported_at.GetCurrentTime()
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "Progress", "epoch 3/10")
        await opened(pilot)
        await shows(pilot, "progress: epoch 3/10")
