"""Runs of W&B as sessions: of folders that its newest and its oldest supported version wrote offline."""

import base64
import hashlib
import json
import os
import struct

import pytest

from nsml.imports.wandb import find
from tests.support.past_runs import (
    BEGAN,
    history,
    proto,
    read_all,
    run_alone,
    wandb_log,
    wandb_run,
    write_wandb,
)
from tests.support.torch_environment import REPORTERS, oldest_wandb, require_torch

PROGRAM = """
import numpy, wandb
black = numpy.zeros((4, 6, 3), dtype="uint8")
run = wandb.init(project="digits", entity="team", name="sunny-1", notes="good", tags=["a", "b"], group="g",
                 job_type="train", mode="offline", config={"lr": 0.1, "opt": {"name": "adam", "betas": [0.9, 0.99]}})
run.define_metric("val/*", step_metric="epoch")
print("hello from the program")
for step in range(600):
    values = {"train/loss": 1 / (step + 1), "nested": {"a": step, "b": {"c": step * 2}}}
    if step % 100 == 99:
        values.update({"epoch": step // 100, "val/acc": step / 600})
    if step == 3:
        values.update({"hist": wandb.Histogram(np_histogram=([1, 2, 3], [0, 1, 2, 3])), "odd": float("nan"),
                       "html": wandb.Html("<b>hi</b>"), "words": "text",
                       "long": {f"name{number}": number for number in range(3000)}})
    run.log(values)
run.config.update({"late": 5})
run.summary["best"] = 0.9
run.log({"skip": 1}, step=1000)
run.finish()
run = wandb.init(project="digits", name="bad", mode="offline", reinit=True)
run.log({"loss": 1})
run.finish(exit_code=3)
run = wandb.init(project="pictures", name="shown", mode="offline", reinit=True)
run.log({"one": wandb.Image(black, caption="black"), "two": [wandb.Image(black, caption=str(n)) for n in range(2)],
         "table": wandb.Table(columns=["a", "b"], data=[[1, "x"], [2, "y"]])}, step=4)
run.finish()
"""


@pytest.fixture(scope="module", params=["0.31.0", "0.17.9"])
def place(request, tmp_path_factory):
    """A folder that a program left."""
    python = require_torch()
    folder = tmp_path_factory.mktemp("wandb")
    is_oldest = request.param == "0.17.9"
    paths = oldest_wandb(tmp_path_factory.mktemp("paths")) if is_oldest else [REPORTERS]
    run_alone(folder, PROGRAM, *paths, python=python)
    return folder


