"""Sessions side by side on the dashboard, with keys pressed, on a platform over real gRPC."""

import asyncio
import json

import pytest

from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.v1 import sessions_pb2 as pb
from tests.unit.tui.conftest import said, shows, until
from tui import appearance
from tui.screens.compare import CompareScreen
from tui.screens.picking import Picker
from tui.screens.session import SessionScreen
from tui.screens.sessions import SessionsScreen
from tui.widgets.charts import Charts
from tui.widgets.diff_view import DiffView

SIZE = (120, 40)


@pytest.fixture
def add(server):
    """Gives the platform a session: its arguments, its loss and its code, of a file."""

    def add(number, args="", loss=None, code=b"", **fields):
        digest = ""
        if code:
            server.state.blobs[digest_of(code)] = code
            refs = (ChunkRef(digest_of(code), len(code)),)
            manifest = build([Entry(path="main.py", mode=0o644, size=len(code), chunks=refs)])
            server.state.blobs[manifest.digest] = manifest.encode()
            digest = manifest.digest
        spec = pb.SessionSpec(entry="main.py", args=args.split(), bundle_digest=digest)
        session = server.state.add(f"kim/mnist/{number}", spec=spec, **fields)
        if loss is not None:
            session.summary.fields["loss"].number_value = loss
            for step in range(10):
                server.state.report(session, "train/loss", loss + 9 - step, step=step)
        return session

    return add


async def compare(pilot, count):
    """Mark the newest sessions and open them side by side."""
    await shows(pilot, f"{count} of {count} sessions")
    await pilot.press(*["space"] * count)
    await shows(pilot, f"{count} marked")
    await pilot.press("x")
    await until(pilot, lambda: isinstance(pilot.app.screen, CompareScreen))


@pytest.fixture
def add_files(server):
    """Gives the platform a session with code of several files, all with the same text."""

    def add_files(number, text, count):
        data = text.encode()
        server.state.blobs[digest_of(data)] = data
        refs = (ChunkRef(digest_of(data), len(data)),)
        manifest = build(
            [
                Entry(path=f"part{place}.py", mode=0o644, size=len(data), chunks=refs)
                for place in range(count)
            ]
        )
        server.state.blobs[manifest.digest] = manifest.encode()
        spec = pb.SessionSpec(entry="part0.py", bundle_digest=manifest.digest)
        return server.state.add(f"kim/mnist/{number}", spec=spec)

    return add_files


def row(app, name):
    """The words of a session's line of the matrix."""
    return next(
        line.split() for line in said(app).splitlines() if f" {name} " in line and "RUN" in line
    )


async def test_what_differs_is_a_matrix_against_a_baseline(dashboard, add):
    add(1, "--lr 0.1 --bs 64", loss=2.0)
    add(2, "--lr 0.2 --bs 64 --amp", loss=1.0)
    add(3, "--lr 0.1 --bs 64", loss=2.0)
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 3)
        await shows(pilot, "bs=64", "3 columns differ", "✓ baseline kim/mnist/3", "lr ", "amp ")
        assert "--" not in said(dashboard)
        await shows(pilot, "$ nsml diff kim/mnist/3 kim/mnist/2 kim/mnist/1")
        assert row(dashboard, "kim/mnist/3")[5:] == ["0.1", "-", "│", "2"]
        assert row(dashboard, "kim/mnist/2")[4:] == ["0.2", "set", "│", "1", "-50%"]
        assert row(dashboard, "kim/mnist/1")[4:] == ["=", "-", "│", "="]
        await pilot.press("j", "b")
        await shows(pilot, "✓ baseline kim/mnist/2")
        assert row(dashboard, "kim/mnist/3")[4:] == ["0.1", "-", "│", "2", "+100%"]
        await pilot.press("o", "o")
        await shows(pilot, "by lr, greatest first")
        lines = said(dashboard).splitlines()
        places = [
            next(
                n for n, line in enumerate(lines) if f" kim/mnist/{one} " in line and "RUN" in line
            )
            for one in (2, 3, 1)
        ]
        assert places == sorted(places)
        await pilot.press("o", "right")
        await shows(pilot, "← 1 more")
        await pilot.press("left")
        await until(pilot, lambda: "← 1 more" not in said(dashboard))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionsScreen))


