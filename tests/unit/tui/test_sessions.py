"""The list of sessions: its order, its columns, what is marked and copied."""

from nsml.common.clock import SystemClock
from nsml.v1 import projects_pb2, sessions_pb2
from tests.unit.tui.conftest import said, shows, until
from tui.screens.picking import Picker
from tui.screens.sessions import SessionsScreen
from tui.widgets.log_view import LogView

SIZE = (120, 40)


class Turned(SystemClock):
    """A clock that is turned by hand, and goes on."""

    ahead_s = 0.0

    def time(self):
        return super().time() + self.ahead_s


def listed(dashboard):
    return [session.name for session in dashboard.screen.table.items]


def notes(dashboard):
    return [one.message for one in dashboard._notifications]


async def picked(pilot, key, *typed):
    """Choose in the list that a key opens."""
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, Picker))
    await pilot.press(*typed)
    await until(pilot, lambda: isinstance(pilot.app.screen, SessionsScreen))


async def test_sessions_are_sorted_by_what_they_reported_and_the_other_way_round(dashboard, server):
    for number, loss in enumerate((0.5, 0.75, 0.25), 1):
        server.state.add(f"kim/mnist/{number}", summary={"loss": loss})
    server.state.add("kim/mnist/4")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "4 of 4 sessions")
        await picked(pilot, "o", *"loss", "enter")
        await shows(pilot, "loss▾")
        assert [name[-1] for name in listed(dashboard)] == ["2", "1", "3", "4"]
        assert dashboard.screen.table.current.name == "kim/mnist/2"
        await pilot.press("O")
        await shows(pilot, "loss▴")
        assert [name[-1] for name in listed(dashboard)] == ["3", "1", "2", "4"]
        await pilot.press("o", *"qq", "enter")
        await shows(pilot, "is called so: qq")
        await pilot.press("escape")
        await shows(pilot, "loss▴")


async def test_steps_of_submissions_are_listed_by_a_filter_and_counted_above(dashboard, server):
    server.state.add("kim/mnist/1")
    for number in (2, 3):
        spec = {"stage": sessions_pb2.SESSION_STAGE_EVALUATE, "submission_id": "sub1"}
        server.state.add(f"kim/mnist/{number}", spec=spec)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session", "2 steps of submissions: submission:*")
        assert listed(dashboard) == ["kim/mnist/1"]
        await pilot.press("slash", *"submission:*", "enter")
        await shows(pilot, "2 of 3 sessions", "filter: submission:*")
        assert listed(dashboard) == ["kim/mnist/3", "kim/mnist/2"]
        assert "steps of submissions" not in said(dashboard)
        await pilot.press("escape")
        await shows(pilot, "1 of 1 session")


async def test_columns_are_chosen_in_their_order(dashboard, server):
    server.state.add("kim/mnist/1", summary={"val/acc": 0.5}, spec={"args": ["--lr", "0.1"]})

    def titles():
        return [one.title for one in dashboard.screen.table.shown_columns]

    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "val/acc=0.5", "nothing was printed")
        before = titles()
        await picked(pilot, "C", *"acc", "space", "enter")
        await until(pilot, lambda: titles() == [*before, "val/acc"])
        await picked(pilot, "C", *"args", "space", "enter")
        await until(pilot, lambda: "Args" not in titles())
        await picked(pilot, "C", *["space", "down"] * len(titles()), "enter")
        await until(pilot, lambda: titles() == before)


async def test_only_arguments_that_differ_are_listed_and_the_others_said_once(dashboard, server):
    server.state.add("kim/mnist/1", spec={"args": ["--lr", "0.1", "--bs", "64"]})
    server.state.add("kim/mnist/2", spec={"args": ["--lr", "0.2", "--bs", "64"]})
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "Args (differing)", "lr=0.1", "lr=0.2", "all: bs=64")
        assert said(dashboard).count("bs") == 1
        server.state.add("kim/mnist/3", spec={"args": ["--lr", "0.2", "--bs", "32"]})
        await shows(pilot, "lr=0.2 bs=32", "lr=0.2 bs=64")
        assert "all:" not in said(dashboard)


async def test_all_that_are_listed_are_marked_or_a_range_of_them(dashboard, server):
    for number in range(1, 8):
        server.state.add(f"kim/mnist/{number}", memo="even" if number % 2 == 0 else "odd")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "7 of 7 sessions")
        await pilot.press("slash", *"even", "enter", "asterisk")
        await shows(pilot, "3 of 7 sessions", "3 marked")
        await pilot.press("u", "escape")
        await shows(pilot, "7 of 7 sessions")
        await pilot.press("g", "j", "V")
        await shows(pilot, "V marks from there to here")
        await pilot.press("j", "j", "V")
        await shows(pilot, "3 marked")
        assert [one.name[-1] for one in dashboard.screen.chosen()] == ["6", "5", "4"]
        await pilot.press("V", "escape")
        await until(pilot, lambda: "V marks" not in said(dashboard))


