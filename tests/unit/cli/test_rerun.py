"""`nsml run --rerun`: the code, options and data of a session again, but for what is given."""

import json

import grpc
import pytest

from nsml.v1 import datasets_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.nsml.client.contract_server import EPOCH


@pytest.fixture
def first(nsml, state, project):
    """A session with much that it asks for, and a program with arguments."""
    state.datasets = [datasets_pb2.Dataset(name="mnist", owner="kim", version=3)]
    nsml(
        *(
            "run",
            "-d",
            "mnist@2",
            "-g",
            "0.5",
            "--memory",
            "24G",
            "--label",
            "stage=dev",
            "--env",
            "A=1",
        ),
        *("--env", "B=2", "--retry", "3", "--priority", "idle", "-m", "first", "--refresh"),
        *("--time-limit", "2h", "--", "--lr", "0.1"),
    )
    [session] = state.sessions.values()
    session.spec.preemptible = True  # as every session of its class
    session.spec.lost_after.seconds = 600
    return session


def newest(state):
    return list(state.sessions.values())[-1]


def test_all_that_was_asked_for_is_asked_for_again_from_any_folder(
    nsml, state, first, tmp_path, monkeypatch
):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    before = dict(state.blobs)
    result = nsml("run", "--rerun", "1")
    assert result.stdout == "Session kim/mnist/2 started\n"
    assert "sending" not in result.stderr
    assert state.blobs == before
    again = newest(state)
    expected = pb.SessionSpec.FromString(first.spec.SerializeToString())
    expected.ClearField("preemptible")
    expected.ClearField("refresh_environment")
    assert again.spec == expected
    assert again.memo == ""
    assert again.origin == pb.Origin(
        kind=pb.ORIGIN_KIND_RERUN, session=first.id, name="kim/mnist/1"
    )
    assert list(again.command) == ["nsml", "run", "--rerun", "kim/mnist/1"]


def test_what_is_given_is_asked_for_instead_and_names_are_merged(nsml, state, first):
    nsml(
        *(
            "run",
            "--rerun=@last",
            "-g",
            "2",
            "--env",
            "A=9",
            "--label",
            "try=2",
            "--retry",
            "0",
            "-m",
            "x",
        ),
        *("--priority", "normal", "--team", "--", "--lr", "0.5"),
    )
    again = newest(state)
    assert again.spec.resources.gpu_thousandths == 2000
    assert again.spec.resources.memory_bytes == first.spec.resources.memory_bytes
    assert dict(again.spec.environment) == {"A": "9", "B": "2"}
    assert dict(again.spec.labels) == {"stage": "dev", "try": "2"}
    assert list(again.spec.args) == ["--lr", "0.5"]
    assert again.spec.entry == "main.py"
    assert (again.spec.retry_count, again.spec.HasField("lost_after")) == (0, False)
    assert (again.spec.priority, again.spec.preemptible) == (pb.PRIORITY_NORMAL, False)
    assert again.memo == "x"
    assert list(again.command[:4]) == ["nsml", "run", "--rerun", "kim/mnist/1"]
    assert "--env" in again.command
    assert "A=9" not in again.command, "values are in the spec alone"


def test_a_file_of_variables_counts_as_given(nsml, state, first, project):
    (project / "more").write_text("A=7\nC=8\n")
    nsml("run", "--rerun", "1", "--env-file", "more")
    assert dict(newest(state).spec.environment) == {"A": "7", "B": "2", "C": "8"}


def test_another_program_of_the_same_code(nsml, state, first):
    nsml("run", "--rerun", "1", "eval.py")
    again = newest(state)
    assert (again.spec.entry, list(again.spec.args)) == ("eval.py", ["--lr", "0.1"])
    nsml("run", "--rerun", "1", "eval.py", "--", "-x")
    again = newest(state)
    assert (again.spec.entry, list(again.spec.args)) == ("eval.py", ["-x"])
    nsml("run", "--rerun", "1", "--argv", "--", "./go.sh", "-x")
    again = newest(state)
    assert (again.spec.entry, list(again.spec.argv)) == ("", ["./go.sh", "-x"])
    refused = nsml("run", "--rerun", "@last", "--", "-y", check=False)
    assert refused.code == 2
    assert "ran a whole command" in refused.stderr
    assert "--argv -- COMMAND" in refused.stderr


def test_hidden_values_are_to_be_given(nsml, state, first):
    first.spec.environment["A"] = first.spec.environment["B"] = "***"
    refused = nsml("run", "--rerun", "1", check=False)
    assert refused.code == 1
    assert "only kim sees the values of A, B" in refused.stderr
    assert "nsml run --rerun kim/mnist/1 --env A=VALUE --env B=VALUE" in refused.stderr
    assert len(state.sessions) == 1
    nsml("run", "--rerun", "1", "--env", "A=3", "--env", "B=***")
    assert dict(newest(state).spec.environment) == {"A": "3", "B": "***"}
    nsml("run", "--rerun", "@last")
    assert dict(newest(state).spec.environment) == {"A": "3", "B": "***"}, "a value like others"


@pytest.mark.parametrize("words", [["--code"], ["--no-code"], ["--max-size", "1G"]])
def test_no_folder_is_sent(nsml, state, first, words):
    refused = nsml("run", "--rerun", "1", *words, check=False)
    assert refused.code == 2
    assert words[0] in refused.stderr


def test_a_session_that_is_not_there(nsml, state, first):
    refused = nsml("run", "--rerun", "99", check=False)
    assert refused.code == 5
    assert len(state.sessions) == 1


def test_a_dry_run_makes_none(nsml, state, first):
    assert nsml("run", "--rerun", "1", "--dry-run").stdout == "would start now\n"
    assert len(state.sessions) == 1


