"""The table of the flags of `run`: complete, and one place for what a flag asks for."""

from __future__ import annotations

import click
import pytest

from cli.sessions.run import run
from nsml.spec.run_flags import FLAGS, Flag, asked_record, asked_rows, asked_words, put_all
from nsml.spec.variables import HIDDEN
from nsml.v1 import sessions_pb2 as pb

PROGRAM = {"entry", "args", "argv", "bundle_digest"}
"""What a command line names without a flag of its own."""
UNASKED = {"lost_after"}
"""What only other clients ask for."""


def flag(name: str) -> Flag:
    return next(one for one in FLAGS if name in one.names)


def asked(**given: object) -> pb.Session:
    """A session as a request asks for it."""
    nothing = {one.parameter: () if one.kind.is_repeated else None for one in FLAGS}
    request = pb.CreateSessionRequest()
    put_all(request, {**nothing, "queue": True, **given})
    return pb.Session(spec=request.spec, memo=request.memo, project=request.project, owner="kim")


def test_every_field_of_a_spec_has_a_flag() -> None:
    fields = {one.name for one in pb.SessionSpec.DESCRIPTOR.fields}
    have = {one.field.split(".")[1] for one in FLAGS if one.field.startswith("spec.")}
    assert fields - have == PROGRAM | UNASKED


def test_every_flag_is_an_option_of_the_command() -> None:
    options = {one.name: one for one in run.params if isinstance(one, click.Option)}
    for one in FLAGS:
        assert options[one.parameter].help == one.help


def test_what_is_asked_for_is_repeated_recorded_and_compared() -> None:
    session = asked(
        dataset=("mnist@3", "digits"),
        gpus=500,
        gpu_model="A100|H100",
        memory=24 * 10**9,
        processes=64,
        memo="-x",
        nodes=2,
        env={"B": "2", "A": HIDDEN},
        secret=(("TOKEN", "TOKEN"), ("TOKEN", "TOKEN"), ("KEY", "HF")),
        refresh=True,
        time_limit=0.1,
        priority="low",
        preemptible=True,
        project="vision",
        network="host",
        queue=False,
    )
    assert asked_words(session) == [
        *("-d", "mnist@3", "-d", "digits", "-g", "0.5", "--gpu-model", "A100|H100"),
        *("--memory", "24G", "--processes", "64", "--memo=-x", "--nodes", "2"),
        *("--env", "A", "--env", "B=2", "--secret", "TOKEN", "--secret", "KEY=HF", "--refresh"),
        *("--time-limit", "0.1s", "--network", "host", "--priority", "low", "--preemptible"),
        *("--project", "vision", "--no-queue"),
    ]
    record = asked_record(session)
    assert record["limits"] == {"shm_bytes": None, "disk_bytes": None, "processes": 64}
    assert (record["gpus"], record["time_limit_s"], record["grace_s"]) == (0.5, 0.1, None)
    assert (record["priority"], record["network"], record["pod"]) == ("low", "host", None)
    rows = asked_rows(session)
    assert rows["priority"] == "low, preemptible"
    assert list(rows)[-4:] == ["env A", "env B", "secret TOKEN", "secret HF"]


def test_nothing_is_repeated_of_what_nobody_asked_for() -> None:
    session = asked(gpus=1000, nodes=1, retry=0, project="kim")
    assert asked_words(session) == ["-g", "1"]
    assert not session.spec.HasField("limits")
    idle = asked(gpus=0, priority="idle", preemptible=True)
    assert asked_words(idle) == ["-g", "0", "--priority", "idle"]


@pytest.mark.parametrize("name", ["--priority", "--network"])
def test_a_value_of_a_newer_platform_is_shown_as_its_number(name: str) -> None:
    session = pb.Session()
    setattr(session.spec, name[2:], 77)
    assert flag(name).text(session) == "77"
