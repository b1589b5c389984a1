"""MLflow's own client in sessions: what it reads back is what the session records, and programs end as without nsml."""

from __future__ import annotations

import http.client
import json
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from nsml._echo._http import Request
from nsml._echo._mlflow import plain
from nsml._echo._mlflow_rest import Refusal
from nsml._echo._mlflow_server import Server
from nsml._echo._receiver import Receiver
from tests.support.echoes import Echoed, environment_of, run_echoed
from tests.support.torch_environment import REPORTERS, require_torch

READ_BACK: Final = """
import json, mlflow

def read_back(*run_ids):
    client = mlflow.MlflowClient()
    found = {}
    for run_id in run_ids:
        run = client.get_run(run_id)
        found[run.info.run_name] = {
            "metrics": {
                key: [[one.step, str(one.value)] for one in client.get_metric_history(run_id, key)]
                for key in run.data.metrics
            },
            "last": {key: str(value) for key, value in run.data.metrics.items()},
            "params": dict(run.data.params),
            "tags": {key: value for key, value in run.data.tags.items() if key[:7] != "mlflow."},
            "status": run.info.status,
            "files": sorted(one.path for one in client.list_artifacts(run_id)),
        }
    print(json.dumps(found))
"""
FLUENT: Final = (
    READ_BACK
    + """
mlflow.set_experiment("digits")
with mlflow.start_run(run_name="main") as run:
    mlflow.log_params({"lr": 0.1, "layers": [1, 2], "flag": True, "none": None, "text": "01"})
    mlflow.log_param("seed", 3)
    mlflow.log_params({f"p{number}": number for number in range(250)})
    mlflow.set_tag("team", "vision")
    for step in range(20):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
        mlflow.log_metrics({"acc": step / 20, "odd": float(["nan", "inf", "-inf"][step % 3])}, step=step)
    mlflow.log_metric("loss", 7.0, step=3)
    mlflow.log_dict({"a": 1}, "config/a.json")
    mlflow.log_text("hello", "notes.txt")
    assert mlflow.artifacts.load_dict(run.info.artifact_uri + "/config/a.json") == {"a": 1}
    folds = []
    for _ in range(2):
        with mlflow.start_run(nested=True, run_name="fold") as fold:
            mlflow.log_metric("loss", len(folds), step=9)
            mlflow.log_param("fold", len(folds))
            folds.append(fold.info.run_id)
experiments = [run.info.experiment_id]
client = mlflow.MlflowClient()
found = client.search_runs(experiments, "metrics.loss = 1 and params.fold = '1'")
assert [one.info.run_id for one in found] == [folds[1]], found
found = client.search_runs(experiments, order_by=["metrics.loss DESC"], max_results=2)
assert [one.info.run_id for one in found] == [folds[1], run.info.run_id], found
assert len(found.token) > 0
assert [one.name for one in mlflow.search_experiments()] == ["digits", "Default"]
try:
    mlflow.search_runs(filter_string="what is this")
except mlflow.exceptions.MlflowException as error:
    assert error.error_code == "INVALID_PARAMETER_VALUE", error
else:
    raise AssertionError
read_back(run.info.run_id, *folds[:1])
"""
)


def run(folder: Path, program: str, **more: str) -> Echoed:
    """Run a program that has the real MLflow."""
    return run_echoed(folder, program, REPORTERS, python=require_torch(), **more)


def recorded(done: Echoed, prefix: str = "") -> dict[str, list[list[Any]]]:
    """Steps and values by metric below a prefix, as MLflow's client gives them."""
    found: dict[str, list[list[Any]]] = defaultdict(list)
    for name, step, value in done.points():
        if name.startswith(prefix) and "/" not in name[len(prefix) :]:
            found[name[len(prefix) :]].append([step, str(float(value))])
    return dict(found)


