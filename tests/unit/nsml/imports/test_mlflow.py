"""Runs of MLflow as sessions: of a file store that MLflow wrote, and of a database with its tables."""

import json
import math
import os
import shutil
import sqlite3

import pytest

from nsml.imports import artifact_files
from nsml.imports.folders import Folder
from nsml.imports.mlflow import find
from tests.support.past_runs import read_all, run_alone, write_mlflow
from tests.support.torch_environment import REPORTERS, require_torch

PROGRAM = """
import mlflow, numpy, os
os.makedirs("made/data")
for name in ("MLmodel", "data/w.bin"):
    with open(f"made/{name}", "w") as file:
        file.write(name)
mlflow.set_tracking_uri("file:./mlruns")
mlflow.set_experiment("digits: two")
with mlflow.start_run(run_name="first", description="it went\\nwell"):
    mlflow.log_params({"lr": 0.1, "opt": "adam", "deep": True, "n": 3, "a/b": "x\\ny"})
    for step in range(50):
        mlflow.log_metric("train/loss", 1 / (step + 1), step=step)
        mlflow.log_metrics({"acc": step / 50, "odd": float("nan") if step else float("-inf")}, step=step)
    mlflow.set_tag("team", "vision")
    mlflow.log_text("hello", "notes/a.txt")
    mlflow.log_dict({"columns": ["q", "r"], "data": [[1, "a"], [2, "b"]]}, "table.json")
    with open("blob.bin", "wb") as file:
        file.write(bytes(100))
    mlflow.log_artifact("blob.bin")
    os.makedirs("weights/deep")
    with open("weights/deep/w.bin", "wb") as file:
        file.write(b"12345")
    with open("weights/about.md", "w") as file:
        file.write("about")
    mlflow.log_artifacts("weights", "kept/weights")
    for number in range(2):
        with open("made/number", "w") as file:
            file.write(str(number))
        model = mlflow.initialize_logged_model(name="net", source_run_id=mlflow.active_run().info.run_id)
        mlflow.MlflowClient().log_model_artifacts(model.model_id, "made")
        mlflow.finalize_logged_model(model.model_id, "READY")
    mlflow.log_image(numpy.zeros((4, 6, 3), dtype="uint8"), key="seen/dogs", step=3)
    with mlflow.start_run(run_name="inner", nested=True):
        mlflow.log_metric("loss", 2.0)
try:
    with mlflow.start_run(run_name="bad"):
        raise RuntimeError
except RuntimeError:
    pass
mlflow.start_run(run_name="endless")
mlflow.log_metric("loss", 1.0, step=7)
os._exit(0)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A folder with mlruns."""
    folder = tmp_path_factory.mktemp("store")
    run_alone(folder, PROGRAM, REPORTERS, python=require_torch())
    return folder


def test_a_run_has_what_the_program_logged(store, tmp_path):
    found = read_all(store, find, tmp_path)
    assert sorted(found) == ["bad", "endless", "first", "inner"]
    one = found["first"]
    series = one.series()
    assert series["train/loss"] == [(step, 1 / (step + 1)) for step in range(50)]
    assert series["acc"] == [(step, step / 50) for step in range(50)]
    assert series["odd"] == [(0, "-Infinity"), *((step, "NaN") for step in range(1, 50))]
    assert {*series} == {"train/loss", "acc", "odd"}
    assert one.config == {
        "lr": 0.1,
        "opt": "adam",
        "deep": True,
        "n": 3,
        "a/b": "x\ny",
        "tags.team": "vision",
    }
    assert one.summary["acc"] == 0.98
    media = {each["name"]: each for each in one.media}
    assert {name: each["kind"] for name, each in media.items()} == {
        "notes/a.txt": "text",
        "seen/dogs": "image",
        "table.json": "table",
        "kept/weights/about.md": "text",
    }
    assert media["seen/dogs"]["step"] == 3
    assert media["notes/a.txt"]["data"] == b"hello"
    assert json.loads(media["table.json"]["data"])["data"] == [[1, "a"], [2, "b"]]
    assert (one.left_out, one.is_damaged) == ((), False)


def test_files_and_models_are_artifacts(store, tmp_path):
    found = read_all(store, find, tmp_path)
    kept = found["first"].artifacts
    assert {*kept} == {"blob.bin@1", "kept@1", "net@1", "net@2"}
    assert kept["blob.bin@1"] == {"blob.bin": bytes(100)}
    assert kept["kept@1"] == {"weights/about.md": b"about", "weights/deep/w.bin": b"12345"}
    made = {"MLmodel": b"MLmodel", "data/w.bin": b"data/w.bin"}
    assert [kept[f"net@{number + 1}"] for number in range(2)] == [
        made | {"number": str(number).encode()} for number in range(2)
    ]
    assert found["inner"].artifacts == found["bad"].artifacts == {}


