"""export: every point once and in order, into files that are there whole or not at all."""

import builtins
import csv
import errno
import io
import json
import math
import os
import stat

import pyarrow.parquet as pq
import pytest

from cli.results import points
from nsml.v1 import sessions_pb2 as pb
from tests.unit.nsml.client.contract_server import EPOCH


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def reported(state):
    """Of each kind of value one, and two ranks with the same step."""
    session = state.add("kim/mnist/1")
    for step, value in enumerate([1.5, math.nan, math.inf, -math.inf, 1e300, 5e-324]):
        state.report(session, "train/loss", value, step=step)
    state.report(session, "note", json='{"a": [1, "둘째\\u0007"]}', step=2.5)
    state.report(session, 'a,"b"\n=x\x1b[2J', 0.0)
    state.report(session, "train/loss", 2.5, step=1, rank=1)
    return session


ROWS = [
    ("train/loss", 0, 0.0, 1.5, None),
    ("train/loss", 0, 1.0, "nan", None),
    ("train/loss", 0, 2.0, math.inf, None),
    ("train/loss", 0, 3.0, -math.inf, None),
    ("train/loss", 0, 4.0, 1e300, None),
    ("train/loss", 0, 5.0, 5e-324, None),
    ("note", 0, 2.5, None, {"a": [1, "둘째\x07"]}),
    ('a,"b"\n=x\x1b[2J', 0, None, 0.0, None),
    ("train/loss", 1, 1.0, 2.5, None),
]


def comparable(value):
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def test_parquet(nsml, reported, here, monkeypatch):
    monkeypatch.setattr(points, "_ROWS_TOGETHER", 4)
    nsml("export", "@last", "-o", "run.parquet")
    table = pq.read_table(here / "run.parquet")
    assert table.column_names == list(points.FIELDS)
    assert pq.ParquetFile(here / "run.parquet").num_row_groups == 3
    read = [
        (
            r["metric"],
            r["rank"],
            r["step"],
            comparable(r["value"]),
            r["json"] and json.loads(r["json"]),
        )
        for r in table.to_pylist()
    ]
    assert read == ROWS
    assert {r["session"] for r in table.to_pylist()} == {"kim/mnist/1"}
    assert [r["time"].timestamp() for r in table.to_pylist()] == [EPOCH + n for n in range(9)]


def test_json_lines(nsml, reported):
    lines = nsml("export", "@last", "--format", "jsonl").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [list(row) for row in rows] == [list(points.FIELDS)] * 9
    values = {"NaN": "nan", "Infinity": math.inf, "-Infinity": -math.inf}
    assert [
        (r["metric"], r["rank"], r["step"], values.get(r["value"], r["value"]), r["json"])
        for r in rows
    ] == ROWS
    assert rows[0]["time"] == "2023-11-14T22:13:20.000000Z"
    assert not any("\x1b" in line or "\x07" in line for line in lines)


def test_csv_on_stdout_is_the_default(nsml, reported):
    result = nsml("export", "@last")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(rows[0]) == list(points.FIELDS)
    assert [comparable(float(r["value"])) if r["value"] else None for r in rows] == [
        value for *_, value, _ in ROWS
    ]
    assert json.loads(rows[6]["json"]) == {"a": [1, "둘째\x07"]}
    assert rows[7]["step"] == ""
    assert "\x1b" not in result.stdout
    assert result.stderr == "9 points of 1 session\n"


def test_metrics_are_chosen_and_misspelt_ones_told(nsml, reported, here):
    assert len(nsml("export", "@last", "-m", "no*", "-m", "x").stdout.splitlines()) == 2
    result = nsml("export", "@last", "-m", "train/los", "-o", "x.csv", check=False)
    assert (result.code, names_in(here)) == (5, [])
    assert "nsml export kim/mnist/1 -m train/loss" in result.stderr