def test_what_the_fluent_api_logs_is_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, FLUENT)
    assert done.returncode == 0, done.stderr
    assert "nsml:" not in done.stderr
    [line] = done.stdout.splitlines()  # no link to a server that nobody can visit
    read = json.loads(line)
    assert recorded(done) == read["main"]["metrics"]
    assert read["main"]["last"]["loss"] == str(1 / 20)
    assert read["main"]["status"] == "FINISHED"
    assert read["main"]["files"] == ["config", "notes.txt"]
    assert recorded(done, "fold/") == read["fold"]["metrics"] == {"loss": [[9, "0.0"]]}
    assert recorded(done, "fold-2/") == {"loss": [[9, "1.0"]]}
    config = {
        name: value
        for one in done.records("config")
        if one["run"] == ""
        for name, value in one["values"].items()
    }
    assert {name: str(value) for name, value in config.items() if name[:5] != "tags."} == (
        read["main"]["params"]
    )
    assert (config["lr"], config["flag"], config["text"]) == (0.1, True, "01")
    assert config["tags.team"] == read["main"]["tags"]["team"] == "vision"
    assert [one["values"] for one in done.records("config") if one["run"] == "fold"] == [
        {"fold": 0}
    ]
    assert all(one["origin"] == "mlflow" for one in done.records("metric"))


def test_batches_of_clients_and_asynchronous_logging_are_recorded(tmp_path: Path) -> None:
    program = (
        READ_BACK
        + """
import threading, time
from mlflow.entities import Metric, Param, RunTag
client = mlflow.MlflowClient()
run = client.create_run(client.create_experiment("batches"), run_name="batches", tags={"by": "client"})
run_id = run.info.run_id
now = int(time.time() * 1000)
for part in range(3):
    metrics = [Metric("loss", float(one), now + one, part * 1000 + one) for one in range(1000)]
    client.log_batch(run_id, metrics, [Param(f"p{part}", "1")], [RunTag(f"t{part}", "x")])

def log(name):
    for step in range(20):
        client.log_metric(run_id, name, step, step=step)

threads = [threading.Thread(target=log, args=(f"thread{number}",)) for number in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
for step in range(50):
    operations = client.log_metric(run_id, "async", step / 2, step=step, synchronous=False)
operations.wait()
client.log_batch(run_id, [Metric("async2", 1.0, now, 1)], synchronous=False).wait()
mlflow.flush_async_logging()
client.set_terminated(run_id)
read_back(run_id)
"""
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)["batches"]
    assert {name: sorted(points) for name, points in recorded(done).items()} == {
        name: sorted(points) for name, points in read["metrics"].items()
    }
    assert len(read["metrics"]["loss"]) == 3000
    assert {name: str(value) for name, value in done.config().items()} == {
        **read["params"],
        **{f"tags.{name}": value for name, value in read["tags"].items()},
    }
    times = [one["time"] for one in done.records("metric") if "loss" in one["values"]]
    assert [round((one - times[0]) * 1000) for one in times[:1000]] == [*range(1000)]


