"""The table of the flags of `run`: complete, and one place for what a flag asks for."""

from __future__ import annotations

import click
import pytest

from cli.sessions.run import run
from nsml.spec.run_flags import (
    FLAGS,
    Flag,
    Unreadable,
    asked_record,
    asked_rows,
    asked_words,
    put_again,
    put_all,
)
from nsml.spec.variables import HIDDEN
from nsml.v1 import sessions_pb2 as pb

PROGRAM = {"entry", "args", "argv", "bundle_digest", "needs_conda"}
"""What a command line names without a flag of its own, and what follows from its folder."""
UNASKED = {"lost_after", "initial_checkpoint", "environment_lock", "stage"}
"""What only other clients, or other commands, ask for."""
ANSWERED = {"keep_files_by_default", "submission_id"}
"""What only answers have."""


def flag(name: str) -> Flag:
    return next(one for one in FLAGS if name in one.names)


def told(**given: object) -> dict[str, object]:
    """What a command line that says this gives for each flag."""
    nothing = {one.parameter: () if one.kind.is_repeated else None for one in FLAGS}
    return {**nothing, "queue": True, **given}


def asked(**given: object) -> pb.Session:
    """A session as a request asks for it."""
    request = pb.CreateSessionRequest()
    put_all(request, told(**given))
    return pb.Session(spec=request.spec, memo=request.memo, project=request.project, owner="kim")


def test_every_field_of_a_spec_has_a_flag() -> None:
    fields = {one.name for one in pb.SessionSpec.DESCRIPTOR.fields}
    have = {one.field.split(".")[1] for one in FLAGS if one.field.startswith("spec.")}
    assert fields - have == PROGRAM | UNASKED | ANSWERED


def test_every_flag_is_an_option_of_the_command() -> None:
    options = {one.name: one for one in run.params if isinstance(one, click.Option)}
    for one in FLAGS:
        assert options[one.parameter].help == one.help


