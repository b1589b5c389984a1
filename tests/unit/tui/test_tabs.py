"""The tabs of one session, on a platform over real gRPC."""

import asyncio
import io
import json

import pytest
from PIL import Image

from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.v1 import artifacts_pb2, checkpoints_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.test_media import show
from tests.unit.nsml.client.contract_server import EPOCH
from tests.unit.tui.conftest import said, shows, until
from tui.model import CheckpointsReceived, Detail, FileReceived, Model, TelemetryReceived
from tui.screens.asking import Confirm
from tui.screens.session import SessionScreen
from tui.sources import State, Topic
from tui.widgets.table import Table
from tui.widgets.text_view import TextView

SIZE = (120, 40)


def put(state, files):
    """A tree of files in the object store; its digest."""
    entries = []
    for path, data in files.items():
        chunks = (ChunkRef(digest_of(data), len(data)),) if data else ()
        entries.append(Entry(path=path, mode=0o644, size=len(data), chunks=chunks))
        state.blobs[digest_of(data)] = data
    manifest = build(entries)
    state.blobs[manifest.digest] = manifest.encode()
    return manifest.digest


def save(state, session, name, data=b"weights", **fields):
    """A checkpoint that is in the object store."""
    one = checkpoints_pb2.Checkpoint(
        name=name,
        session=session.name,
        state=checkpoints_pb2.CHECKPOINT_STATE_DURABLE,
        digest=put(state, {"model.bin": data}),
        size_bytes=len(data),
        file_count=1,
        **fields,
    )
    one.saved_at.seconds = EPOCH
    state.checkpoints.setdefault(session.id, []).append(one)
    return one


async def opened(pilot, key):
    """The screen of the session under the cursor, with the tab of a key in front."""
    await shows(pilot, "1 of 1 session")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SessionScreen))
    await pilot.press(key)
    return pilot.app.screen


async def test_checkpoints_are_asked_for_while_their_tab_is_in_front_and_no_longer(
    dashboard, server
):
    session = server.state.add("kim/mnist/1")
    save(server.state, session, "best\x1b[31m", step=7)
    async with dashboard.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, "d")
        assert "ListCheckpoints" not in server.state.calls
        await pilot.press("M")
        await shows(
            pilot,
            "best␛[31m",
            "Step",
            "1 checkpoint, 7 Bytes, newest first",
            "$ nsml model ls kim/mnist/1",
        )
        assert "\x1b" not in said(dashboard)
        assert (
            dashboard.model.sources[Topic.CHECKPOINTS].state(dashboard.clock.time()) is State.LIVE
        )
        await pilot.press("d")
        await until(pilot, lambda: dashboard.model.shown.details == ())
        await until(pilot, lambda: _listening(dashboard) == set())
        save(server.state, session, "later")
        await pilot.press("M")
        await shows(pilot, "later", "2 checkpoints")
        await pilot.press("escape")
        await until(pilot, lambda: dashboard.screen is not screen)
        await until(pilot, lambda: _listening(dashboard) == set())


def _listening(dashboard):
    return {one.name for one in dashboard.workers if one.group == "details" and one.is_running}


async def test_what_a_tab_shows_is_called_old_while_the_platform_is_away(dashboard, server):
    session = server.state.add("kim/mnist/1")
    save(server.state, session, "best")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "M")
        await shows(pilot, "best", "1 checkpoint")
        await asyncio.to_thread(server.cut)
        await shows(pilot, "best", "unreachable for")
        source = dashboard.model.sources[Topic.CHECKPOINTS]
        await until(pilot, lambda: source.state(dashboard.clock.time()) is not State.DENIED)
        save(server.state, session, "later")
        await asyncio.to_thread(server.restore)
        await shows(pilot, "later", "2 checkpoints")


async def test_keys_for_tabs_that_are_not_there_yet_or_no_more_end_no_dashboard(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, "d")
        await screen.query_one("#tabs").remove()
        await pilot.press("M", "l", "tab", "shift+tab", "right")
        assert screen.command() == ("", "")
        await pilot.press("escape")
        await until(pilot, lambda: dashboard.screen is not screen)