def test_media_and_artifacts_arrive(tmp_path: Path) -> None:
    program = (
        READ_BACK
        + """
import os
import numpy as np
from PIL import Image
with mlflow.start_run(run_name="media") as run:
    mlflow.log_image(np.zeros((8, 6, 3), dtype=np.uint8), "samples/first.png")
    mlflow.log_image(np.ones((4, 4), dtype=bool), key="masks", step=3, synchronous=True)
    mlflow.log_image(Image.new("RGB", (5, 5)), key="photos", step=4)
    mlflow.log_image(mlflow.Image(Image.new("L", (3, 3))), key="photos", step=5)
    mlflow.log_text("# all well", "report.md")
    with open("table.json", "w") as file:
        json.dump({"columns": ["a", "b"], "data": [[1, "x"], [2, "y"]]}, file)
    mlflow.log_artifact("table.json", "tables")
    with open("weights.bin", "wb") as file:
        file.write(b"123")
    mlflow.log_artifact("weights.bin", "model")
    os.mkdir("folder")
    with open("folder/x.bin", "wb") as file:
        file.write(b"1")
    mlflow.log_artifacts("folder", "all")
    with open("broken.png", "wb") as file:
        file.write(b"no picture")
    mlflow.log_artifact("broken.png")
    with open(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="model/weights.bin"), "rb") as file:
        assert file.read() == b"123"
read_back(run.info.run_id)
"""
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert "tables" in json.loads(done.stdout)["media"]["files"]
    media = {(one["name"], one["type"], one["step"]) for one in done.records("media")}
    assert media == {
        ("samples/first.png", "image", None),
        ("masks", "image", 3),
        ("photos", "image", 4),
        ("photos", "image", 5),
        ("report.md", "text", None),
        ("tables/table.json", "table", None),
    }
    [table] = [one for one in done.records("media") if one["type"] == "table"]
    assert table["facts"] == {"rows": 2, "columns": 2, "left_out": 0}
    artifacts = {one["name"]: one["files"] for one in done.records("artifact")}
    assert artifacts == {"model/weights.bin": [["weights.bin", 3]], "all": [["x.bin", 1]]}
    assert done.stderr.count("nsml: ") == 1, done.stderr
    assert "broken.png" in done.stderr


def test_children_report_to_the_server_of_their_parent(tmp_path: Path) -> None:
    program = (
        READ_BACK
        + """
import os, subprocess, sys
child = '''
import mlflow, sys
with mlflow.start_run(run_name=sys.argv[1]):
    mlflow.log_metric("loss", 2.0, step=1)
with mlflow.start_run(run_id=sys.argv[2]):
    mlflow.log_metric("more", 3.0, step=1)
'''
with mlflow.start_run(run_name="parent") as run:
    mlflow.log_metric("loss", 1.0, step=1)
subprocess.run([sys.executable, "-c", child, "child", run.info.run_id], check=True)
if os.fork() == 0:
    with mlflow.start_run(run_name="forked"):
        mlflow.log_metric("loss", 4.0, step=1)
    os._exit(0)
assert os.wait()[1] == 0
runs = mlflow.search_runs(output_format="list")
assert {one.info.run_name for one in runs} == {"parent", "child", "forked"}, runs
read_back(run.info.run_id)
"""
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["parent"]["metrics"]) == {"loss", "more"}
    assert sorted(done.points()) == [
        ("child/loss", 1, 2.0),
        ("forked/loss", 1, 4.0),
        ("loss", 1, 1.0),
        ("more", 1, 3.0),
    ]


@pytest.mark.variant
def test_a_child_whose_parent_has_ended_has_a_server_of_its_own(tmp_path: Path) -> None:
    program = """
import os, subprocess, sys
import mlflow
if sys.argv[1:]:
    assert sys.stdin.read() == ""
    mlflow.log_metric("loss", 1.0)
    mlflow.end_run()
    print("child ended")
    sys.exit()
del sys.modules["mlflow"]
os.environ["MLFLOW_TRACKING_URI"] = os.environ["NSML_MLFLOW_URI"] = "http://127.0.0.1:9/secret/mlflow"
done = subprocess.run([sys.executable, "main.py", "child"], stdin=subprocess.DEVNULL)
sys.exit(done.returncode)
"""
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "child ended\n"), done.stderr
    assert done.points() == [("loss", 0, 1.0)]


@pytest.mark.parametrize("how", [pytest.param("sync", marks=pytest.mark.variant), "async"])
def test_nothing_is_lost_on_sigkill(tmp_path: Path, how: str) -> None:
    program = f"""
import mlflow, os, signal
mlflow.start_run()
for step in range(500):
    mlflow.log_metrics({{"loss": step, "acc": 1 - step}}, step=step, synchronous={how == "sync"})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(tmp_path, program)
    assert done.returncode == -signal.SIGKILL
    assert done.series("loss") == [(step, step) for step in range(500)]
    assert done.series("acc") == [(step, 1 - step) for step in range(500)]


BROKEN: Final = {
    "runs": (
        "_mlflow_tracking",
        "        self._forget_runs()",
        "        raise KeyError('deliberate')",
    ),
    "everything": (
        "_mlflow_server",
        "            with self._lock:",
        "            raise OSError('deliberate')\n            with self._lock:",
    ),
    "batches": (
        "_mlflow_tracking",
        '        for key, value in pairs(given, "params"):\n            run',
        "        raise KeyError('deliberate')\n        for key, value in pairs(given, \"params\"):\n            run",
    ),
    "metrics": ("_mlflow", "    def log_metrics(\n        self,\n", "    def log_metrics(\n"),
    "prefix": (
        "_mlflow",
        "        found = self._prefixes.get(run_id)",
        "        raise KeyError('deliberate')",
    ),
    "short cut": (
        "_mlflow",
        "    server = _servers.get(os.getpid())",
        "    raise KeyError('deliberate')",
    ),
}


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(one, marks=[pytest.mark.variant] if one != "everything" else [])
        for one in BROKEN
    ],
)
def test_a_program_ends_well_with_a_broken_part(tmp_path: Path, broken: str) -> None:
    module, before, after = BROKEN[broken]
    program = """