def test_states_names_and_places_are_those_of_the_runs(store, tmp_path):
    found = read_all(store / "mlruns", find, tmp_path)
    outcomes = {name: one.run.outcome.value for name, one in found.items()}
    assert outcomes == {
        "first": "SUCCEEDED",
        "inner": "SUCCEEDED",
        "bad": "FAILED",
        "endless": "STOPPED",
    }
    assert {one.run.project for one in found.values()} == {"digits: two"}
    assert found["inner"].session.spec.labels["parent"] == "first"
    first = found["first"].session
    assert first.memo == "first: it went well"
    assert 0 < first.ended_at.ToNanoseconds() - first.started_at.ToNanoseconds() < 600e9
    [experiment] = [one for one in (store / "mlruns").iterdir() if one.name not in {"0", ".trash"}]
    assert sorted(read_all(experiment, find, tmp_path)) == sorted(found)


TABLES = """
CREATE TABLE experiments (
    experiment_id INTEGER NOT NULL, name VARCHAR(256) NOT NULL, artifact_location VARCHAR(256),
    lifecycle_stage VARCHAR(32), creation_time BIGINT, last_update_time BIGINT,
    CONSTRAINT experiment_pk PRIMARY KEY (experiment_id), UNIQUE (name));
CREATE TABLE runs (
    run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), source_type VARCHAR(20), source_name VARCHAR(500),
    entry_point_name VARCHAR(50), user_id VARCHAR(256), status VARCHAR(9), start_time BIGINT, end_time BIGINT,
    source_version VARCHAR(50), lifecycle_stage VARCHAR(20), artifact_uri VARCHAR(200), experiment_id INTEGER,
    deleted_time BIGINT, CONSTRAINT run_pk PRIMARY KEY (run_uuid));
CREATE TABLE metrics (
    key VARCHAR(250) NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL, run_uuid VARCHAR(32) NOT NULL,
    step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL,
    CONSTRAINT metric_pk PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
CREATE TABLE params (key VARCHAR(250) NOT NULL, value VARCHAR(8000) NOT NULL, run_uuid VARCHAR(32) NOT NULL,
    CONSTRAINT param_pk PRIMARY KEY (key, run_uuid));
CREATE TABLE tags (key VARCHAR(250) NOT NULL, value VARCHAR(8000), run_uuid VARCHAR(32) NOT NULL,
    CONSTRAINT tag_pk PRIMARY KEY (key, run_uuid));
"""
RUN, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def database(tmp_path):
    """A folder with mlflow.db, as MLflow fills it, and an artifact."""
    folder = tmp_path / "place"
    folder.mkdir()
    with sqlite3.connect(folder / "mlflow.db") as made:
        made.executescript(TABLES)
        made.execute("INSERT INTO experiments VALUES (1, 'digits', 'x', 'active', 0, 0)")
        made.execute("INSERT INTO experiments VALUES (2, 'old', 'x', 'deleted', 0, 0)")
        for run, name, stage, experiment in (
            (RUN, "first", "active", 1),
            (OTHER, "removed", "deleted", 1),
            ("c" * 32, "old", "active", 2),
        ):
            row = (
                run,
                name,
                "LOCAL",
                "",
                "",
                "kim",
                "KILLED",
                1_700_000_000_500,
                1_700_000_100_000,
            )
            made.execute(
                f"INSERT INTO runs VALUES ({','.join('?' * 14)})",
                (*row, "", stage, f"/elsewhere/mlruns/1/{run}/artifacts", experiment, None),
            )
        for step in range(20):
            at = 1_700_000_001_000 + 1000 * step
            made.execute(
                "INSERT INTO metrics VALUES ('loss', ?, ?, ?, ?, 0)", (step / 7, at, RUN, step)
            )
            made.execute("INSERT INTO metrics VALUES ('nan', 0, ?, ?, ?, 1)", (at, RUN, step))
        made.execute(
            "INSERT INTO metrics VALUES ('inf', 1.7976931348623157e308, 1700000001000, ?, 0, 0)",
            (RUN,),
        )
        made.execute("INSERT INTO params VALUES ('lr', '0.1', ?)", (RUN,))
        made.execute("INSERT INTO tags VALUES ('mlflow.user', 'lee', ?)", (RUN,))
        made.execute("INSERT INTO tags VALUES ('team', 'vision', ?)", (RUN,))
    artifacts = folder / "mlruns/1" / RUN / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "note.md").write_text("# well")
    return folder