async def test_a_checkpoint_is_fetched_once_that_is_confirmed(
    dashboard, server, tmp_path, monkeypatch
):
    session = server.state.add("kim/mnist/1")
    save(server.state, session, "best")
    monkeypatch.chdir(tmp_path)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "M")
        await shows(pilot, "best")
        await pilot.press("D")
        await shows(pilot, "to ./kim_mnist_1/best/model?", "$ nsml model pull kim/mnist/1 best .")
        await pilot.press("n")
        await until(pilot, lambda: not isinstance(dashboard.screen, Confirm))
        assert list(tmp_path.iterdir()) == [tmp_path / "token"]
        await pilot.press("D", "y")
        fetched = tmp_path / "kim_mnist_1" / "best" / "model" / "model.bin"
        await until(pilot, lambda: fetched.exists() and fetched.read_bytes() == b"weights")
        await until(pilot, lambda: dashboard.actions.fetching == "")
        await pilot.press("D", "y")
        await until(pilot, lambda: any(one.severity == "error" for one in dashboard._notifications))


async def test_artifacts_stand_beside_checkpoints_and_are_fetched_alike(
    dashboard, server, tmp_path, monkeypatch
):
    session = server.state.add("kim/mnist/1")
    save(server.state, session, "best")
    saved = server.state.checkpoints[session.id][0]
    one = artifacts_pb2.Artifact(
        name="report\x1b[31m",
        version=2,
        session=session.name,
        state=artifacts_pb2.ARTIFACT_STATE_DURABLE,
        digest=saved.digest,
        size_bytes=7,
        file_count=1,
    )
    one.saved_at.FromSeconds(saved.saved_at.seconds + 60)
    lost = artifacts_pb2.Artifact(
        name="plots", session=session.name, state="ARTIFACT_STATE_LOST", why_lost="it was removed"
    )
    server.state.artifacts[session.id] = [lost, one]
    monkeypatch.chdir(tmp_path)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "M")
        await shows(
            pilot, "Kind", "report␛[31m@2", "1 checkpoint and 1 artifact, 14 Bytes", "1 lost"
        )
        await shows(pilot, "lost: it was removed")
        assert "\x1b" not in said(dashboard)
        await pilot.press("g", "D")
        await shows(pilot, "$ nsml artifact pull kim/mnist/1")
        await pilot.press("y")
        folder = tmp_path / "kim_mnist_1" / "artifacts"
        await until(pilot, lambda: [*folder.rglob("model.bin")] != [])
        await until(pilot, lambda: dashboard.actions.fetching == "")
        [fetched] = folder.rglob("model.bin")
        assert fetched.read_bytes() == b"weights"


async def test_in_a_browser_nothing_is_fetched(dashboard, server, monkeypatch):
    save(server.state, server.state.add("kim/mnist/1"), "best")
    monkeypatch.setattr(type(dashboard), "is_web", True)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "M")
        await shows(pilot, "best")
        assert "Download" not in said(dashboard)
        await pilot.press("D")
        assert isinstance(dashboard.screen, SessionScreen)
        await pilot.press("enter")
        refusal = "nothing is fetched from here"
        await until(pilot, lambda: any(refusal in one.message for one in dashboard._notifications))
        assert isinstance(dashboard.screen, SessionScreen)


async def test_arguments_are_listed_with_what_else_was_asked_for(dashboard, server):
    spec = pb.SessionSpec(entry="train.py", args=["--lr", "0.1", "--deep", "a\x07b"])
    server.state.add("kim/mnist/1", spec=spec)
    async with dashboard.run_test(size=(80, 24)) as pilot:
        await opened(pilot, "a")
        await shows(
            pilot, " lr  ", "0.1", "a␇b", "train.py", "2 arguments", "nsml command kim/mnist"
        )
        assert "--" not in said(dashboard)


async def test_what_its_programs_reported_is_beside_the_arguments(dashboard, server):
    spec = pb.SessionSpec(entry="train.py", args=["--lr", "0.1"])
    session = server.state.add("kim/mnist/1", spec=spec)
    async with dashboard.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "a")
        await shows(pilot, " lr  ", "1 argument")
        assert "config" not in said(dashboard)
        told = json.dumps(
            {"optimizer": {"name": "adam\x1b[31m", "betas": [0.9, 0.999]}, "amp": True}
        )
        session.reported_config.runs.add(origin="wandb", json=told)
        await pilot.press("d", "a")
        await shows(
            pilot,
            "config",
            "optimizer.name",
            "adam␛[31m",
            "[0.9, 0.999]",
            "true",
            "1 argument · 3 values reported to wandb",
        )
        assert "\x1b" not in said(dashboard)
        await pilot.press("d")
        await until(pilot, lambda: _listening(dashboard) == set())


