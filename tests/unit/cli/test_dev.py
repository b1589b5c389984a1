"""`nsml dev`: what is asked of the platform, and what cannot be."""

import pytest

from nsml.common.shell import shell_line
from nsml.v1 import sessions_pb2 as pb


def ctrl_c(*_args, **_more):
    raise KeyboardInterrupt


def only_session(state):
    (session,) = state.sessions.values()
    return session


def test_a_session_with_the_folder_and_no_program_of_its_own(nsml, state, project):
    result = nsml("dev", "-g", "2", "--detach", "-m", "look", "--env", "KEY=hidden")
    assert result.stdout == "Session kim/None/1 started\n"
    assert "nsml sh kim/None/1" in result.stderr
    session = only_session(state)
    assert session.spec.argv[0] == "python"
    assert session.spec.bundle_digest in state.blobs
    assert (session.spec.idle_limit.seconds, session.memo) == (7200, "look")
    assert "hidden" not in " ".join(session.command)
    assert nsml("command", "@last").stdout.startswith("nsml dev -g 2 --detach -m look --env KEY")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-D"], "dev"),
        (["-D", "--image", "lab/tools:1", "--no-code"], "dev"),
        (["--jupyter"], "dev --jupyter"),
        (["--code-server"], "dev --code-server"),
        (["--code-server", "--image", "lab/tools:1"], "dev --code-server"),
        (["--stop", "--", "python", "-i", "a b.py"], "dev -- python -i 'a b.py'"),
    ],
)
def test_lists_say_dev_and_not_what_keeps_it_alive(nsml, state, project, monkeypatch, words, shown):
    monkeypatch.setattr("cli.sessions.dev._wait_for", ctrl_c)
    nsml("dev", *words, check=False)
    session = only_session(state)
    session.state = pb.SESSION_STATE_RUNNING
    assert nsml("ps", "--fields", "args", "--no-header").stdout == f"{shown}\n"
    assert nsml("ps", "threading").stdout == ""
    assert nsml("command", "@last").stdout == f"nsml dev {shell_line(words)}\n"


def test_a_program_that_does_the_same_is_not_taken_for_one(nsml, state, project):
    nsml("run", "--argv", "--no-code", "--", "sleep", "infinity")
    assert nsml("ps", "--fields", "args", "--no-header").stdout == "sleep infinity\n"
    only_session(state).command[:] = ["nsml", "dev"]
    only_session(state).spec.argv[:] = ["./mine"]
    assert nsml("ps", "--fields", "args", "--no-header").stdout == "./mine\n"


def test_an_image_of_ones_own_need_have_no_python(nsml, state, project):
    nsml("dev", "-D", "--image", "lab/tools:1", "--idle-limit", "8h", "--no-code")
    session = only_session(state)
    assert list(session.spec.argv) == ["sleep", "infinity"]
    assert session.spec.idle_limit.seconds == 8 * 3600
    assert not session.spec.bundle_digest


@pytest.mark.parametrize(("words", "program"), [([], "python"), (["--image", "lab/tools:1"], "sh")])
def test_code_server_has_an_environment_where_the_image_is_not_ones_own(
    nsml, state, project, monkeypatch, words, program
):
    monkeypatch.setattr("cli.sessions.dev._wait_for", ctrl_c)
    nsml("dev", "--code-server", *words, check=False)
    assert only_session(state).spec.argv[0] == program


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-e", "train.py"], "no program to start"),
        (["-a", "--lr 0.1"], "no program to start"),
        (["-D", "--stop"], "--detach"),
        (["-D", "--", "ls"], "--detach"),
        (["--jupyter", "-D"], "--jupyter"),
        (["--jupyter", "--", "ls"], "--jupyter"),
        (["--port", "8888"], "--jupyter"),
        (["--code-server", "--jupyter"], "exclude"),
        (["--code-server", "-D"], "--code-server"),
        (["--new"], "--sync"),
        (["--no-shell"], "--sync"),
        (["--sync", "--no-shell", "--", "ls"], "--no-shell"),
        (["--sync", "-D"], "--detach"),
        (["--sync", "--no-code"], "--no-code"),
        (["--sync", "--nodes", "2", "-g", "2"], "--nodes"),
        (["--idle-limit", "0"], "no time"),
        (["--idle-limit", "2"], "lacks its unit"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_sent(nsml, state, project, words, why):
    refused = nsml("dev", *words, check=False)
    assert refused.code == 2
    assert why in refused.stderr
    assert not state.sessions


def test_one_that_ends_before_it_runs_is_an_error_that_says_why(nsml, state, project, monkeypatch):
    add = state.add

    def ended(name, _state, **fields):
        session = add(name, pb.SESSION_STATE_FAILED, **fields)
        session.end.message = "the environment could not be made"
        return session

    monkeypatch.setattr(state, "add", ended)
    refused = nsml("dev", check=False)
    assert refused.code == 1
    assert "the environment could not be made" in refused.stderr
    assert "nsml logs kim/None/1" in refused.stderr