import mlflow
mlflow.set_experiment("digits")
with mlflow.start_run(run_name="main"):
    mlflow.log_params({"lr": 0.1})
    for step in range(3):
        mlflow.log_metric("loss", step, step=step)
        mlflow.log_metrics({"acc": step}, step=step)
    mlflow.set_tag("a", "b")
print("ended well")
"""
    environment_of(tmp_path)
    path = tmp_path / f"sdk/nsml/_echo/{module}.py"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    for compiled in path.parent.glob(f"__pycache__/{module}.*"):
        compiled.unlink()
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "ended well\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("nsml: ")]
    assert [line[: len("nsml: MLflow")] for line in lines] == ["nsml: MLflow"], done.stderr
    if module != "_mlflow":  # what is logged is recorded without it
        assert done.series("loss") == done.series("acc") == [(step, step) for step in range(3)]


class Recorder:
    """A tracking server of a user's: answers MLflow, and remembers what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self._server = Server(str(folder), self._failed)
        self._receiver = Receiver()
        self._receiver.add("/mine", self._answer)
        self.url = self._receiver.url("/mine")
        self.errors: list[Exception] = []

    def close(self) -> None:
        self._receiver.close()

    def _failed(self, error: Exception) -> None:
        self.errors.append(error)

    def _answer(self, request: Request) -> Any:
        self.requests.append(f"{request.method} {request.path}")
        return self._server.answer(request)


OWN_SERVER: Final = """
import mlflow, os
{begin}
assert mlflow.get_tracking_uri() == {uri!r}, mlflow.get_tracking_uri()
mlflow.set_experiment("mine")
with mlflow.start_run(run_name="main"):
    mlflow.log_params({{"lr": 0.1}})
    for step in range(3):
        mlflow.log_metric("loss", step, step=step)
        mlflow.log_metrics({{"acc": step}}, step=step)
    mlflow.log_text("hello", "notes.txt")
    with open("weights.bin", "wb") as file:
        file.write(b"123")
    mlflow.log_artifact("weights.bin")
print("ended well")
"""


@pytest.mark.parametrize(
    "named_by", [pytest.param("variable", marks=pytest.mark.variant), "program"]
)
def test_a_server_of_the_users_is_asked_what_it_is_asked_without_nsml(
    tmp_path: Path, named_by: str
) -> None:
    asked = []
    for number, more in enumerate(({"NSML_ECHO": "none"}, {})):
        recorder = Recorder(tmp_path / f"theirs{number}")
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        begin = f"mlflow.set_tracking_uri({recorder.url!r})" if named_by == "program" else ""
        given = {} if named_by == "program" else {"MLFLOW_TRACKING_URI": recorder.url}
        done = run(folder, OWN_SERVER.format(begin=begin, uri=recorder.url), **given, **more)
        recorder.close()
        assert done.returncode == 0, done.stderr
        assert "ended well" in done.stdout
        assert "View run main" in done.stdout  # MLflow's own link to their server
        asked.append(recorder.requests)
    assert asked[0] == asked[1]
    assert len(asked[0]) > 10
    assert done.series("loss") == done.series("acc") == [(step, step) for step in range(3)]
    assert done.config() == {"lr": 0.1}
    assert [one["name"] for one in done.records("media")] == ["notes.txt"]
    assert done.records("artifact") == []  # it is on their server