async def test_the_overview_has_the_arguments_as_they_were_typed(dashboard, server):
    spec = pb.SessionSpec(entry="train.py", args=["--lr", "0.1", "--oom", "two words"])
    server.state.add("kim/mnist/1", spec=spec)
    async with dashboard.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "d")
        await shows(pilot, "args: --lr 0.1 --oom 'two words'")
        assert "note:" not in said(dashboard)


async def test_the_overview_says_which_shells_do_not_read_the_command(dashboard, server):
    spec = pb.SessionSpec(entry="train.py", args=["--stop", "end\n"])
    server.state.add("kim/mnist/1", spec=spec)
    async with dashboard.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "d")
        await shows(pilot, "note: for bash, zsh, ksh or busybox: dash has no $'...'")


async def test_tabs_are_turned_by_keys_and_all_fit_a_narrow_terminal(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, "d")
        titles = [str(tab.label) for tab in screen.query("ContentTab")]
        line = next(one for one in said(dashboard).splitlines() if "Overview" in one)
        assert [one for one in titles if one not in line] == []
        for _ in titles:
            await pilot.press("t")
        await until(pilot, lambda: screen.query_one("#tabs").active == "overview")
        await pilot.press("T")
        await until(pilot, lambda: screen.query_one("#tabs").active != "overview")


def test_what_is_received_of_another_file_or_span_than_is_shown_is_passed_over():
    model = Model()
    model.show("s1")
    model.show_details((Detail(Topic.FILE, "a.py"), Detail(Topic.TELEMETRY, "10m")), 10)
    model.fold(FileReceived("s1", "b.py", ["late"]), 11)
    assert model.shown.detail(FileReceived) is None
    assert model.sources[Topic.FILE].state(11) is State.LOADING
    model.fold(FileReceived("s1", "a.py", ["it"]), 12)
    model.fold(FileReceived("s2", "a.py", ["of another"]), 12)
    assert model.shown.detail(FileReceived).lines == ["it"]
    model.show_details((Detail(Topic.FILE, "b.py"),), 13)
    assert model.shown.detail(FileReceived) is None
    model.fold(TelemetryReceived("s1", "10m", None), 14)
    assert model.shown.detail(TelemetryReceived) is None


@pytest.mark.parametrize("is_other", [False, True])
def test_what_was_known_is_not_called_new_until_it_is_received_again(is_other):
    model = Model()
    model.show("s1")
    detail = Detail(Topic.CHECKPOINTS)
    model.show_details((detail,), 10)
    model.fold(CheckpointsReceived("s1", ["best"]), 11)
    assert model.sources[Topic.CHECKPOINTS].state(12) is State.LIVE
    model.show_details((), 13)
    if is_other:
        model.show("s2")
    model.show_details((detail,), 14)
    assert model.sources[Topic.CHECKPOINTS].state(14) is State.LOADING
    assert (model.shown.detail(CheckpointsReceived) is None) is is_other


async def test_what_devices_do_is_drawn_over_a_span_of_time_that_one_chooses(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "u")
        await shows(pilot, "the last 10m", "nothing was measured", "--window 10m")
        assert dashboard.model.shown.details == (Detail(Topic.TELEMETRY, "10m"),)
        await pilot.press("w", "w")
        await shows(
            pilot,
            "all since it was placed",
            "gpu-1 GPU 0",
            "load",
            "last 4%, mean 6%, peak 8%",
            "█",
        )
        assert dashboard.screen.command() == ("nsml gpumonitor kim/mnist/1", "")
        await pilot.press("w")
        await shows(pilot, "the last 10m", "nothing was measured")


CODE = {
    "train.py": b"import nsml\n\tprint('\x1b[2J')\r\n",
    "lib/[red]net.py": b"class Net: ...\n",
    "data.bin": b"\0\1\2",
    "empty": b"",
    "large.csv": b"1,2,3\n" * 200_000,
}


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_files_of_the_code_are_shown_as_text_where_they_are(dashboard, server, size):
    digest = put(server.state, CODE)
    server.state.add("kim/mnist/1", spec=pb.SessionSpec(bundle_digest=digest))
    async with dashboard.run_test(size=size) as pilot:
        screen = await opened(pilot, "c")
        await shows(pilot, "data.bin", "lib/[red]net.py", "5 files, 1.2 MB")
        is_narrow = size[0] < 100
        for words in (
            "no text: 3 Bytes",
            "empty",
            "too large to show: 1.2 MB of at most 1.0 MB",
            "class Net: ...",
            "import nsml",
        ):
            if is_narrow:
                assert words not in said(dashboard) or words == "empty"
                await pilot.press("enter")
            await shows(pilot, words)
            if is_narrow:
                await pilot.press("escape")
                assert dashboard.screen is screen
            await pilot.press("j")
        await pilot.press("enter")
        await shows(pilot, "        print('␛[2J')␍")
        assert "\x1b" not in said(dashboard)
        assert isinstance(dashboard.focused, TextView)
        await pilot.press("escape")
        assert isinstance(dashboard.focused, Table)
        await pilot.press("escape")
        await until(pilot, lambda: dashboard.screen is not screen)


