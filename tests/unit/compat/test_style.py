"""`nsml config set style nsml`: what it changes, and what it leaves alone."""

from __future__ import annotations

import json

import pytest

from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.conftest import (
    Nsml,
    environ,
    everything,
    home,
    nsml,
    project,
    running_server,
    server,
    state,
)

__all__ = ["environ", "everything", "home", "nsml", "project", "running_server", "server", "state"]


def is_nsmls(nsml: Nsml, **environment: str) -> bool:
    return "Description" in nsml("ps", **environment).stdout.splitlines()[0]


def test_it_is_a_setting_and_a_variable(nsml: Nsml, everything: pb.Session) -> None:
    assert not is_nsmls(nsml)
    nsml("config", "set", "style", "nsml")
    assert nsml("config", "get", "style").stdout == "nsml\n"
    assert is_nsmls(nsml)
    nsml("config", "set", "style", "")
    assert not is_nsmls(nsml)
    assert nsml("config", "get", "style", check=False).code == 5
    assert is_nsmls(nsml, NSML_STYLE="nsml")


@pytest.mark.parametrize("words", [("config", "set", "style", "old"), ("ps",)])
def test_another_style_is_refused(
    nsml: Nsml, everything: pb.Session, words: tuple[str, ...]
) -> None:
    environment = {} if words[0] == "config" else {"NSML_STYLE": "old"}
    done = nsml(*words, check=False, **environment)
    assert (done.code, done.stdout) == (2, "")
    assert "'old' is not a style" in done.stderr
    assert "try: one of nsml" in done.stderr


@pytest.mark.parametrize("words", [("-o", "wide"), ("-o", "yaml"), ("-o", "csv"), ("-o", "jsonl"), ("-o", "name"), ("--fields", "name,state"), ("-j", "--fields", "name")])  # fmt: skip
def test_other_formats_and_chosen_fields_are_the_same(
    nsml: Nsml, everything: pb.Session, words: tuple[str, ...]
) -> None:
    assert nsml("ps", *words, NSML_STYLE="nsml").stdout == nsml("ps", *words).stdout != ""


def test_an_empty_table_has_its_header_and_an_empty_list_is_a_list(
    nsml: Nsml, state: object
) -> None:
    header, rule = nsml("ps", NSML_STYLE="nsml").stdout.splitlines()
    assert header.split()[0] == "Name"
    assert set(rule) == {"-", " "}
    assert json.loads(nsml("ps", "-j", NSML_STYLE="nsml").stdout) == []
    assert nsml("ps", "--no-header", NSML_STYLE="nsml").stdout == ""


def test_long_arguments_are_whole_on_a_terminal(nsml: Nsml, state: object) -> None:
    words = ["--name", "x" * 300]
    state.add("kim/None/1", spec=pb.SessionSpec(args=words))  # type: ignore[attr-defined]
    assert " ".join(words) in nsml("ps", terminal=True, NSML_STYLE="nsml", COLUMNS="80").stdout


def test_checkpoints_that_cannot_be_listed_leave_the_size_open(
    nsml: Nsml, everything: pb.Session, state: object
) -> None:
    spec = pb.SessionSpec(stage=pb.SESSION_STAGE_PREDICT)
    state.add("lee/mnist/2", spec=spec, checkpoint_count=1)  # type: ignore[attr-defined]
    sizes = {
        line.split()[0]: line.split()[-2]
        for line in nsml("ps", NSML_STYLE="nsml").stdout.splitlines()[2:]
    }
    assert sizes == {"lee/mnist/2": "-", "kim/mnist/1": "Bytes"}


def test_names_act_on_no_terminal(nsml: Nsml, state: object) -> None:
    state.add("kim/None/1", memo="\x1b[2J\x07", spec=pb.SessionSpec())  # type: ignore[attr-defined]
    assert "\x1b" not in nsml("ps", NSML_STYLE="nsml").stdout


def test_errors_as_json_are_the_same(nsml: Nsml, state: object) -> None:
    words = ("model", "ls", "kim/None/9", "-j")
    ours = nsml(*words, check=False)
    styled = nsml(*words, check=False, NSML_STYLE="nsml")
    assert (styled.code, styled.stderr) == (ours.code, ours.stderr)


def test_an_error_without_words_of_nsml_is_said_once(nsml: Nsml, state: object) -> None:
    first, *rest = nsml("nosuch", check=False, NSML_STYLE="nsml").stderr.splitlines()
    assert first.startswith("Error: no such command: 'nosuch'")
    assert not [line for line in rest if "no such command" in line]
