"""Runs that real libraries recorded in a folder, outside of any session, and what `nsml import` reads of them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsml.client.session_restores import Contents, read_contents
from nsml.content.session_archives import members
from nsml.imports.archives import recorded, write_archive
from nsml.imports.folders import Folder
from nsml.imports.runs import PastRun
from nsml.tensorboard import tfevents
from tests.support.echoes import LIMIT_S

BEGAN = 1_700_000_000


def write_tensorboard(place: Path) -> None:
    """Write two runs as TensorBoard has them: `a` and `b`, of three steps."""
    for number, name in enumerate(("a", "b")):
        (place / name).mkdir(parents=True)
        began = BEGAN + 3600 * number
        data = tfevents.head(began) + b"".join(
            tfevents.scalar("loss", 1 / (step + 1), step=step, wall_time_s=began + step)
            for step in range(3)
        )
        (place / name / f"events.out.tfevents.{began}.host.1.0").write_bytes(data)


def write_mlflow(place: Path) -> None:
    """Write two runs into a file store, as MLflow does: `a` and `b`, of three steps."""
    for number, name in enumerate(("a", "b")):
        run, began = place / "1" / (name * 32), (BEGAN + 3600 * number) * 1000
        (run / "metrics").mkdir(parents=True)
        (place / "1/meta.yaml").write_text(
            "experiment_id: '1'\nlifecycle_stage: active\nname: digits\n"
        )
        meta = f"end_time: {began + 2000}\nlifecycle_stage: active\nrun_id: {run.name}\nrun_name: {name}\n"
        (run / "meta.yaml").write_text(f"{meta}start_time: {began}\nstatus: 3\nuser_id: kim\n")
        lines = [f"{began + 1000 * step} {1 / (step + 1)} {step}\n" for step in range(3)]
        (run / "metrics/loss").write_text("".join(lines))


def proto(*pairs: tuple[int, Any]) -> bytes:
    """A message: texts and bytes have a length, integers are varints."""
    found = b""
    for number, value in pairs:
        if isinstance(value, int):
            found += _varint(number << 3) + _varint(value % (1 << 64))
        else:
            data = value.encode() if isinstance(value, str) else value
            found += _varint(number << 3 | 2) + _varint(len(data)) + data
    return found


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def wandb_log(*messages: bytes) -> bytes:
    """A log of W&B; each message has room in its first block."""
    data = b":W&B\xe1\xbe\0"
    for one in messages:
        data += struct.pack("<IHB", zlib.crc32(b"\x01" + one), len(one), 1) + one
    return data


def history(step: int, time: float, **values: Any) -> bytes:
    """A report of W&B."""
    items = {**values, "_timestamp": time, "_step": step}
    pairs = [(1, proto((2, name), (16, json.dumps(one)))) for name, one in items.items()]
    return proto((2, proto(*pairs, (2, proto((1, step))))))


def wandb_run(name: str, began: int, *pairs: tuple[int, Any]) -> bytes:
    """The record of a run of W&B."""
    about = ((1, name * 8), (3, "digits"), (8, name), (17, proto((1, began))))
    return proto((17, proto(*about, *pairs)))


def write_wandb(place: Path) -> None:
    """Write two runs as W&B does: `a` and `b`, of three steps."""
    for number, name in enumerate(("a", "b")):
        folder = place / f"offline-run-20231114_22132{number}-{name * 8}"
        folder.mkdir(parents=True)
        began = BEGAN + 3600 * number
        steps = [history(step, began + step, loss=1 / (step + 1)) for step in range(3)]
        data = wandb_log(wandb_run(name, began), *steps, proto((18, proto((2, 2)))))
        (folder / f"run-{name * 8}.wandb").write_bytes(data)


Find = Callable[[Folder], list[PastRun]]


def run_alone(folder: Path, program: str, *paths: Path, python: str = sys.executable) -> str:
    """Run a program in `folder` without a session; return its output."""
    done = subprocess.run(
        [python, "-c", program],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "WANDB_SILENT": "true",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True, slots=True)
class Read:
    """A run as its archive has it, which is checked as `nsml restore` does."""

    run: PastRun
    contents: Contents
    files: dict[str, bytes]
    is_damaged: bool

    @property
    def session(self) -> Any:
        """Its record."""
        [inside] = self.contents.sessions.values()
        return inside.session

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is missing."""
        [inside] = self.contents.sessions.values()
        return inside.left_out

    @property
    def records(self) -> list[dict[str, Any]]:
        """Its reports."""
        data = self.files.get("sessions/1/records/1-0-1.jsonl", b"")
        return [json.loads(line) for line in data.splitlines()]

    def series(self) -> dict[str, list[tuple[Any, Any]]]:
        """Steps and values of each metric, in order."""
        found: dict[str, list[tuple[Any, Any]]] = {}
        for one in self.records:
            assert one["origin"] == self.run.origin
            for name, value in one["values"].items():
                found.setdefault(name, []).append((one["step"], value))
        return found

    @property
    def summary(self) -> dict[str, Any]:
        """What `nsml ps` shows."""
        shown = [one["values"] for one in self.records if one["summary"]]
        return shown[-1] if shown else {}

    @property
    def media(self) -> list[dict[str, Any]]:
        """Its media, each with the bytes as `data`."""
        found = []
        for line in self.files.get("sessions/1/media.jsonl", b"").splitlines():
            row = json.loads(line)
            found.append(
                row["media"] | {"data": self.files[f"{row['path']}/{row['media']['file']}"]}
            )
        return found

    @property
    def artifacts(self) -> dict[str, dict[str, bytes]]:
        """Files of its artifacts by path, by NAME@VERSION."""
        found = {}
        for line in self.files.get("sessions/1/artifacts.jsonl", b"").splitlines():
            row = json.loads(line)
            one, tree = row["artifact"], row["path"] + "/"
            files = {
                path.removeprefix(tree): data
                for path, data in self.files.items()
                if path.startswith(tree)
            }
            assert (one["file_count"], one["size_bytes"]) == (
                len(files),
                sum(map(len, files.values())),
            )
            found[f"{one['name']}@{one['version']}"] = files
        return found

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration by run; of the first run alone if there is one."""
        found = {one.run: json.loads(one.json) for one in self.session.reported_config.runs}
        return found[""] if [*found] == [""] else found

    @property
    def log(self) -> bytes:
        """Its output."""
        return self.files.get("sessions/1/logs/1-0.log", b"")


def read_one(run: PastRun, scratch: Path) -> Read:
    """Read a run and its archive."""
    archive = scratch / "session.tar.zst"
    with recorded(run) as recording, archive.open("wb") as file:
        write_archive(file, run, recording, dataset="digits", now=1.8e9)
        is_damaged = recording.is_damaged
    contents = read_contents(archive)
    files = {one.path: b"".join(one.pieces) for one in members(archive)}
    return Read(run, contents, files, is_damaged)


def read_all(place: Path, find: Find, scratch: Path) -> dict[str, Read]:
    """Read the runs in a folder, by name."""
    with Folder(place) as folder:
        return {run.name: read_one(run, scratch) for run in find(folder)}