async def test_the_line_of_keys_says_that_marking_moves_on(dashboard, server):
    for number in (1, 2, 3):
        server.state.add(f"kim/mnist/{number}")
    async with dashboard.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "3 of 3 sessions", "space Mark ↓")
        await pilot.press("space", "space")
        await shows(pilot, "2 marked")
        assert [one.name[-1] for one in dashboard.screen.chosen()] == ["3", "2"]


async def test_names_and_commands_are_copied(dashboard, server):
    session = server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await pilot.press("c")
        await until(pilot, lambda: dashboard.clipboard == "kim/mnist/1")
        await pilot.press("E", "Y")
        await until(pilot, lambda: dashboard.clipboard == "nsml ps")
        await pilot.press("ctrl+y")
        await until(pilot, lambda: "nothing was done yet" in notes(dashboard))
        await pilot.press("m", *"note", "enter")
        await until(pilot, lambda: server.state.sessions[session.id].memo == "note")
        await pilot.press("ctrl+y")
        await until(pilot, lambda: dashboard.clipboard == "nsml memo kim/mnist/1 note")


async def test_text_is_selected_with_the_mouse_and_copied(dashboard, server):
    server.state.add("kim/mnist/1", memo="둘째 시도")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1", "둘째 시도")
        table = dashboard.screen.table
        await pilot.mouse_down(table, offset=(2, 1))
        await pilot.hover(table, offset=(7, 1))
        await pilot.hover(table, offset=(8, 1))
        await pilot.mouse_up(table, offset=(8, 1))
        await until(pilot, dashboard.screen.get_selected_text)
        assert dashboard.screen.get_selected_text() == "kim/mni"
        await pilot.press("ctrl+c")
        assert dashboard.clipboard == "kim/mni"


async def test_the_mouse_is_let_go_and_taken_again(dashboard, server):
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "● live")
        written = []
        dashboard._driver.write = written.append
        await pilot.press("percent_sign")
        await until(pilot, lambda: any("\x1b[?1003l" in text for text in written))
        await pilot.press("percent_sign")
        await until(pilot, lambda: any("\x1b[?1003h" in text for text in written))


async def test_sessions_are_grouped_by_project_or_user_and_groups_folded(dashboard, server):
    for number, project in enumerate(("vision", "speech", "vision"), 1):
        server.state.add(f"kim/mnist/{number}", project=project)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "3 of 3 sessions")
        await pilot.press("b")
        await shows(pilot, "by project", "▾ speech   1 running", "▾ vision   2 running")
        await pilot.press("G", "left")
        await shows(pilot, "▸ vision   2 running")
        assert "kim/mnist/1" not in said(dashboard)
        assert dashboard.screen.chosen() == []  # the line of a group is no session
        await pilot.press("asterisk")
        await shows(pilot, "1 marked")
        await pilot.press("right")
        await shows(pilot, "▾ vision", "kim/mnist/1")
        await pilot.press("g", "enter")
        await shows(pilot, "▸ speech")
        await pilot.press("b")
        await shows(pilot, "by user", "▾ kim   3 running")
        await pilot.press("b")
        await until(pilot, lambda: "by user" not in said(dashboard))


async def test_the_line_of_a_project_says_how_much_it_may_hold(dashboard, server):
    spec = {"resources": {"gpu_thousandths": 2000}}
    server.state.add("kim/mnist/1", project="vision", spec=spec)
    settings = projects_pb2.ProjectSettings(quota={"gpu_thousandths": 16_000})
    server.state.projects["vision"] = projects_pb2.Project(name="vision", settings=settings)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        assert not server.state.calls.count("ListProjects")
        await pilot.press("b")
        await shows(pilot, "▾ vision   1 running · holds 2 of 16 GPUs")


async def test_the_log_below_the_list_follows_unless_keys_are_for_it(dashboard, server):
    old, new = server.state.add("kim/mnist/1"), server.state.add("kim/mnist/2")
    for number, session in enumerate((old, new), 1):
        server.state.log(session, b"".join(b"line %d of %d\n" % (n, number) for n in range(90)))
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "line 89 of 2")
        log = dashboard.screen.query_one(LogView)
        await pilot.press("tab", "g")
        await shows(pilot, "line 0 of 2")
        server.state.log(new, b"the last\n")
        await until(pilot, lambda: log._lines[-1] == "the last")
        assert "line 0 of 2" in said(dashboard)
        await pilot.press("escape")
        await shows(pilot, "the last")
        await pilot.press("tab", "k")
        assert not log.is_following
        dashboard.look_at(dashboard.model.row(old.id).session, pause_s=0.0, is_plain=True)
        await shows(pilot, "line 89 of 1")


async def test_the_list_grows_older_though_nothing_changes(make_dashboard, server):
    clock = Turned()
    dashboard = make_dashboard(clock=clock)
    session = server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        clock.ahead_s = session.created_at.seconds - clock.time() + 3_600
        await shows(pilot, "an hour ago")
        clock.ahead_s += 3_600
        await shows(pilot, "2 hours ago")