def test_files_of_the_users_are_written_as_without_nsml(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/mine"
    done = run(
        tmp_path,
        OWN_SERVER.format(begin="", uri=uri),
        MLFLOW_TRACKING_URI=uri,
        MLFLOW_ALLOW_FILE_STORE="true",
    )
    assert done.returncode == 0, done.stderr
    [metric] = tmp_path.glob("mine/*/*/metrics/loss")
    lines = [line.split() for line in metric.read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step in lines] == [
        (one, one) for one in range(3)
    ]
    assert done.series("loss") == [(step, step) for step in range(3)]


def test_models_are_logged_and_registered(tmp_path: Path) -> None:
    program = """
import mlflow
from mlflow.entities import LoggedModelStatus

client = mlflow.MlflowClient()
with mlflow.start_run() as run:
    model = client.create_logged_model("0", "double", run.info.run_id, params={"a": "1"})
    with open("weights.bin", "wb") as file:
        file.write(b"123")
    client.log_model_artifact(model.model_id, "weights.bin")
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    mlflow.log_metric("score", 0.5, model_id=model.model_id)
found = client.get_logged_model(model.model_id)
assert (found.name, found.params, found.status) == ("double", {"a": "1"}, LoggedModelStatus.READY), found
assert [(one.key, one.value) for one in found.metrics] == [("score", 0.5)], found.metrics
[found] = client.search_logged_models(["0"], "name = 'double'")
assert [one.path for one in client.list_logged_model_artifacts(model.model_id)] == ["weights.bin"]
client.create_registered_model("digits", description="all")
first = client.create_model_version("digits", found.artifact_location, run.info.run_id)
second = client.create_model_version("digits", found.artifact_location, run.info.run_id)
assert (first.version, second.version, second.status) == ("1", "2", "READY"), second
client.set_registered_model_alias("digits", "best", "2")
assert client.get_model_version_by_alias("digits", "best").version == "2"
client.set_model_version_tag("digits", "1", "kind", "old")
assert client.get_model_version("digits", "1").tags == {"kind": "old"}
assert [one.version for one in client.search_model_versions("name = 'digits'")] == ["2", "1"]
assert [one.name for one in client.search_registered_models()] == ["digits"]
client.delete_model_version("digits", "1")
try:
    client.get_model_version("digits", "1")
except mlflow.exceptions.MlflowException as error:
    assert error.error_code == "RESOURCE_DOES_NOT_EXIST", error
else:
    raise AssertionError
try:
    client.get_webhook("1")
except mlflow.exceptions.MlflowException as error:
    assert "nsml has no" in str(error), error
else:
    raise AssertionError
print("ended well")
"""
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "ended well\n"), done.stderr
    assert done.series("score") == [(0, 0.5)]


