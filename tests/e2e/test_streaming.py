"""Datasets that a session reads over S3 and no node fetches: on a real platform, by the SDK and by S3 clients."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

FILES = {name: Random(name).randbytes(3 << 20) for name in ("one.bin", "deep/two.bin")}
READS = """\
import hashlib, json, os, time
import nsml

def read(path):
    with nsml.open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()

print(json.dumps([read("data/one.bin"), nsml.DATASET_PATH, os.path.exists("/data/data")]), flush=True)
while not os.path.exists("/app/go"):
    time.sleep(0.02)
with nsml.open("s3://data/deep/two.bin", "rb") as file:
    file.seek(-4, os.SEEK_END)
    print(json.dumps([read("/data/data/deep/two.bin"), file.read().hex()]), flush=True)
"""
CLIENT = """\
import hashlib, json, os, sys
import nsml

def sha256(data):
    return hashlib.sha256(data).hexdigest()

paths = ["one.bin", "deep/two.bin"]
found = {"nsml": {path: sha256(nsml.open(f"data/{path}", "rb").read()) for path in paths}}
try:
    import obstore
    from obstore.store import S3Store
except ImportError:
    pass
else:
    store = S3Store("data")
    listed = [one["path"] for some in obstore.list(store) for one in some]
    found["obstore"] = {path: sha256(bytes(obstore.get(store, path).bytes())) for path in listed}
    from pyarrow.fs import FileSystem
    s3, _ = FileSystem.from_uri("s3://data")
    found["pyarrow"] = {path: sha256(s3.open_input_file(f"data/{path}").read()) for path in paths}
print(json.dumps([found, os.environ["NSML_ISOLATION"]]), flush=True)
"""


def digest(name: str) -> str:
    return hashlib.sha256(FILES[name]).hexdigest()


def push(platform: Platform) -> None:
    folder = platform.folder / "pushed"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    platform.nsml("dataset", "push", "data", str(folder))


def printed(platform: Platform, name: str, count: int) -> list[list]:
    """The lists that a session has printed, each JSON; libraries may warn between them."""

    def lines() -> list[str] | None:
        found = [one for one in platform.nsml("logs", name).stdout.splitlines() if one[:1] == "["]
        return found if len(found) >= count else None

    return [json.loads(one) for one in wait_for(lines, what=f"{name} has printed {count} lines")]


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=1) as running:
        push(running)
        yield running


def test_a_session_reads_what_was_not_fetched_and_goes_on_while_its_agent_is_replaced(
    platform, tmp_path
):
    code = write_program(tmp_path / "code", READS)
    name = platform.nsml(
        "run", "-g", "0", "-o", "name", "--stream", "data", cwd=code
    ).stdout.strip()
    assert name.startswith("root/data/") or "/data/" in name
    (first,) = printed(platform, name, 1)
    assert first == [digest("one.bin"), "", False]
    fetched = platform.folder / "data/agent/datasets"
    assert list(fetched.iterdir()) == []
    platform.kill("agent")
    platform.up()
    (app,) = (platform.folder / "data/agent/replicas").glob("*/app")
    (app / "go").touch()
    last = printed(platform, name, 2)[-1]
    assert last == [digest("deep/two.bin"), FILES["deep/two.bin"][-4:].hex()]
    assert list(fetched.iterdir()) == []
    words = platform.nsml("command", name).stdout
    assert "--stream data" in words
    (item,) = platform.json("ps", "-a")["items"]
    assert [one["name"] for one in item["streamed_datasets"]] == ["data"]
    assert item["datasets"] == []


@pytest.mark.long("a platform for each level of isolation")
@pytest.mark.parametrize(
    ("level", "flags"),
    [
        pytest.param("none", [], marks=pytest.mark.variant),
        ("namespace", ["--network", "host"]),
    ],
)
def test_it_is_read_at_each_level(tmp_path, level, flags):
    settings = {"NSML_AGENT_HOST_NETWORK": "on-request"}
    with Platform(simulate_gpus=1, options=["--isolation", level], environment=settings) as running:
        push(running)
        code = write_program(tmp_path / "code", CLIENT)
        # what these tests have installed is where others see nothing
        python = sys.executable if level == "none" else "python3"
        name = running.nsml(
            *("run", "-g", "0", "-o", "name", "--stream", "data", *flags),
            *("--argv", "--", python, "main.py"),
            cwd=code,
            timeout_s=120,
        ).stdout.strip()
        found, where = printed(running, name, 1)[0]
        expected = {name: digest(name) for name in FILES}
        clients = ["nsml", *(["obstore", "pyarrow"] if level == "none" else [])]
        assert found == dict.fromkeys(clients, expected)
        assert where == level


LOOKS = """\
import json, os, nsml

found = [os.path.relpath(os.path.join(top, one), "/data") for top, _, files in os.walk("/data") for one in files]
try:
    read = nsml.open("kin/test/label").read()
except FileNotFoundError:
    read = None
print(json.dumps([sorted(found), read, nsml.open("kin/test/data").read()]), flush=True)
"""


@pytest.mark.parametrize("flag", ["-d", "--stream"])
def test_hidden_labels_reach_neither_the_program_nor_its_node(platform, tmp_path, flag):
    label = b"a label of the test set, which nobody may train on"
    (tmp_path / "kin/test").mkdir(parents=True)
    (tmp_path / "kin/test/label").write_bytes(label)
    (tmp_path / "kin/test/data").write_text("to predict")
    platform.nsml("dataset", "push", "kin", str(tmp_path / "kin"), "--hide", "test/label")
    code = write_program(tmp_path / "code", LOOKS)
    name = platform.nsml("run", "-g", "0", "-o", "name", flag, "kin", cwd=code).stdout.strip()
    (seen,) = printed(platform, name, 1)
    assert seen == [["kin/test/data"] if flag == "-d" else [], None, "to predict"]
    for folder, _, names in os.walk(
        platform.folder / "data/agent"
    ):  # without folders that go meanwhile
        for kept in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):  # the agent goes on with its work
                assert not kept.is_file() or label not in kept.read_bytes(), kept
    pulled = tmp_path / "pulled"
    platform.nsml("dataset", "pull", "kin", str(pulled))
    assert (pulled / "kin/test/label").read_bytes() == label