async def test_what_they_reported_is_in_the_same_charts_with_one_in_front(dashboard, server, add):
    add(1, "--lr 0.1", loss=2.0)
    second = add(2, "--lr 0.2", loss=1.0)
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 2)
        await shows(
            pilot, "train/loss  (step)  20 points", "A bright", "A kim/mnist/2 lr=0.2  last 1"
        )
        await pilot.press("j")
        await shows(pilot, "B bright", "B kim/mnist/1 lr=0.1  last 2")
        segments = [
            one
            for y in range(30)
            for one in dashboard.screen.query_one(Charts).render_line(y)
            if one.text.strip() and one.style and (one.style.dim or one.style.bold)
        ]
        assert any("B" in one.text for one in segments if one.style.bold)
        assert any("A" in one.text for one in segments if one.style.dim)
        await pilot.press("full_stop", "y", "X")
        await shows(pilot, "(relative, log, smooth 0.3)", "x: relative")
        server.state.report(second, "val/loss", 0.5, step=1)
        await shows(pilot, "metric 1/2: ", "val/loss")
        await pilot.press("n")
        await shows(pilot, "metric 2/2: ", "train/loss")
        await pilot.press("N", "comma", "y", "enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await pilot.press("p")
        await shows(pilot, "train/loss  (relative)  10 points")  # the axis of those before
        await pilot.press("escape")
        await shows(pilot, "train/loss  (relative)  20 points")
        await pilot.press("escape")
        await shows(pilot, "train/loss  (step)  10 points")  # the preview has none of that


async def test_the_code_of_one_is_held_against_the_baselines(dashboard, server, add):
    gone = add(1, code=b"x = 9\n")
    add(2, code=b"x = 1\ny\n\x1b[2J\n")
    add(3, code=b"x = 1\nz\n\x1b[2J\n")
    manifest = server.state.blobs.pop(gone.spec.bundle_digest)
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 3)
        await pilot.press("c")
        await shows(pilot, "code of kim/mnist/2", "-z", "+y")  # under the cursor is the baseline
        await pilot.press("j")
        await shows(pilot, "-z", "+y", " ␛[2J", "1 file differs: 1 line added, 1 removed")
        await shows(pilot, "$ nsml diff kim/mnist/3 kim/mnist/2 --code")
        view = dashboard.screen.query_one(DiffView)
        colours = {one.text[:2]: one.style.color for y in range(9) for one in view.render_line(y)}
        removed, added = (
            appearance.style(dashboard, role).color for role in (appearance.BAD, appearance.GOOD)
        )
        assert (colours["-z"], colours["+y"]) == (removed, added)
        await pilot.press("ctrl+r")
        await shows(pilot, "-z", "+y")
        await pilot.press("b")
        await shows(pilot, "code of kim/mnist/3", "+z", "-y")
        await pilot.press("j")
        await shows(pilot, "the code of kim/mnist/1 cannot be read")
        server.state.blobs[gone.spec.bundle_digest] = manifest
        server.state.blobs[digest_of(b"x = 9\n")] = b"x = 8\n"
        await pilot.press("ctrl+r")
        await shows(pilot, "has other content")
        await pilot.press("k", "k")
        await shows(pilot, "-y", "+z")
        await pilot.press("p")
        await shows(pilot, "none of them reported anything")


async def test_two_or_more_are_compared_as_long_as_they_are_there(dashboard, server, add):
    sessions = [add(number, f"--lr {number}") for number in (1, 2)]
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions")
        await pilot.press("x")
        said_so = "mark two sessions or more with space"
        await until(pilot, lambda: any(said_so in one.message for one in dashboard._notifications))
        await pilot.press("space", "x")
        await pilot.pause()
        assert isinstance(dashboard.screen, SessionsScreen)
        await pilot.press("u", "g")
        await compare(pilot, 2)
        await shows(pilot, "1 column differs")
        for count, (session, words) in enumerate(
            zip(reversed(sessions), ("1 session · 1 removed", "esc leads back"), strict=True)
        ):
            with server.state.changed:
                server.state.revision += 1
                server.state.removed[server.state.revision] = session.id
                server.state.changed.notify_all()
            await shows(pilot, words)
            if not count:
                await shows(pilot, "✓ baseline kim/mnist/1")
        await asyncio.to_thread(server.cut)
        await shows(pilot, "✗ offline")


@pytest.mark.parametrize(("size", "count"), [((40, 12), 8), ((80, 24), 50), ((120, 40), 8)])
async def test_many_are_compared_at_every_size(dashboard, add, size, count):
    for number in range(1, count + 1):
        add(
            number,
            f"--lr 0.{number} --layers {number} --width {number} --seed {number}",
            loss=number,
        )
    async with dashboard.run_test(size=size) as pilot:
        await compare(pilot, count)
        await shows(pilot, f"{count} sessions · 5 columns differ", f"kim/mnist/{count}")
        if size[1] < 18:
            await pilot.press("p")
        await shows(pilot, f"train/loss  (step)  {count}0 points")
        if size == (80, 24):
            await shows(pilot, f"A kim/mnist/{count} lr=0.{count} layers=", "letters: above")
        await pilot.press("c")
        await shows(pilot, f"code of kim/mnist/{count - 1}")
        if size[1] < 18:
            await pilot.press("escape")
            await shows(pilot, f" A  kim/mnist/{count}")
        await pilot.press("G")
        await shows(pilot, "kim/mnist/1 ")
        assert all(len(line) <= 2 * size[0] for line in said(dashboard).splitlines())