@pytest.mark.variant
@pytest.mark.long("Lightning is imported for ten seconds")
def test_lightning_logs_to_the_server_of_the_process(tmp_path: Path) -> None:
    program = """
import sys
from lightning.pytorch.loggers import MLFlowLogger
assert "mlflow" not in sys.modules
logger = MLFlowLogger("digits", run_name="lit")
logger.log_hyperparams({"lr": 0.1})
for step in range(3):
    logger.log_metrics({"train_loss": step / 2}, step)
logger.finalize("success")
import mlflow
[run] = mlflow.search_runs(experiment_names=["digits"], output_format="list")
assert run.info.run_name == "lit"
assert run.data.metrics == {"train_loss": 1.0}
try:
    print(MLFlowLogger("digits", save_dir="mine").experiment)
except mlflow.exceptions.MlflowException as error:
    assert "filesystem" in str(error), error  # MLflow's own
else:
    raise AssertionError
"""
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.series("train_loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert done.config()["lr"] == 0.1


HOSTILE: Final[list[Any]] = [
    None,
    [],
    "text",
    7,
    {},
    {"run_id": None},
    {"run_id": {"a": 1}},
    {"run_id": "RUN", "metrics": 7, "params": "x", "tags": {"a": 1}},
    {"run_id": "RUN", "metrics": [7, None], "params": [7], "tags": [[]]},
    {"run_id": "RUN", "metrics": [{"key": "a", "value": "x", "step": "y", "timestamp": []}]},
    {"run_id": "RUN", "metrics": [{"key": "a", "value": 1, "step": 1 << 70, "timestamp": 1}]},
    {"run_id": "RUN", "metrics": [{"key": "a" * 200_000, "value": 1e400, "step": -1}]},
    {"run_id": "RUN", "key": "\x1b[2J/../..", "value": "\ud800", "step": 1.5},
    {"run_id": "RUN", "end_time": "never", "status": [1]},
    {"experiment_id": "../../etc", "name": "a", "tags": [{}], "artifact_location": 7},
    {"experiment_ids": ["0", 7, None, {}], "filter": "'" * 5000, "order_by": [7, {}]},
    {"experiment_ids": "0", "max_results": "many", "page_token": "\0", "filter": 7},
    {"experiment_ids": ["0"], "max_results": -1, "page_token": "{}"},
    {"trace": {"trace_info": {"trace_id": "../../x", "tags": 7}}},
    {"name": "m", "version": "../1", "alias": [], "key": None, "stage": {}},
]


def test_hostile_requests_are_refused_and_change_nothing(tmp_path: Path) -> None:
    errors: list[Exception] = []
    server = Server(str(tmp_path), errors.append)
    receiver = Receiver()
    receiver.add("/mlflow", server.answer)
    parts = urlsplit(receiver.url("/mlflow"))
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=60)

    def ask(method: str, path: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, f"{parts.path}{path}", data)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    api = "/api/2.0/mlflow"
    run_id = ask("POST", f"{api}/runs/create", {})[1]["run"]["info"]["run_id"]
    ask("POST", f"{api}/runs/log-metric", {"run_id": run_id, "key": "loss", "value": 1.5})
    for endpoint in [*server._calls, "POST nothing", "GET logged-models/../..", "PUT runs/create"]:
        method, _, path = endpoint.partition(" ")
        for body in HOSTILE:
            given = json.loads(json.dumps(body).replace('"RUN"', json.dumps(run_id)))
            status, answer = ask(method, f"{api}/{path}", given)
            assert status in (200, 400, 404), (endpoint, body)
            assert isinstance(answer, dict)
            assert status == 200 or answer.get("error_code"), (endpoint, body, answer)
        for data in (b"", b"{", b"[" * 100_000, b'{"run_id": NaN}', b"\xff", b'{"a":' * 5000):
            status, answer = ask(method, f"{api}/{path}", data)
            assert status in (200, 400, 404), (endpoint, data)
    found = ask("GET", f"{api}/runs/get?run_id={run_id}", {})[1]["run"]
    last = {one["key"]: one["value"] for one in found["data"]["metrics"]}
    assert last["loss"] == 1.5
    connection.close()
    receiver.close()
    unexpected = [one for one in errors if not isinstance(one, ImportError)]  # mlflow is not here
    assert not unexpected


def test_the_server_forgets_before_it_grows_without_end(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("nsml._echo._mlflow_series._MOST_POINTS", 1000)
    monkeypatch.setattr("nsml._echo._mlflow_tracking._MOST_RUNS", 5)
    server = Server(str(tmp_path), lambda error: None)
    calls = server._calls
    run_id = calls["POST runs/create"]({})["run"]["info"]["run_id"]
    for step in range(5000):
        given = {"run_id": run_id, "key": "loss", "value": step, "step": step, "timestamp": 1}
        calls["POST runs/log-metric"](given)
    found = calls["GET metrics/get-history"]({"run_id": run_id, "metric_key": "loss"})["metrics"]
    assert 400 <= len(found) <= 1000
    assert (found[0]["step"], found[-1]["step"]) == (0, 4999)
    steps = [one["step"] for one in found]
    assert steps == sorted(steps)
    last = [calls["POST runs/create"]({})["run"]["info"]["run_id"] for _ in range(20)][-5:]
    for run_id in last:
        assert calls["GET runs/get"]({"run_id": run_id})
    with pytest.raises(Refusal):
        calls["GET runs/get"]({"run_id": given["run_id"]})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.1", 0.1),
        ("1e-05", 1e-05),
        ("True", True),
        ("None", None),
        ("03", "03"),
        ("1_000", "1_000"),
        (" 3", " 3"),
        ("nan", "nan"),
        ("1e5", "1e5"),
        ("1.0", 1.0),
        ("", ""),
        ("adam", "adam"),
    ],
)
def test_parameters_become_what_they_were(text: str, value: Any) -> None:
    found = plain(text)
    assert (found, type(found)) == (value, type(value))