def test_a_run_has_what_the_program_logged(place, tmp_path):
    found = read_all(place, find, tmp_path)
    assert {*found} == {"shown", "sunny-1", "bad"}
    one = found["sunny-1"]
    series = one.series()
    assert series["train/loss"] == [(step, 1 / (step + 1)) for step in range(600)]
    assert series["nested.a"] == [(step, step) for step in range(600)]
    assert series["nested.b.c"] == [(step, step * 2) for step in range(600)]
    ends = range(99, 600, 100)
    assert series["epoch"] == [(step, step // 100) for step in ends]
    assert series["val/acc"] == [(step // 100, step / 600) for step in ends]
    assert (series["odd"], series["skip"]) == ([(3, "NaN")], [(1000, 1)])
    assert series["long.name2999"] == [(3, 2999)]
    assert not {name for name in series if name.startswith("_") or "words" in name}
    assert one.config == {"lr": 0.1, "opt": {"name": "adam", "betas": [0.9, 0.99]}, "late": 5}
    assert one.summary["best"] == 0.9
    assert b"hello from the program\n" in one.log
    assert (one.left_out, one.is_damaged) == ((), False)
    media = {each["name"]: each for each in one.media}
    assert {name: each["kind"] for name, each in media.items()} == {
        "hist": "histogram",
        "html": "text",
    }
    assert json.loads(media["hist"]["data"]) == {"edges": [0, 1, 2, 3], "counts": [1, 2, 3]}
    assert b"<b>hi</b>" in media["html"]["data"]


def test_a_session_says_whose_run_it_was_and_how_it_ended(place, tmp_path):
    found = read_all(place, find, tmp_path)
    one, bad = found["sunny-1"], found["bad"]
    assert (one.run.outcome.value, bad.run.outcome.value) == ("SUCCEEDED", "FAILED")
    assert bad.session.end.exit_code == 3
    assert (one.session.owner, one.run.project, one.session.memo) == (
        "team",
        "digits",
        "sunny-1: good",
    )
    labels = dict(one.session.spec.labels)
    assert labels == {"project": "digits", "group": "g", "job-type": "train", "tags": "a, b"}
    assert one.session.spec.argv[0] == "python"
    assert 0 < one.session.ended_at.ToNanoseconds() - one.session.started_at.ToNanoseconds() < 600e9
    assert one.session.replicas[0].python_version.startswith("3.")


def test_pictures_and_tables_are_media(place, tmp_path):
    found = read_all(place, find, tmp_path)
    media = {each["name"]: each for each in found["shown"].media}
    assert {name: (each["kind"], each["caption"]) for name, each in media.items()} == {
        "one": ("image", "black"),
        "two/0": ("image", "0"),
        "two/1": ("image", "1"),
        "table": ("table", ""),
    }
    assert {each["step"] for each in media.values()} == {4}
    assert media["one"]["facts"] == {"width": 6, "height": 4}
    assert json.loads(media["table"]["data"])["data"] == [[1, "x"], [2, "y"]]


KEEPING = """
import os, wandb
os.makedirs("kept/sub")
for name, data in (("model.pt", b"one"), ("kept/sub/a.bin", b"two"), ("later.bin", b"three")):
    with open(name, "wb") as file:
        file.write(data)
run = wandb.init(project="digits", name="keeping", mode="offline")
run.save("model.pt")
run.save("kept/sub/a.bin", base_path="kept")
with open(os.path.join(run.dir, "own.bin"), "wb") as file:
    file.write(b"four")
for name, paths, more in (("net", ("model.pt", "kept/sub/a.bin"), {"policy": "immutable"}), ("copied", ("model.pt",), {}),
                          ("changed", ("later.bin",), {"policy": "immutable"})):
    made = wandb.Artifact(name, type="model")
    for path in paths:
        made.add_file(path, **more)
    run.log_artifact(made)
run.log({"loss": 1.0, "table": wandb.Table(columns=["a"], data=[[1]])})
run.finish()
with open("later.bin", "wb") as file:
    file.write(b"other")
"""


@pytest.fixture(
    scope="module",
    params=["0.31.0", pytest.param("0.17.9", marks=pytest.mark.variant)],
)
def kept(request, tmp_path_factory):
    """A folder of a program that kept files."""
    python = require_torch()
    folder = tmp_path_factory.mktemp("kept")
    is_oldest = request.param == "0.17.9"
    paths = oldest_wandb(tmp_path_factory.mktemp("paths")) if is_oldest else [REPORTERS]
    run_alone(folder / ".", KEEPING, *paths, python=python)
    return folder


def test_saved_files_and_artifacts_in_the_folder_are_artifacts(kept, tmp_path):
    [one] = read_all(kept, find, tmp_path).values()
    # W&B's own copies of "copied" are below HOME, which is the folder here.
    assert one.artifacts == {
        "copied@1": {"model.pt": b"one"},
        "model.pt@1": {"model.pt": b"one"},
        "net@1": {"a.bin": b"two", "model.pt": b"one"},
        "own.bin@1": {"own.bin": b"four"},
        "sub@1": {"a.bin": b"two"},
    }
    assert one.left_out == ("artifact changed: later.bin: the file has changed since",)
    assert [each["name"] for each in one.media] == ["table"]


def test_what_is_outside_of_the_folder_is_named(kept, tmp_path):
    [one] = read_all(kept / "wandb", find, tmp_path).values()
    assert {*one.artifacts} == {"own.bin@1"}
    assert sorted(one.left_out) == [
        f"artifact changed: later.bin: it is outside of {kept}/wandb",
        f"artifact copied: model.pt: it is outside of {kept}/wandb",
        f"artifact net: a.bin: it is outside of {kept}/wandb",
        f"file model.pt: a link: it is outside of {kept}/wandb",
        f"file sub/a.bin: a link: it is outside of {kept}/wandb",
    ]


def logged(name, *entries):
    """The record of an artifact of W&B: path, content and place of each file."""
    files = [
        proto(
            (1, path), (2, base64.b64encode(hashlib.md5(data).digest()).decode()), (6, str(place))
        )
        for path, data, place in entries
    ]
    return proto((8, proto((4, "model"), (5, name), (12, proto(*((4, one) for one in files))))))


def test_no_link_and_no_record_leads_out_of_the_folder(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_bytes(b"secret")
    root = tmp_path / "wandb"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "inside.bin").write_bytes(b"in")
    good = ("a.bin", b"in", root / "inside.bin")
    records = [
        logged("outside", ("a", b"secret", secret)),
        logged("up", ("a", b"secret", root / "../secret.txt")),
        logged("through", ("a", b"secret", root / "out/secret.txt")),
        logged("linked", ("a", b"secret", root / "link")),
        logged("relative", ("a", b"secret", "secret.txt")),
        logged("escaping", ("../../a", b"in", root / "inside.bin")),
        logged("none", ("a", b"in", "")),
        logged("good", good, ("deep/b.bin", *good[1:])),
        logged("good", good, ("a.bin/b", *good[1:])),
    ]
    folder = write_run(root, "a", wandb_run("a", BEGAN), history(1, BEGAN, loss=1.0), *records)
    (root / "link").symlink_to(secret)
    for name, target in (
        ("absolute", secret),
        ("above", "../../../secret.txt"),
        ("folder", tmp_path),
        ("through", root / "out/secret.txt"),
        ("twice", root / "link"),
        ("gone", root / "nowhere"),
        ("loop", folder / "files/loop"),
        ("zero", "/dev/zero"),
        ("near", "../../inside.bin"),
    ):
        (folder / "files" / name).symlink_to(target)
    os.mkfifo(folder / "files/pipe")
    [one] = read_all(root, find, tmp_path).values()
    assert one.artifacts == {
        "good@1": {"a.bin": b"in", "deep/b.bin": b"in"},
        "good@2": {"a.bin": b"in"},
        "near@1": {"near": b"in"},
    }
    assert len(one.left_out) == 7 + 1 + 8 + 1
    assert not any(b"secret" in data for data in one.files.values() if b"out" not in data)


def write_run(place, name, *messages, date="20231114_221320"):
    folder = place / f"run-{date}-{name * 8}"
    (folder / "files/media").mkdir(parents=True)
    (folder / f"run-{name * 8}.wandb").write_bytes(wandb_log(*messages))
    return folder


def test_the_folders_of_a_resumed_run_are_one_session(tmp_path):
    end = proto((18, proto((1, 0), (2, 2))))
    crashed = [wandb_run("a", BEGAN), history(0, BEGAN, loss=1.0), history(1, BEGAN + 1, loss=0.5)]
    resumed = [wandb_run("a", BEGAN + 60), history(2, BEGAN + 61, loss=0.25), end]
    write_run(tmp_path / "wandb", "a", *resumed, date="20231114_221420")
    write_run(tmp_path / "wandb", "a", *crashed)
    [one] = read_all(tmp_path, find, tmp_path).values()
    assert one.series()["loss"] == [(0, 1.0), (1, 0.5), (2, 0.25)]
    assert one.run.outcome.value == "SUCCEEDED"
    assert (one.session.created_at.seconds, one.session.ended_at.seconds) == (BEGAN, BEGAN + 62)


def test_a_run_without_an_end_was_stopped(tmp_path):
    write_run(tmp_path, "a", wandb_run("a", BEGAN), history(0, BEGAN + 9, loss=1.0))
    [one] = read_all(tmp_path, find, tmp_path).values()
    assert (one.run.outcome.value, one.session.ended_at.seconds) == ("STOPPED", BEGAN + 9)
    assert one.left_out == ()


def test_damage_is_named_and_later_blocks_are_read(tmp_path):
    steps = [history(step, BEGAN + step, loss=float(step)) for step in range(2000)]
    data = bytearray(log_in_blocks(wandb_run("a", BEGAN), *steps))
    data[40_000] ^= 0xFF
    folder = write_run(tmp_path, "a")
    (folder / "run-aaaaaaaa.wandb").write_bytes(data)
    [one] = read_all(tmp_path, find, tmp_path).values()
    found = [step for step, _ in one.series()["loss"]]
    assert (found[0], found[-1]) == (0, 1999)
    assert 1000 < len(found) < 2000
    assert "damaged parts" in one.left_out[0]
    (folder / "run-aaaaaaaa.wandb").write_bytes(data[:39_000])
    [one] = read_all(tmp_path, find, tmp_path).values()
    assert (one.left_out, len(one.records) > 100) == ((), True)


def log_in_blocks(*messages):
    """A log whose messages end with their blocks: the rest of a block is zeros."""
    data = wandb_log()
    for one in messages:
        if len(data) % 32768 + 7 + len(one) > 32768:
            data += bytes(-len(data) % 32768)
        data += wandb_log(one)[7:]
    return data


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 50,
        proto((2, b"\x0a\xff\xff\xff\xff\x0f")),
        proto((2, proto((1, proto((2, "x"), (16, "[" * 5000)))))),
        proto((2, proto((1, proto((2, "x"), (16, "1e999999")))))),
        proto((2, proto((1, proto(*[(2, "x")] * 500, (16, "1")))))),
        proto((12, proto((1, "loss"), (4, "loss")))),
        proto((17, proto((1, "\x1b[2J"), (17, proto((1, 1 << 62)))))),
        proto((13, proto((2, proto((1, 1 << 62))), (3, b"\x1b[2J\xff")))),
        proto((18, proto((1, -5), (2, 1 << 62)))),
        history(-1, float("nan"), loss=float("inf")),
        history(
            1,
            BEGAN,
            loss={
                "_type": "histogram",
                "values": "x",
                "packedBins": {"min": 0, "size": 1, "count": 1 << 40},
            },
        ),
        history(1, BEGAN, loss={"_type": "images/separated", "filenames": 5}),
        history(1, BEGAN, loss={"_type": ["x"]}),
    ],
)
def test_no_message_breaks_the_reading_of_others(tmp_path, message):
    write_run(
        tmp_path,
        "a",
        wandb_run("a", BEGAN),
        history(0, BEGAN, good=1.0),
        message,
        history(5, BEGAN + 5, good=2.0),
    )
    [one] = read_all(tmp_path, find, tmp_path).values()
    assert one.series()["good"] == [(0, 1.0), (5, 2.0)]


@pytest.mark.parametrize(
    "path", ["../../../../outside.png", "/etc/hostname", "media/link", "media/pipe", "media"]
)
def test_files_outside_of_the_run_are_not_read(tmp_path, path):
    (tmp_path / "outside.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    shown = history(1, BEGAN, picture={"_type": "image-file", "path": path}, good=1.0)
    folder = write_run(tmp_path / "wandb", "a", wandb_run("a", BEGAN), shown)
    (folder / "files/media/link").symlink_to(tmp_path / "outside.png")
    os.mkfifo(folder / "files/media/pipe")
    [one] = read_all(tmp_path / "wandb", find, tmp_path).values()
    assert (one.media, len(one.left_out)) == ([], 1)
    assert one.left_out[0].startswith("media picture")


def test_what_is_no_log_is_refused_by_its_name(tmp_path):
    write_wandb(tmp_path)
    folder = write_run(tmp_path, "c")
    (folder / "run-cccccccc.wandb").write_bytes(struct.pack("<I", 5) * 100)
    with pytest.raises(ValueError, match="it is no log of W&B"):
        read_all(tmp_path, find, tmp_path)
