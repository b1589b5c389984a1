"""Sessions are submitted from the dashboard by the real `nsml run`, to a platform over real gRPC."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import Input

from controlplane.sessions.convert import shorten
from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.v1 import sessions_pb2 as pb
from nsml.view.sessions import repeat_words
from tests.unit.nsml.client.contract_server import TOKEN
from tests.unit.tui.conftest import said, shows, until
from tui.commands import CommandError, Nsml, rerun_of, run_of, understood, without_memo
from tui.screens.output import Output
from tui.screens.sessions import SessionsScreen
from tui.screens.submit import Submit

SIZE = (120, 40)


@pytest.fixture
def submitting(make_dashboard, server, tmp_path, monkeypatch):
    """A dashboard that was started in a folder with a program."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    environ = {
        "NSML_SERVER": server.address,
        "NSML_TOKEN_FILE": str(token),
        "NSML_CONFIG_DIR": str(tmp_path / "config"),
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    return make_dashboard(cli_environ=environ)


async def opened(pilot):
    """Ask for a new run."""
    await shows(pilot, "● live")
    await until(pilot, lambda: isinstance(pilot.app.screen, SessionsScreen))
    await until(pilot, lambda: pilot.app.user)
    await pilot.press("n")
    return await form_line(pilot)


async def form_line(pilot):
    """Where the line is typed, once the form is there."""
    await until(
        pilot, lambda: isinstance(pilot.app.screen, Submit) and pilot.app.screen.query(Input)
    )
    return pilot.app.screen.query_one(Input)


@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("nsml run -e train.py", ""),
        ("nsml run --rerun kim/mnist/3 -g 2", "kim/mnist/3"),
        ("nsml run --rerun=@last", "@last"),
        ("nsml run --rerun", ""),
        ("nsml run -- --rerun 3", ""),
        ("nsml run --rerun 1 --rerun 2", "2"),
        ("nsml run --rerun 'open", ""),
    ],
)
def test_whose_code_a_line_runs(line, of):
    assert rerun_of(line) == of


async def test_of_a_rerun_no_folder_is_sent_and_the_form_says_so(submitting, server):
    server.state.add("kim/mnist/1", spec=pb.SessionSpec(argv=["true"]))
    async with submitting.run_test(size=SIZE) as pilot:
        line = await opened(pilot)
        line.value = "nsml run --rerun kim/mnist/1"
        await shows(pilot, "runs the code of kim/mnist/1; this folder is not sent")
        await pilot.press("enter")
        await shows(pilot, "Session kim/None/1")
        (_, made) = server.state.sessions.values()
        assert made.origin.name == "kim/mnist/1"
        await pilot.press("escape", "n")
        await form_line(pilot)


async def test_a_folder_is_submitted_by_what_the_form_says(submitting, server):
    async with submitting.run_test(size=SIZE) as pilot:
        line = await opened(pilot)
        await shows(pilot, "(train.py)", "--gpu-model A100", "enter submits")
        assert line.value == "nsml run -e train.py"
        await pilot.press(*" -m first", "enter")
        await shows(pilot, "$ nsml run -e train.py -m first", "Session kim/None/1", "Y copies")
        assert "\x1b" not in said(submitting)
        await pilot.press("escape")
        await shows(pilot, "kim/None/1", "first", "1 of 1 session")
        (made,) = server.state.sessions.values()
        assert (made.spec.entry, made.memo) == ("train.py", "first")


async def test_it_begins_with_the_command_of_ones_own_session_alone(submitting, server):
    command = ["nsml", "run", "-e", "train.py", "-m", "two words", "--", "-m", "two"]
    server.state.add("kim/mnist/1", command=command)
    server.state.add("lee/mnist/1", command=["nsml", "run", "-e", "others.py"])
    async with submitting.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions")
        line = await opened(pilot)
        assert line.value == "nsml run -e train.py"
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(submitting.screen, SessionsScreen))
        await pilot.press("j")
        assert (await opened(pilot)).value == "nsml run -e train.py -- -m two"


async def test_a_long_command_is_all_repeated(submitting, server):
    """Lists lack its end, which is asked for before the form opens."""
    numbers = [str(number) for number in range(2_000)]
    command = ["nsml", "run", "-e", "train.py", "--", *numbers]
    short = pb.Session()
    short.CopyFrom(server.state.add("kim/mnist/1", command=command))
    shorten(short)
    with pytest.raises(ValueError, match="the end of its command is not here"):
        repeat_words(short)
    async with submitting.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await until(pilot, lambda: pilot.app.user)
        submitting.prompt.submit(short)
        line = (await form_line(pilot)).value
        assert line == f"nsml run -e train.py -- {' '.join(numbers)}"


async def test_what_is_wrong_is_told_and_nothing_is_submitted(submitting, server):
    async with submitting.run_test(size=SIZE) as pilot:
        line = await opened(pilot)
        line.value = "rm -rf /"
        await pilot.press("enter")
        await shows(pilot, "this is no nsml run")
        line.value = "run 'open"
        await pilot.press("enter")
        await shows(pilot, "a quote that nothing closes")
        line.value = "nsml run gone.py"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(submitting.screen, Output))
        await shows(pilot, "gone.py", "exit code 2")
        assert not server.state.sessions
        await pilot.press("escape")
        assert (await opened(pilot)).value == "nsml run gone.py"


async def test_lines_that_were_submitted_come_again(submitting):
    async with submitting.run_test(size=SIZE) as pilot:
        line = await opened(pilot)
        line.value = "nsml run -e train.py -m first"
        await pilot.press("enter")
        await shows(pilot, "Y copies")
        await pilot.press("escape")
        line = await opened(pilot)
        assert line.value == "nsml run -e train.py"
        await pilot.press("up")
        assert line.value == "nsml run -e train.py -m first"
        await pilot.press("down")
        assert line.value == "nsml run -e train.py"


async def test_without_a_program_to_run_it_says_what_to_do(dashboard, server):
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "0 of 0 sessions", "New run")
        await pilot.press("n")
        await until(pilot, lambda: dashboard._notifications)
        (told,) = [one.message for one in dashboard._notifications]
        assert told == "nothing is submitted from here: nsml run does it in a terminal"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_a_line_that_is_proposed_means_its_words_again(words):
    line = shell_line(["nsml", "run", *words])
    assert visible(line) == line
    assert run_of(line).words == ("run", *words)


@given(st.lists(st.text()), st.text(), st.lists(st.text()))
def test_a_memo_is_left_out_wherever_it_stands(before, memo, program):
    words = ["-e", *(word for word in before if not word.startswith("-"))]
    for flags in (["-m", memo], ["--memo", memo], [f"--memo={memo}"]):
        found = without_memo([*words, *flags, "-a", "-m x", "--", *program])
        assert found == [*words, "-a", "-m x", "--", *program]


def test_only_a_run_is_one():
    assert run_of("run -g 0.5").words == ("run", "-g", "0.5")
    for text in ("", "stop x", "q", "nsml", "ps", "nsml ps"):
        with pytest.raises(CommandError):
            run_of(text)
    assert isinstance(understood("nsml run"), Nsml)