async def test_a_session_without_code_and_one_whose_code_is_gone_say_so(dashboard, server):
    session = server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "c")
        await shows(pilot, "it was started without code")
        session.spec.bundle_digest = "0" * 64
        server.state.put(session)
        await pilot.press("d", "c")
        await shows(pilot, "the code of kim/mnist/1 cannot be read")
        assert dashboard.model.sources[Topic.FILES].state(dashboard.clock.time()) is State.DENIED


def picture():
    out = io.BytesIO()
    Image.new("RGB", (20, 20), "#ff0000").save(out, "PNG")
    return out.getvalue()


async def test_what_it_showed_is_drawn_or_told_how_to_be_had(dashboard, server):
    session = server.state.add("kim/mnist/1")
    state = server.state
    vectors = {"columns": ["label", "0", "1"], "data": [["oak", 0, 0], ["elm", 9, 9]]}
    show(state, session, "cry", "audio", b"RIFF", 6, "audio/wav")
    show(state, session, "broken", "image", b"\x89PNG no", 5, "image/png")
    show(state, session, "bars", "histogram", b'{"edges":[0,1,2],"counts":[2,4]}', 4)
    show(state, session, "space", "embedding", json.dumps(vectors).encode(), 3)
    show(state, session, "said", "text", b"line\x1b]0;t\x07\nother", 2, "text/plain")
    show(state, session, "cat\x1b[2J", "image", picture(), 1, "image/png")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "I")
        await shows(pilot, "6 media", "cat␛[2J · step 1 · image", "▀▀▀")
        await pilot.press("j")
        await shows(pilot, "line␛]0;t␇", "other", "nsml media kim/mnist/1 said --step 2")
        await pilot.press("j")
        await shows(pilot, "A elm", "B oak")
        await pilot.press("j")
        await shows(pilot, "█████ 4")
        await pilot.press("j")
        await shows(pilot, "it is no image that can be drawn")
        await pilot.press("j")
        await shows(pilot, "a terminal shows no audio", "cry --step 6 --export FOLDER")
        assert "\x1b" not in said(dashboard)
        show(state, session, "later", "text", b"news", 7, "text/plain")
        await shows(pilot, "7 media", "later")
        await pilot.press("g", "enter")
        await shows(pilot, "news")
        assert isinstance(dashboard.focused, TextView)


async def test_without_colours_pictures_are_letters(dashboard, server, monkeypatch):
    show(server.state, server.state.add("kim/mnist/1"), "cat", "image", picture(), 1, "image/png")
    monkeypatch.setattr(type(dashboard), "is_without_colours", True)
    async with dashboard.run_test(size=(80, 24)) as pilot:
        await opened(pilot, "I")
        await until(pilot, lambda: isinstance(dashboard.focused, Table) and dashboard.focused.items)
        await pilot.press("enter")
        await shows(pilot, "::::::")
        assert "▀" not in said(dashboard)


async def test_what_happened_to_it_is_told_with_its_checkpoints_the_newest_first(dashboard, server):
    session = server.state.add("kim/mnist/1", memo="base\x07line")
    session.started_at.seconds = EPOCH - 60
    server.state.put(session)
    save(server.state, session, "best", b"x" * 3)
    async with dashboard.run_test(size=(80, 24)) as pilot:
        await opened(pilot, "e")
        await shows(
            pilot, "submitted", "base␇line", "started", "best, 3 Bytes, durable", "3 events"
        )
        lines = [line for line in said(dashboard).splitlines() if " ago" in line or "best" in line]
        words = [
            next((w for w in ("started", "best", "submitted") if w in one), "") for one in lines
        ]
        assert [one for one in words if one] == ["submitted", "best", "started"]
        await pilot.press("enter")
        await until(
            pilot, lambda: any("submitted" in one.message for one in dashboard._notifications)
        )