def test_a_database_is_read_like_a_store(database, tmp_path):
    [(name, one)] = read_all(database, find, tmp_path).items()
    assert (name, one.run.project, one.run.outcome.value) == ("first", "digits", "STOPPED")
    series = one.series()
    assert series["loss"] == [(step, step / 7) for step in range(20)]
    assert series["nan"] == [(step, "NaN") for step in range(20)]
    assert series["inf"] == [(0, "Infinity")]
    assert one.config == {"lr": 0.1, "tags.team": "vision"}
    assert (one.session.owner, one.session.created_at.seconds) == ("lee", 1_700_000_000)
    assert [(each["name"], each["data"]) for each in one.media] == [("note.md", b"# well")]
    # All values of a step are one record.
    assert len(one.records) == 21


def test_a_database_is_not_changed(database, tmp_path):
    before = {path: path.read_bytes() for path in database.rglob("*") if path.is_file()}
    read_all(database, find, tmp_path)
    assert {path: path.read_bytes() for path in database.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("ALTER TABLE metrics RENAME TO others", "no table metrics"),
        ("ALTER TABLE runs RENAME COLUMN status TO state", "without status"),
        (
            "ALTER TABLE params RENAME TO others; CREATE VIEW params AS SELECT * FROM others",
            "no table params",
        ),
    ],
)
def test_another_database_is_refused(database, change, why):
    with sqlite3.connect(database / "mlflow.db") as made:
        made.executescript(change)
    with Folder(database) as folder, pytest.raises(ValueError, match=why):
        find(folder)


def test_values_of_other_types_are_left_out(database, tmp_path):
    with sqlite3.connect(database / "mlflow.db") as made:
        made.execute("INSERT INTO metrics VALUES ('text', 'much', 1700000001000, ?, 0, 0)", (RUN,))
        made.execute("INSERT INTO metrics VALUES ('blob', x'ff00', 1700000001000, ?, 0, 0)", (RUN,))
        made.execute(
            "INSERT INTO metrics VALUES (x'1b5b324a', 1.5, 1700000001000, ?, 0, 0)", (RUN,)
        )
        made.execute("INSERT INTO metrics VALUES ('far', 1.5, ?, ?, 0, 0)", (2**62, RUN))
        made.execute("UPDATE runs SET start_time = 'soon', end_time = ?", (-(2**62),))
        made.execute("INSERT INTO params VALUES ('big', ?, ?)", ("9" * 500_000, RUN))
    [(_, one)] = read_all(database, find, tmp_path).items()
    series = one.series()
    assert {*series} == {"loss", "nan", "inf", "far", "b'\\x5cx1b[2J'"}
    assert len(one.config["big"]) == 4096
    assert one.session.created_at.seconds == 1_700_000_001


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
    with Folder(tmp_path) as folder, pytest.raises(ValueError, match=r"mlflow\.db cannot be read"):
        find(folder)


def test_artifacts_of_a_database_are_read(database, tmp_path):
    with sqlite3.connect(database / "mlflow.db") as made:
        made.execute(
            "CREATE TABLE logged_models (model_id VARCHAR(36) NOT NULL PRIMARY KEY, experiment_id INTEGER, name VARCHAR(500),"
            " artifact_location VARCHAR(1000), creation_timestamp_ms BIGINT, lifecycle_stage VARCHAR(32), source_run_id VARCHAR(32))"
        )
        for key, run, stage in (("m-1", RUN, "active"), ("m-2", RUN, "deleted"), ("m-3", "", None)):
            made.execute(
                "INSERT INTO logged_models VALUES (?, 1, 'net', '/elsewhere', 5000, ?, ?)",
                (key, stage, run),
            )
            (database / f"mlruns/1/models/{key}/artifacts").mkdir(parents=True)
            (database / f"mlruns/1/models/{key}/artifacts/MLmodel").write_text(key)
    old = database / "mlruns/1" / RUN / "artifacts/old model"
    old.mkdir()
    (old / "MLmodel").write_text("x")
    (old / "conda.yaml").write_text("y")
    [one] = read_all(database, find, tmp_path).values()
    assert one.artifacts == {
        "net@1": {"MLmodel": b"m-1"},
        "old model@1": {"MLmodel": b"x", "conda.yaml": b"y"},
    }
    assert [each["name"] for each in one.media] == ["note.md"]