def test_it_is_asked_once_however_often_the_answer_is_lost(nsml, state, first):
    state.fail_next["CreateSession"] = grpc.StatusCode.UNAVAILABLE
    assert nsml("run", "--rerun", "1", "-o", "name").stdout == "kim/mnist/2\n"
    assert len(state.sessions) == 2


def test_where_it_came_from_is_shown_and_found(nsml, state, first):
    nsml("run", "--rerun", "1")
    state.now = EPOCH + 60
    assert "  origin: rerun of kim/mnist/1\n" in nsml("status", "--explain", "2").stdout
    for text in ("kim/mnist/1", "mnist/1", "rerun", "rerun*", first.id):
        [one] = json.loads(nsml("ps", "-a", "-j", f"origin:{text}").stdout)["items"]
        assert one["name"] == "kim/mnist/2"
        assert one["origin"] == {"kind": "RERUN", "session": "kim/mnist/1", "id": first.id}
    [other] = json.loads(nsml("ps", "-a", "-j", "!origin:*").stdout)["items"]
    assert (other["name"], other["origin"]) == ("kim/mnist/1", None)


def test_arguments_can_be_left_out_and_an_entry_is_a_path(nsml, state, first):
    nsml("run", "--rerun", "1", "-a", "")
    assert list(newest(state).spec.args) == []
    nsml("run", "--rerun", "1", "--")
    assert list(newest(state).spec.args) == []
    nsml("run", "--rerun", "1", "./main.py")
    assert newest(state).spec.entry == "main.py"


def test_what_contradicts_what_is_given_goes(nsml, state, first):
    first.spec.gpu_model = "A100"
    first.spec.secrets.add(name="TOKEN", variable="KEY")
    nsml("run", "--rerun", "1", "-g", "0", "--env", "KEY=plain")
    again = newest(state)
    assert (again.spec.gpu_model, len(again.spec.secrets)) == ("", 0)
    assert dict(again.spec.environment) == {"A": "1", "B": "2", "KEY": "plain"}
    nsml("run", "--rerun", "1", "--secret", "HF=A")
    again = newest(state)
    assert [(one.name, one.variable) for one in again.spec.secrets] == [("HF", "A")]
    assert dict(again.spec.environment) == {"B": "2"}
    assert again.spec.gpu_model == "A100"


def test_what_repeats_a_rerun_does_not_need_what_it_was_of(nsml, state, first):
    nsml("run", "--rerun", "1", "-m", "two words", "--", "-x")
    assert nsml("command", "2").stdout == "nsml run --rerun kim/mnist/2 -m 'two words'\n"
    del state.sessions[first.id]
    nsml("run", "--rerun", "2")
    assert list(newest(state).spec.args) == ["-x"]


def test_what_is_advised_is_about_the_rerun(nsml, state, first):
    refused = nsml("run", "--rerun", "1", "-g", "9", check=False)
    assert "try: nsml run --rerun 1 -g 8\n" in refused.stderr
    refused = nsml("run", "--rerun", "1", "-d", "mnits", "--dry-run", check=False)
    assert refused.code == 5
    refused = nsml("run", "--rerun", "1", "-d", "mnits", check=False)
    assert "nsml run --rerun 1 -d mnist" in refused.stderr


def test_the_last_one_named_is_meant_and_repeated(nsml, state, first):
    nsml("run", "-d", "mnist")
    nsml("run", "--rerun", "2", "--rerun", "1")
    again = newest(state)
    assert again.origin.name == "kim/mnist/1"
    assert list(again.command) == ["nsml", "run", "--rerun", "kim/mnist/1"]


def test_an_older_platform_that_keeps_no_origin_is_told_of(nsml, state, first):
    assert "warning" not in nsml("run", "--rerun", "1").stderr
    state.knows_no_origin = True
    result = nsml("run", "--rerun", "1")
    assert "warning: the platform is of an older version" in result.stderr


def test_data_of_the_other_owner_is_meant_and_what_is_given_is_ones_own(nsml, state, first):
    first.owner, first.name = "lee", "lee/mnist/1"
    first.spec.datasets[0].name = "mnist"
    first.visibility = resources_pb2.VISIBILITY_PUBLIC
    refused = nsml("run", "--rerun", "lee/mnist/1", check=False)
    assert "lee/mnist" in refused.stderr
    nsml("run", "--rerun", "lee/mnist/1", "-d", "mnist")
    [dataset] = newest(state).spec.datasets
    assert (dataset.name, dataset.version) == ("mnist", 0)


def test_output_datasets_are_those_of_ones_own_sessions_or_typed(nsml, state, first):
    first.spec.output_datasets[:] = ["scores", "reports=out"]
    told = nsml("run", "--rerun", "1").stderr
    assert "  output dataset: kim/scores\n  output dataset: kim/reports\n" in told
    assert newest(state).spec.output_datasets == ["scores", "reports=out"]

    first.owner, first.name = "lee", "lee/mnist/1"
    first.visibility = resources_pb2.VISIBILITY_PUBLIC
    for dry in ((), ("--dry-run",)):
        told = nsml("rerun", "lee/mnist/1", "-d", "mnist", *dry).stderr
        assert "  output datasets of lee left out: scores, reports=out; --output-dataset" in told
        assert "output dataset: " not in told
        assert not newest(state).spec.output_datasets
    told = nsml("fork", "lee/mnist/1", "-d", "mnist", "--output-dataset", "mine").stderr
    assert ("output dataset: kim/mine\n" in told, "left out" in told) == (True, False)
    assert newest(state).spec.output_datasets == ["mine"]