async def test_lines_of_all_are_named_by_what_differs_where_figures_have_no_room(dashboard, add):
    for number in range(1, 7):
        add(number, f"--bs 8 --lr 0.{number}", loss=number)
    async with dashboard.run_test(size=(80, 24)) as pilot:
        await compare(pilot, 6)
        await shows(pilot, "A lr=0.6 6  B lr=0.5 5  C lr=0.4 4", "F lr=0.1 1")


async def test_one_that_reported_nothing_is_not_said_to_be_bright(dashboard, add):
    add(1, "--lr 0.1", loss=2.0)
    add(2, "--lr 0.2")
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 2)
        await shows(pilot, "A reported nothing", "━ kim/mnist/1 lr=0.1")
        await pilot.press("j")
        await shows(pilot, "B bright")


async def test_keys_are_sought_and_left_out_also_the_next_time(make_dashboard, add, tmp_path):
    add(1, "--lr 0.1 --seed 1 --batch 8")
    add(2, "--lr 0.2 --seed 2 --batch 8")
    file = tmp_path / "kept.json"
    dashboard = make_dashboard(preferences_file=file)
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 2)
        await shows(pilot, "2 columns differ")
        await pilot.press("slash", *"^--l(", "backspace", "enter")
        await shows(pilot, "1 column differs · columns: ^--l")
        await pilot.press("escape")
        await shows(pilot, "2 columns differ")
        await pilot.press("slash", *"^lr", "enter")
        await shows(pilot, "1 column differs · columns: ^lr")
        await pilot.press("escape")
        await shows(pilot, "2 columns differ")
        # What counts without end is no expression, and ends nothing.
        await pilot.press("slash", *"l{99999999999}", "enter")
        await shows(pilot, "no regular expression: ", "no column has l{99999999999")
        assert dashboard.screen.query_one("#keys").has_focus
        await pilot.press("escape")
        await shows(pilot, "2 columns differ")
        await pilot.press("I")
        await until(pilot, lambda: isinstance(dashboard.screen, Picker))
        await pilot.press(*"seed", "space", "enter")
        await shows(pilot, "1 column differs · 1 left out: I")
        assert "seed" not in said(dashboard)
    again = make_dashboard(preferences_file=file)
    async with again.run_test(size=SIZE) as pilot:
        await compare(pilot, 2)
        await shows(pilot, "1 column differs · 1 left out: I")
        await pilot.press("I")
        await until(pilot, lambda: isinstance(again.screen, Picker))
        await pilot.press(*"seed", "space", "enter")
        await shows(pilot, "2 columns differ")


async def test_the_mean_of_all_is_drawn_in_place_of_their_lines(dashboard, add):
    add(1, loss=1.0)
    add(2, loss=3.0)
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 2)
        await shows(pilot, "A bright")
        await pilot.press("A")
        await shows(pilot, "mean of 2  last 2 ", "mean + sd  last 3.414", "mean - sd  last 0.5858")
        assert "bright" not in said(dashboard)
        await pilot.press("A")
        await shows(pilot, "A bright")


async def test_the_code_is_read_file_by_file(dashboard, add_files):
    add_files(1, "x = 1\n" * 30, 3)
    add_files(2, "x = 2\n" * 30, 3)
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 2)
        await pilot.press("c", "j")
        await shows(pilot, "3 files differ", "] [ next and previous file")
        view = dashboard.screen.query_one(DiffView)
        tops = []
        for key in ("right_square_bracket", "right_square_bracket", "left_square_bracket"):
            await pilot.press(key)
            tops.append(view.top)
            line = view.make_line(0).text
            assert "part" in line, line
        assert tops[0] == tops[2] < tops[1]
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert view.top == 0


async def test_long_commands_are_compared_to_their_end(dashboard, add):
    """Lists lack it: what is not here yet is asked for, and told until then."""
    same = " ".join(f"--option-{number} {number}" for number in range(500))
    add(1, f"{same} --last 1")
    add(2, f"{same} --last 2")
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 2)
        await shows(pilot, "1 column differs", "last")
        assert "not complete yet" not in said(dashboard)


async def test_filters_look_into_all_of_long_commands(dashboard, add):
    for number in (1, 2):
        add(number, " ".join(f"--option-{one} {one}" for one in range(500)) + f" --last {number}")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions")
        dashboard.show_sessions("last=2")
        await shows(pilot, "1 of 2 sessions")


async def test_reported_configurations_are_columns(dashboard, server, add):
    for number, rate in ((1, 0.1), (2, 0.2), (3, 0.1)):
        session = add(number)
        told = json.dumps({"optimizer": {"lr": rate}, "seed": 7})
        session.reported_config.runs.add(origin="wandb", json=told)
    async with dashboard.run_test(size=SIZE) as pilot:
        await compare(pilot, 3)
        await shows(pilot, "optimizer.lr", "1 column differs", "1 value of the reported config")
        assert row(dashboard, "kim/mnist/3")[-1] == "0.1"
        assert row(dashboard, "kim/mnist/2")[-1] == "0.2"
        assert row(dashboard, "kim/mnist/1")[-1] == "="