def test_no_artifact_has_more_than_is_in_the_folder_or_fits(tmp_path, monkeypatch):
    write_mlflow(tmp_path / "mlruns")
    place = tmp_path / "mlruns/1" / ("a" * 32) / "artifacts"
    for name in ("kept", "large", "many", "named\x1b"):
        (place / name).mkdir(parents=True)
        (place / name / "file.bin").write_bytes(b"12345")
    (place / "kept/link").symlink_to("/etc/hostname")
    os.mkfifo(place / "kept/pipe")
    (place / "kept/odd.png").write_bytes(b"no image")
    (place / "large/more.bin").write_bytes(bytes(100))
    for number in range(9):
        (place / f"many/{number}.bin").touch()
    (place / "file.bin").write_bytes(b"1")
    (place / "file.bin").chmod(0o755)
    monkeypatch.setattr(artifact_files, "MOST_BYTES", 50)
    monkeypatch.setattr(artifact_files, "MOST_FILES", 9)
    one = read_all(tmp_path / "mlruns", find, tmp_path)["a"]
    assert one.artifacts == {
        "file.bin@1": {"file.bin": b"1"},
        "kept@1": {"file.bin": b"12345", "odd.png": b"no image"},
        "named\\x1b@1": {"file.bin": b"12345"},
    }
    assert one.media == []
    assert sorted(one.left_out) == [
        "artifact kept/link: it is a link",
        "artifact kept/pipe: it is no regular file",
        "artifact large: 105 Bytes, and at most 50 Bytes of a run are kept",
        "artifact many: 10 files, and at most 9 of a run are kept",
    ]


def test_artifacts_at_other_places_are_named(tmp_path):
    write_mlflow(tmp_path / "mlruns")
    meta = tmp_path / "mlruns/1" / ("a" * 32) / "meta.yaml"
    meta.write_text(meta.read_text() + "artifact_uri: s3://bucket/1\n")
    found = read_all(tmp_path / "mlruns", find, tmp_path)
    assert found["a"].left_out == ("artifacts in s3://bucket/1, if there are any",)
    assert found["b"].left_out == ()


def test_links_and_pipes_are_not_read(database, tmp_path):
    write_mlflow(tmp_path / "outside")
    place = tmp_path / "links"
    place.mkdir()
    (place / "mlflow.db").symlink_to(database / "mlflow.db")
    (place / "mlruns").symlink_to(tmp_path / "outside")
    assert read_all(place, find, tmp_path) == {}
    write_mlflow(tmp_path / "mlruns")
    run = tmp_path / "mlruns/1" / ("a" * 32)
    (run / "artifacts").mkdir()
    (run / "artifacts/secret.txt").symlink_to("/etc/hostname")
    os.mkfifo(run / "metrics/pipe")
    (run / "metrics/link").symlink_to("/etc/hostname")
    one = read_all(tmp_path / "mlruns", find, tmp_path)["a"]
    assert ({*one.series()}, one.media, one.artifacts) == ({"loss"}, [], {})


def test_damage_is_named_and_the_rest_is_read(tmp_path):
    write_mlflow(tmp_path / "mlruns")
    run = tmp_path / "mlruns/1" / ("a" * 32)
    with (run / "metrics/loss").open("ab") as file:
        file.write(b"\xff\xfe no line\n1 2\n" + b"9" * 1_000_000 + b"\n1700000009000 0.25 9\n")
    (run / "params").mkdir()
    (run / "params/big").write_text("x" * 1_000_000)
    one = read_all(tmp_path / "mlruns", find, tmp_path)["a"]
    assert one.series()["loss"][-1] == (9, 0.25)
    assert one.is_damaged
    assert "lines cannot be read" in one.left_out[0]


def test_removed_runs_are_left_out_and_odd_yaml_does_no_harm(tmp_path):
    write_mlflow(tmp_path / "mlruns")
    first, second = (tmp_path / "mlruns/1" / (name * 32) for name in "ab")
    text = (first / "meta.yaml").read_text()
    (first / "meta.yaml").write_text(text.replace("active", "deleted"))
    bomb = "a: &a [x,x]\nb: &b [*a,*a]\n" + 'run_name: "a\\x1b[2J"\n' + "!!python/object: os\n"
    text = (second / "meta.yaml").read_text().replace("run_name: b\n", bomb)
    (second / "meta.yaml").write_text(text)
    [name] = read_all(tmp_path / "mlruns", find, tmp_path)
    assert name == "a\\x1b[2J"
    shutil.rmtree(second / "metrics")
    assert math.isclose(
        read_all(tmp_path / "mlruns", find, tmp_path)[name].run.began_at, 1_700_003_600
    )
