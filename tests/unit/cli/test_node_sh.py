"""`nsml node sh` against a platform whose nodes have scripted programs; what it shares with `nsml sh` is in test_sh.py."""

import pytest

from nsml.v1 import nodes_pb2
from tests.unit.cli.test_sh import BROKEN, done


@pytest.fixture
def programs(state):
    state.nodes = [nodes_pb2.Node(name="gpu-1")]
    return state.programs


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (["exit", "7"], 7, b""),
        (["killed", "9"], 137, b""),
        (["lost"], 255, b"error: how the program ended is unknown\n"),
        (
            ["ls | wc"],
            127,
            b"nsml: cannot start it\r\n  try: nsml node sh gpu-1 -- sh -c 'ls | wc'\n",
        ),
    ],
)
def test_the_exit_code_is_the_programs(environ, programs, program, code, said):
    result = done(environ, "node", "sh", "gpu-1", "--", *program)
    assert (result.returncode, result.stdout, result.stderr) == (code, b"", said)


def test_streams_are_bytes_and_a_part_is_never_the_whole(environ, programs):
    given = bytes(range(256)) * 300
    result = done(environ, "node", "sh", "gpu-1", "--", "cat", stdin=None, input=given)
    assert (result.returncode, result.stdout, result.stderr) == (0, given, b"")
    result = done(environ, "node", "sh", "gpu-1", "--", "broken")
    assert (result.returncode, result.stdout, result.stderr) == (255, b"a part\n", BROKEN)


def test_what_is_started_and_where(nsml, programs):
    programs.refusal = "no"
    result = nsml("node", "sh", "gpu-1", "ls", "-la", "-t", check=False)
    [start], [target] = programs.started, programs.targets
    assert list(start.argv) == ["ls", "-la", "-t"]
    assert not start.HasField("terminal")
    assert not start.environment
    assert (target.node, target.service) == ("gpu-1", "agent.node-program")
    assert (result.code, result.stdout) == (6, "")


def test_a_node_that_refuses_or_is_not_there(nsml, programs, state):
    state.no_node_shell.add("gpu-1")
    refused = nsml("node", "sh", "gpu-1", "--", "true", check=False)
    assert (refused.code, refused.stdout) == (6, "")
    assert "node gpu-1 refuses this" in refused.stderr
    assert "why: node_shell is off" in refused.stderr
    missing = nsml("node", "sh", "gpu-2", "--", "true", check=False)
    assert (missing.code, missing.stdout) == (5, "")
    assert programs.started == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpu-1", "-t"], "-t needs a terminal as stdin"),
        (["gpu-1", "--rank", "1"], "no such option: --rank"),
        ([], "NODE"),
    ],
)
def test_lines_that_are_refused(nsml, programs, words, said):
    result = nsml("node", "sh", *words, check=False)
    assert (result.code, result.stdout) == (2, "")
    assert said in result.stderr
    assert programs.started == []