def test_a_broken_stream_goes_on_where_it_was(nsml, state, here):
    session = state.add("kim/mnist/1")
    for step in range(20):
        state.report(session, "loss", step / 10, step=step)
    state.breaks_off = 1
    result = nsml("export", "@last", "-o", "x.csv")
    assert "reconnecting" in result.stderr
    rows = csv.DictReader((here / "x.csv").open())
    assert [float(row["step"]) for row in rows] == list(range(20))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failure_leaves_what_was_there(nsml, reported, here, monkeypatch):
    (here / "x.csv").write_text("before")
    with monkeypatch.context() as full:
        full.setattr(points._Csv, "add", no_room)
        result = nsml("export", "@last", "-o", "x.csv", check=False)
    assert (result.code, result.stderr) == (1, "error: x.csv: No space left on device\n")
    assert names_in(here) == ["x.csv"]
    assert (here / "x.csv").read_text() == "before"
    (here / "link.csv").symlink_to("x.csv")
    nsml("export", "@last", "-o", "link.csv")
    assert (here / "link.csv").is_symlink()
    assert (here / "x.csv").read_text().startswith("session,attempt")
    assert stat.S_IMODE((here / "x.csv").stat().st_mode) & 0o077 == 0o044 & ~os.umask(os.umask(0))


def test_a_folder_gets_a_file_for_each(nsml, state, here):
    for name in ("kim/a_b/1", "kim/a/b_1", "kim/c/1"):
        state.report(state.add(name), "loss", 1.0)
    result = nsml("export", "kim/*", "-o", "points/", "-j")
    items = json.loads(result.stdout)["items"]
    assert len({item["file"] for item in items}) == 3
    assert "points/kim_c_1.csv" in {item["file"] for item in items}
    assert {item["points"] for item in items} == {1}
    assert len(names_in(here / "points")) == 3


def test_one_file_for_several(nsml, state, here):
    for number in (1, 2):
        state.report(state.add(f"kim/a/{number}"), "loss", number)
    shown = nsml("export", "a/1", "a/2", "-o", "x.jsonl").stdout
    assert shown.splitlines()[2:] == ["kim/a/1  1       x.jsonl", "kim/a/2  1       x.jsonl"]
    names = [json.loads(line)["session"] for line in (here / "x.jsonl").read_text().splitlines()]
    assert names == ["kim/a/1", "kim/a/2"]


def test_what_is_no_file_is_never_replaced(nsml, reported, here):
    os.mkfifo(here / "pipe.csv")
    result = nsml("export", "@last", "-o", "pipe.csv", check=False)
    assert result.code == 6
    assert "is there and is no file" in result.stderr
    assert stat.S_ISFIFO((here / "pipe.csv").stat().st_mode)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-o", "csv"], "nsml export ... --format csv"),
        (["-o", "points"], "unknown file format: 'points'"),
        (["-o", ""], "it names no file"),
        (["--format", "xlsx"], "'xlsx' is not one of"),
    ],
)
def test_refused(nsml, reported, here, words, told):
    result = nsml("export", "@last", *words, check=False)
    assert (result.code, names_in(here)) == (2, [])
    assert told in result.stderr


def test_parquet_is_not_shown_on_a_terminal_and_needs_its_library(nsml, reported, monkeypatch):
    assert nsml("export", "@last", "--format", "parquet", terminal=True, check=False).code == 2
    assert pq.read_table(
        io.BytesIO(nsml("export", "@last", "--format", "parquet").bytes)
    ).num_rows == len(ROWS)
    load = builtins.__import__

    def without(name, *args, **kw):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return load(name, *args, **kw)

    monkeypatch.setattr(builtins, "__import__", without)
    result = nsml("export", "@last", "--format", "parquet", check=False)
    assert result.code == 1
    assert "pip install 'nsml[parquet]'" in result.stderr


def test_a_session_that_reported_nothing(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    assert nsml("export", "@last").stdout == ",".join(points.FIELDS) + "\n"


def test_metrics_beyond_the_listed_ones_are_exported(nsml, reported, monkeypatch):
    monkeypatch.setattr("cli.results.export.MOST_LISTED", 1)
    monkeypatch.setattr("cli.results.export._total", _nothing_listed)
    shown = nsml("export", "@last", "-m", "train/*")
    assert len(shown.stdout.splitlines()) == 8
    assert "7 points of 1 session" in shown.stderr


async def _nothing_listed(*_):
    return 0


def test_whether_a_metric_is_there_is_not_known_where_not_all_are_listed(
    nsml, reported, monkeypatch
):
    monkeypatch.setattr("cli.results.export.MOST_LISTED", 1)
    assert nsml("export", "@last", "-m", "train/los").stderr == "0 points of 1 session\n"