def test_what_is_asked_for_is_repeated_recorded_and_compared() -> None:
    session = asked(
        dataset=("mnist@3", "digits", "mnist@1=old"),
        stream=("images@2",),
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
        *("-d", "mnist@3", "-d", "digits", "-d", "mnist@1=old", "--stream", "images@2"),
        *("-g", "0.5", "--gpu-model", "A100|H100"),
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


ONE: dict[str, object] = {
    "dataset": ("mnist@3", "kin@gold"),
    "stream": ("images@2",),
    "allow_changed": True,
    "gpus": 500,
    "gpu_model": "A100",
    "cpus": 2000,
    "memory": 24 << 30,
    "shm_size": 1 << 30,
    "disk": 1 << 31,
    "processes": 64,
    "launch": "torchrun",
    "memo": "one",
    "label": (("stage", "dev"), ("try", "1")),
    "set": (("lr", "0.5", None), ("lr", "0.25", 5000)),
    "metric": ("auto",),
    "echo": "wandb",
    "no_echo": None,
    "after": (("kim/mnist/1", False), ("@last", True)),
    "nodes": 2,
    "env": {"A": "1", "B": "2"},
    "secret": (("TOKEN", "TOKEN"),),
    "image": "a/b:1",
    "dockerfile": "Dockerfile",
    "build_arg": (("A", "1"), ("B", "2 3")),
    "refresh": True,
    "time_limit": 60.0,
    "idle_limit": 60.0,
    "grace": 5.0,
    "retry": 3,
    "keep": "best:3:val/acc:max last:2",
    "output_dataset": ("kim/predictions", "labels=out/labels"),
    "keep_files": True,
    "no_keep_files": True,
    "pod": "p1",
    "network": "host",
    "priority": "low",
    "preemptible": True,
    "project": "vision",
    "queue": False,
}
OTHER: dict[str, object] = {
    "dataset": ("digits",),
    "stream": ("web",),
    "allow_changed": True,
    "gpus": 2000,
    "gpu_model": "H100",
    "cpus": 1000,
    "memory": 1 << 30,
    "shm_size": 1 << 28,
    "disk": 1 << 33,
    "processes": 99,
    "launch": "ray",
    "memo": "other",
    "label": (("try", "2"),),
    "set": (("decay", "0.1", None),),
    "metric": (r"q=q is (\d+)",),
    "echo": "ray",
    "no_echo": None,
    "after": (("kim/mnist/2", True),),
    "nodes": 1,
    "env": {"B": "3"},
    "secret": (("KEY", "HF"),),
    "image": "c",
    "dockerfile": "docker/train.Dockerfile",
    "build_arg": (("B", "4"),),
    "refresh": True,
    "time_limit": 0.5,
    "idle_limit": 0.5,
    "grace": 1.0,
    "retry": 1,
    "keep": "all",
    "output_dataset": ("features",),
    "keep_files": True,
    "no_keep_files": True,
    "pod": "p2",
    "network": "own",
    "priority": "high",
    "preemptible": True,
    "project": "audio",
    "queue": False,
}
ASKED = [one for one in FLAGS if one.field]
ONCE = {"memo", "refresh", "queue", "after"}
OPPOSITES = {"keep_files": "no_keep_files", "no_keep_files": "keep_files"}
MERGED = {
    "label": {"stage": "dev", "try": "2"},
    "env": {"A": "1", "B": "3"},
    "build_arg": {"A": "1", "B": "4"},
}


def again(typed: set[str], given: dict[str, object] | None = None) -> pb.CreateSessionRequest:
    request = pb.CreateSessionRequest()
    put_again(request, asked(**ONE), given or told(**OTHER), typed)
    return request


def test_these_are_all_flags_that_ask_for_something() -> None:
    assert {one.parameter for one in ASKED} == ONE.keys() == OTHER.keys()


@pytest.mark.parametrize("typed", [one.parameter for one in ASKED])
def test_of_a_session_that_is_run_again_only_what_was_typed_is_another(typed: str) -> None:
    request, one, other = again({typed}), asked(**ONE), asked(**OTHER)
    blank = pb.Session()
    for asks in ASKED:
        name, found = asks.parameter, asks.raw(request)
        if name == typed:
            assert found == MERGED.get(name, asks.raw(other))
        else:
            is_gone = name in ONCE or OPPOSITES.get(name) == typed
            assert found == asks.raw(blank if is_gone else one), name


def test_what_the_platform_keeps_by_default_is_not_asked_for() -> None:
    by_default = pb.Session()
    by_default.spec.keep_files_by_default = True
    assert asked_words(by_default) == asked_words(pb.Session())
    request = pb.CreateSessionRequest()
    put_again(request, by_default, {}, set())
    assert request.spec == pb.SessionSpec()
    rows = asked_rows(asked(no_keep_files=True))
    assert rows["no keep files"] == asked_rows(asked(keep_files=True))["keep files"]


def test_what_its_class_allows_and_its_own_project_are_not_asked_for() -> None:
    idle = asked(gpus=0, priority="idle", preemptible=True, project="kim")
    idle.spec.lost_after.seconds = 600
    request = pb.CreateSessionRequest()
    put_again(request, idle, told(priority="normal"), {"priority"})
    assert (request.spec.preemptible, request.project) == (False, "")
    assert request.spec.HasField("lost_after")
    put_again(request, idle, told(retry=1), {"retry"})
    assert not request.spec.HasField("lost_after"), "it follows from the retries"


def test_metrics_of_the_log_are_repeated_and_replaced_all_together() -> None:
    session = asked(metric=("auto", r"q=q is (\d+)", "auto"))
    assert list(session.spec.log_metrics) == ["auto", r"q=q is (\d+)"]
    assert asked_words(session)[-4:] == ["--metric", "auto", "--metric", r"q=q is (\d+)"]
    assert asked_record(session)["log_metrics"] == ["auto", r"q=q is (\d+)"]
    assert asked_rows(session)["metric"] == r"auto q=q is (\d+)"
    request = pb.CreateSessionRequest()
    put_again(request, session, told(metric=("auto",)), {"metric"})
    assert list(request.spec.log_metrics) == ["auto"]
    again = pb.CreateSessionRequest()
    put_again(again, session, told(), set())
    assert again.spec.log_metrics == session.spec.log_metrics


@pytest.mark.parametrize(
    ("text", "why"),
    [("loss", "takes auto"), ("loss=x", "no group"), ("loss=(", "missing"), ("=(x)", "takes auto")],
)
def test_what_is_no_metric_of_the_log_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unreadable) as error:
        flag("--metric").kind.read(text)
    assert why in f"{error.value} {error.value.why}"
    assert "nsml run --metric" in error.value.advice


def test_the_choice_of_loggers_is_a_variable_with_flags_of_its_own() -> None:
    assert flag("--echo").kind.read("mlflow, WANDB,wandb") == "wandb,mlflow"
    chosen = asked(echo="wandb,mlflow", env={"A": "1"})
    assert dict(chosen.spec.environment) == {"A": "1", "NSML_ECHO": "wandb,mlflow"}
    assert [*asked_words(chosen)][-4:] == ["--echo", "wandb,mlflow", "--env", "A=1"]
    none = asked(no_echo=True)
    assert dict(none.spec.environment) == {"NSML_ECHO": "none"}
    assert [*asked_words(none)][-1:] == ["--no-echo"]
    for before, given, after in (
        (chosen, {"no_echo": True}, {"A": "1", "NSML_ECHO": "none"}),
        (none, {"echo": "ray"}, {"NSML_ECHO": "ray"}),
        (none, {"env": {"B": "2"}}, {"NSML_ECHO": "none", "B": "2"}),
        (chosen, {}, {"A": "1", "NSML_ECHO": "wandb,mlflow"}),
    ):
        request = pb.CreateSessionRequest()
        put_again(request, before, told(**given), set(given))
        assert dict(request.spec.environment) == after


@pytest.mark.parametrize("text", ["", ",", "wandbb", "none,wandb", "wandb;ray"])
def test_an_unknown_logger_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        flag("--echo").kind.read(text)
