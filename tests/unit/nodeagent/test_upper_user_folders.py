"""What user code can put into its folders, and say on its socket, against the agent."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import grpc.aio
import pytest
from structlog.testing import capture_logs

from nodeagent.collect.pace import Pace
from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.replica.preparation_steps import CodeHook, Draft, PreparationFailed
from nodeagent.replica.requests import Loads, RequestRefused, RequestServer
from nodeagent.safe_paths import open_folder
from nodeagent.storage import checkpoints
from nodeagent.storage.checkpoints import OnlyResult, SavedCheckpoint, Uploads
from nodeagent.storage.datasets import Trees
from nodeagent.storage.holes import data_bytes
from nodeagent.storage.reservations import Reservation, Room, Size
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread, inline
from nsml.content.errors import Unreadable
from nsml.content.manifest import decode
from nsml.content.packing import pack, pack_files
from nsml.v1 import agents_pb2, sessions_pb2
from nsml.v1 import checkpoints_pb2 as pb
from tests.support.scripted_platform import ScriptedPlatform, session_id
from tests.unit.nodeagent.collect.test_pace import Time
from tests.unit.nodeagent.test_folders import nest

T = TypeVar("T")

S = session_id(1)
REPLICA = ReplicaId(session_id=S, attempt=1, rank=0)


class Bench:
    """One replica's folder beside a secret, and a platform."""

    def __init__(self, data: Path, rpc: Rpc, platform: ScriptedPlatform) -> None:
        self.platform = platform
        self.folder: ReplicaFolder = ReplicaFolders(data / "replicas").of(REPLICA)
        self.folder.path.parent.mkdir(parents=True)
        self.folder.create()
        self.secret = data / "secret"
        self.secret.mkdir()
        (self.secret / "key").write_text("secret")
        shared: dict[str, Any] = {"rpc": lambda: rpc, "run": in_thread, "pause": _pause}
        self.uploads = Uploads(REPLICA, self.folder, **shared)
        self.sealed = partial(Uploads, REPLICA, self.folder, **shared)
        trees = Trees(data / "datasets", **shared)
        self.loads = Loads(trees, data / "staging", **shared)
        trees.create()
        self.loads.create()

    def save(self, name: str, number: int, **files: str) -> SavedCheckpoint:
        folder = self.folder.checkpoints / f"{number}-{name}" / "model"
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text)
        return saved(name, f"{number}-{name}/model", *files, at=100.0 + number)

    async def send(self, *checkpoints: SavedCheckpoint) -> None:
        for checkpoint in checkpoints:
            await self.uploads.add(checkpoint)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            working = group.create_task(self.uploads.work())
            await self.uploads.finished()
            working.cancel()

    def committed(self, name: str) -> dict[str, bytes]:
        digest = self.platform.checkpoints[S, name].digest
        manifest = decode(self.platform.blobs[digest])
        return {
            entry.path: b"".join(self.platform.blobs[ref.digest] for ref in entry.chunks)
            for entry in manifest.entries
        }


def saved(name: str, folder: str, *files: str, at: float = 1.0) -> SavedCheckpoint:
    return SavedCheckpoint(name=name, folder=folder, saved_at=at, files=files)


async def _pause() -> None:
    await asyncio.sleep(0.01)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    platform = ScriptedPlatform(patience_s=30)
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Bench(tmp_path, Rpc(channel), platform)
    await server.stop(None)


async def test_a_checkpoint_is_sent(bench: Bench) -> None:
    await bench.send(bench.save("best", 1, weights="w", config="c"))
    assert bench.committed("best") == {"config": b"c", "weights": b"w"}
    commit = bench.platform.commits[0]
    assert (commit.saved_at.seconds, commit.size_bytes, commit.file_count) == (101, 2, 2)


def artifact(bench: Bench, number: int, **files: str) -> SavedCheckpoint:
    made = bench.save("%artifact", number, **files)
    return replace(made, name="report", is_artifact=True, step=float(number))


async def test_what_waits_for_its_commit_is_not_read_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [grpc.StatusCode.UNAVAILABLE] * 3
    commit, reads = ScriptedPlatform.CommitArtifact, []

    async def refuse(platform: ScriptedPlatform, request: Any, context: Any) -> Any:
        if codes:
            await context.abort(codes.pop(), "not ended yet")
        return await commit(platform, request, context)

    def read(*given: Any, **named: Any) -> Any:
        reads.append(given)
        return pack_files(*given, **named)

    monkeypatch.setattr(ScriptedPlatform, "CommitArtifact", refuse)
    monkeypatch.setattr("nodeagent.storage.checkpoints.pack_files", read)
    whole = replace(artifact(bench, 0, a="one", b="two"), files=(), is_whole=True)
    await bench.send(whole)
    [told] = bench.platform.artifacts
    assert (told.file_count, told.size_bytes, len(reads)) == (2, 6, 1)


async def test_a_kept_file_that_changes_while_it_is_sent_costs_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(root: Path, files: Sequence[str], **limits: Any) -> Any:
        found = pack_files(root, files, **limits)
        if "b" in files:
            (root / "b").write_text("another")
        return found

    monkeypatch.setattr("nodeagent.storage.checkpoints.pack_files", changing)
    first, second = (artifact(bench, number, a="1", b="2" * (3 << 20), c="3") for number in (0, 1))
    kept = replace(first, name="/app", files=(), is_whole=True, left_out="left out: d")
    await bench.send(kept, replace(second, files=(), is_whole=True))
    saved, told = bench.platform.artifacts
    assert (told.name, told.file_count, told.why_lost) == ("/app", 2, "")
    assert told.left_out == "left out: 1 file (changed while being sent); d"
    found = await bench.uploads.kept_files()
    assert found is not None
    named = found.all_left_out(is_named=True)
    assert named == "left out: 1 file (changed while being sent): b; d"
    assert saved.why_lost, "what a program saved is all there, or lost"


@pytest.mark.parametrize("path", [".", "..", "a\0b", "a" * 300, "folder", "a/b"])
async def test_kept_files_that_cannot_be_read_are_lost_where_no_file_can_be_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    kept = replace(artifact(bench, 0, a="1"), name="/app", files=(), is_whole=True)
    (bench.folder.checkpoints / kept.folder / "folder").mkdir()

    def unreadable(*_: object, **__: object) -> NoReturn:
        raise Unreadable(path, "cannot read it: Input/output error") from OSError(errno.EIO, "")

    monkeypatch.setattr("nodeagent.storage.checkpoints.pack_files", unreadable)
    await bench.send(kept)
    [told] = bench.platform.artifacts
    assert told.why_lost == "cannot read it: Input/output error"


async def test_each_artifact_of_a_name_is_sent_and_its_folder_removed(bench: Bench) -> None:
    best = bench.save("best", 1, w="1")
    first, second = artifact(bench, 2, a="one"), artifact(bench, 3, a="two")
    for one in (best, first, second):
        await bench.uploads.add(one)
    successor = Uploads(REPLICA, bench.folder, rpc=bench.uploads._rpc, run=in_thread, pause=_pause)
    await successor.restore()
    bench.uploads = successor
    await bench.send()
    told = bench.platform.artifacts
    assert [(one.name, one.folder, one.step) for one in told] == [
        ("report", "2-%artifact/model", 2.0),
        ("report", "3-%artifact/model", 3.0),
    ]
    content = [decode(bench.platform.blobs[one.digest]).entries[0].chunks[0] for one in told]
    assert [bench.platform.blobs[ref.digest] for ref in content] == [b"one", b"two"]
    assert [path.name for path in bench.folder.checkpoints.iterdir()] == ["1-best"]
    # Sent again after a kill, it is not there any more: what is durable stays so on the platform.
    assert await bench.uploads.existing([first]) == []
    assert bench.platform.artifacts[-1].why_lost == "its folder was removed after it was saved"


async def test_no_artifact_leads_out_of_its_folder(bench: Bench) -> None:
    folder = bench.folder.checkpoints / "1-%artifact" / "model"
    folder.mkdir(parents=True)
    (folder / "key").symlink_to(bench.secret / "key")
    (bench.folder.checkpoints / "2-%artifact").symlink_to(bench.secret)
    for number, file in ((1, "key"), (1, "../../../secret/key"), (2, "key")):
        lost = saved("x", f"{number}-%artifact/model", file)
        await bench.send(replace(lost, is_artifact=True))
    assert [bool(one.why_lost) for one in bench.platform.artifacts] == [True] * 3
    assert not any(b"secret" in blob for blob in bench.platform.blobs.values())
    record = {"kind": "artifact", "time": 1.0, "name": "x", "folder": "1-best/model", "files": []}
    assert SavedCheckpoint.from_record(record) is None, "a checkpoint's folder is not removed"


async def test_one_without_files_is_sent_too(bench: Bench) -> None:
    await bench.send(bench.save("empty", 1))
    assert bench.committed("empty") == {}


@pytest.mark.parametrize("what", ["opened", "_packed", "put_tree"])
async def test_what_the_node_is_short_of_costs_no_checkpoint(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    whole, refusals = getattr(checkpoints, what), [errno.EMFILE, errno.ENOSPC]

    def short(*args: Any, **kwargs: Any) -> Any:
        if refusals:
            number = refusals.pop()
            raise OSError(number, os.strerror(number))
        return whole(*args, **kwargs)

    monkeypatch.setattr(checkpoints, what, short)
    await bench.send(bench.save("best", 1, weights="w"))
    assert (bench.committed("best"), refusals) == ({"weights": b"w"}, [])


async def test_checkpoints_that_are_not_there_cost_few_notes_and_lines(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[int] = []
    write = checkpoints._write_note

    def note(path: Path, pending: Sequence[SavedCheckpoint]) -> None:
        notes.append(len(pending))
        write(path, pending)

    monkeypatch.setattr(checkpoints, "_write_note", note)
    lost = [saved(f"{number}", f"{number}-nowhere") for number in range(1_000)]
    with capture_logs() as said:
        await bench.uploads.add(*lost)
        await bench.send()
    assert notes[-1] == 0
    assert len(notes) < 25
    told = [one for one in said if one["event"] == "checkpoint.lost"]
    assert [one.get("more") for one in told] == [None, 999]
    # what a successor finds is what is still to be sent
    assert json.loads((bench.folder.path / "uploads.json").read_bytes()) == []


async def test_what_was_overwritten_meanwhile_is_skipped(bench: Bench) -> None:
    first, second = bench.save("best", 1, w="1"), bench.save("best", 2, w="2")
    await bench.send(first, second)
    assert bench.committed("best") == {"w": b"2"}
    assert len(bench.platform.commits) == 1
    assert [path.name for path in bench.folder.checkpoints.iterdir()] == ["2-best"]


async def test_what_is_saved_while_an_older_one_is_sent_is_kept_and_sent(bench: Bench) -> None:
    newer = [bench.save("best", 2, weights="two")]
    await bench.uploads.add(bench.save("best", 1, weights="one"))

    async def run(work: Callable[[], T], /) -> T:
        if newer:
            await bench.uploads.add(newer.pop())
        return await in_thread(work)

    bench.uploads._run = run
    await bench.send()
    assert bench.committed("best") == {"weights": b"two"}
    assert [path.name for path in bench.folder.checkpoints.iterdir()] == ["2-best"]


async def test_a_newer_folder_outlives_an_older_checkpoint(bench: Bench) -> None:
    bench.save("best", 2, weights="two")
    await bench.send(bench.save("best", 1, weights="one"))
    assert (bench.folder.checkpoints / "2-best" / "model" / "weights").read_text() == "two"


async def test_a_checkpoint_larger_than_the_disk_is_not_read(bench: Bench) -> None:
    hollow = bench.save("best", 1, w="1")
    os.truncate(bench.folder.checkpoints / "1-best" / "model" / "w", 8 << 40)
    await bench.send(hollow, bench.save("other", 2, w="2"))
    assert [commit.name for commit in bench.platform.commits] == ["other"]


async def test_a_checkpoint_of_holes_is_lost_at_once(bench: Bench) -> None:
    """20 GB of them, which no limit of the session counts, took the agent 47 s of its core, each time."""
    hollow = bench.save("best", 1, w="1")
    os.truncate(bench.folder.checkpoints / "1-best" / "model" / "w", 5 << 30)
    some = bench.save("other", 2, w="2")
    os.truncate(bench.folder.checkpoints / "2-other" / "model" / "w", 16 << 20)
    await bench.send(hollow, some)
    assert [commit.name for commit in bench.platform.commits] == ["other"]
    (loss,) = bench.platform.losses
    assert loss.why_lost.startswith("its files have 5.4 GB, and ")
    assert loss.why_lost.endswith("of data: the rest is holes or repeated")


async def test_a_file_under_many_names_counts_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.storage.checkpoints._SPARSE_BYTES", 0)
    files = {f"w{number}": "x" * 5000 for number in range(9)}
    same, other = bench.save("same", 1, **files), bench.save("other", 2, **files)
    place = bench.folder.checkpoints / "1-same" / "model"
    for name in list(files)[1:]:
        (place / name).unlink()
        (place / name).hardlink_to(place / "w0")
    await bench.send(same, other)
    assert [commit.name for commit in bench.platform.commits] == ["other"]
    assert bench.platform.losses[0].why_lost.endswith("of data: the rest is holes or repeated")


def test_data_is_told_from_holes_where_no_blocks_are_counted(tmp_path: Path) -> None:
    with (tmp_path / "w").open("wb+") as file:
        for at in (0, 8 << 20, 24 << 20):
            file.seek(at)
            file.write(b"x" * (1 << 20))
        file.truncate(64 << 20)
        file.flush()
        assert data_bytes(file.fileno()) == 3 << 20


async def test_many_notes_at_once_leave_the_last_one(bench: Bench) -> None:
    every = [bench.save(f"n{number}", number, w="1") for number in range(1, 30)]
    await asyncio.gather(*[bench.uploads.add(one) for one in every])
    noted = json.loads((bench.folder.path / "uploads.json").read_text())
    assert {one["name"] for one in noted} == {one.name for one in every}


async def test_more_than_can_be_held_waits_until_something_is_sent(bench: Bench) -> None:
    files = [f"file-{number:04}" for number in range(1000)]
    taken = 0
    bench.uploads._run = inline

    async def save_many() -> None:
        nonlocal taken
        for number in range(1, 41):
            await bench.uploads.add(saved(f"n{number}", f"{number}-n/model", *files))
            taken += 1
        await bench.uploads.add(bench.save("best", 41, w="w"))

    async with asyncio.timeout(60):
        saving = asyncio.create_task(save_many())
        for _ in range(1000):
            await asyncio.sleep(0)
        assert 5 < taken < 15
        async with asyncio.TaskGroup() as group:
            working = group.create_task(bench.uploads.work())
            await saving
            await bench.uploads.finished()
            working.cancel()
    assert bench.committed("best") == {"w": b"w"}


async def test_an_older_checkpoint_of_any_depth_is_removed(bench: Bench) -> None:
    first, second = bench.save("best", 1, w="1"), bench.save("best", 2, w="2")
    nest(bench.folder.checkpoints / "1-best", 2000)
    await bench.send(first, second)
    assert bench.committed("best") == {"w": b"2"}
    assert [path.name for path in bench.folder.checkpoints.iterdir()] == ["2-best"]


async def test_what_is_pending_survives_the_agent(bench: Bench) -> None:
    await bench.uploads.add(bench.save("best", 1, w="1"))
    successor = Uploads(
        REPLICA,
        bench.folder,
        rpc=bench.uploads._rpc,
        run=in_thread,
        pause=_pause,
    )
    await successor.restore()
    bench.uploads = successor
    await bench.send()
    assert bench.committed("best") == {"w": b"1"}


async def test_what_is_pending_is_on_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    flush = os.fsync

    def noting(descriptor: int) -> None:
        flush(descriptor)
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115

    monkeypatch.setattr(os, "fsync", noting)
    await bench.uploads.add(bench.save("best", 1, w="1"))
    note, folder = flushed
    assert Path(note).name.startswith(".uploads.json")
    assert folder == str(bench.folder.path)


@pytest.mark.parametrize(
    "folder", ["../../secret", "/etc", "1-x/../../..", "", ".", "a//b", "link", "link/model"]
)
async def test_no_record_leads_out_of_the_checkpoints(bench: Bench, folder: str) -> None:
    (bench.folder.checkpoints / "link").symlink_to(bench.secret)
    (bench.secret / "model").mkdir()
    (bench.secret / "model" / "key").write_text("secret")
    await bench.send(saved("x", folder or "x", "key"))
    assert not bench.platform.commits
    assert not any(b"secret" in blob for blob in bench.platform.blobs.values())


@pytest.mark.parametrize("is_listed", [False, True])
async def test_links_in_a_checkpoint_do_not_lead_out(bench: Bench, is_listed: bool) -> None:
    checkpoint = bench.save("best", 1, w="1")
    model = bench.folder.checkpoints / "1-best" / "model"
    (model / "key").symlink_to(bench.secret / "key")
    (model / "all").symlink_to(bench.secret)
    os.mkfifo(model / "pipe")
    if is_listed:
        await bench.send(saved("best", "1-best/model", "w", "key"))
        assert not bench.platform.commits
    else:
        await bench.send(checkpoint)
        assert bench.committed("best") == {"w": b"1"}
    assert not any(b"secret" in blob for blob in bench.platform.blobs.values())


async def test_a_checkpoint_without_one_of_its_files_is_not_sent(bench: Bench) -> None:
    bench.save("best", 1, w="1")
    await bench.send(saved("best", "1-best/model", "w", "x"))
    assert not bench.platform.commits


async def test_a_folder_swapped_for_a_link_never_sends_the_secret(bench: Bench) -> None:
    model = bench.folder.checkpoints / "1-best" / "model"
    bench.save("best", 1, key="public")
    stop = threading.Event()

    def swap() -> None:
        aside = model.with_name("aside")
        while not stop.is_set():
            model.rename(aside)
            model.symlink_to(bench.secret)
            model.unlink()
            aside.rename(model)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        number = 0
        while number < 100 or not bench.platform.commits:
            await bench.send(saved(f"n{number}", "1-best/model", "key"))
            number += 1
    finally:
        stop.set()
        swapping.join()
    assert not any(blob == b"secret" for blob in bench.platform.blobs.values())


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"name": "", "folder": "1-x", "time": 1},
        {"name": "x" * 600, "folder": "1-x", "time": 1},
        {"name": 3, "folder": "1-x", "time": 1},
        {"name": "x", "folder": None, "time": 1},
        {"name": "x", "folder": "", "time": 1},
        {"name": "x", "folder": "..", "time": 1},
        {"name": "x", "folder": "1-x/../../..", "time": 1},
        {"name": "x", "folder": "1-x//model", "time": 1},
        {"name": "x", "folder": "1-x\0", "time": 1},
        {"name": "x", "folder": "01-%artifact/model", "time": 1},
        {"name": "x", "folder": "1-%artifact/model", "time": 1},
        {"name": "x", "folder": "1-x", "time": "now"},
        {"name": "x", "folder": "1-x", "time": True},
        {"name": "x", "folder": "1-x", "time": 1e300},
        {"name": "x", "folder": "1-x", "time": float("nan")},
        {"name": "x", "folder": "1-x", "time": 1, "files": None},
        {"name": "x", "folder": "1-x", "time": 1, "files": ["w"]},
        {"name": "x", "folder": "1-x", "time": 1, "files": [["w", "1"]]},
    ],
)
def test_a_record_that_no_sdk_writes_is_none(record: dict[str, Any]) -> None:
    assert SavedCheckpoint.from_record({"files": [["w", 1]], **record}) is None


def test_a_record_of_the_sdk_is_understood() -> None:
    record = {"name": "x", "folder": "1-x/model", "time": 2, "files": [["w", 1], ["sub/v", 0]]}
    assert SavedCheckpoint.from_record(record) == saved("x", "1-x/model", "w", "sub/v", at=2.0)


@asynccontextmanager
async def connected(
    bench: Bench,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with RequestServer(REPLICA, bench.folder, bench.loads).listening():
        with open_folder(bench.folder.run, []) as run:
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{run}/socket")
        yield reader, writer
        writer.close()


async def ask(bench: Bench, line: bytes) -> dict[str, Any]:
    async with asyncio.timeout(60), connected(bench) as (reader, writer):
        writer.write(line)
        answer: dict[str, Any] = json.loads(await reader.readline())
        return answer


def load(**fields: Any) -> bytes:
    request = {"v": 1, "op": "load", "checkpoint": "best", "session": None, "target": "loads/a/m"}
    return json.dumps({**request, **fields}).encode() + b"\n"


def keep_checkpoint(bench: Bench, tmp_path: Path, session: str = S) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "w").write_text("weights")
    packed = pack(source)
    blobs = [packed.source.read(digest) for digest in packed.manifest.blobs()]
    digest = bench.platform.put_manifest(packed.manifest.encode(), *blobs)
    bench.platform.checkpoints[session, "best"] = pb.Checkpoint(name="best", digest=digest)


@pytest.mark.parametrize("session", [None, "kim/digits/3"])
async def test_a_checkpoint_is_laid_out_where_it_was_asked_for(
    bench: Bench, tmp_path: Path, session: str | None
) -> None:
    keep_checkpoint(bench, tmp_path, session or S)
    answer = await ask(bench, load(session=session))
    assert answer == {"ok": True, "folder": "loads/a/m"}
    # Whose program asks is said by the agent: it stands for programs of many users.
    assert bench.platform.checkpoint_questions == [(S, session or S)]
    assert (bench.folder.run / "loads/a/m/sub/w").read_text() == "weights"
    assert not list((tmp_path / "staging").iterdir())


async def test_what_an_attempt_goes_on_from_is_no_save_of_the_same_name(
    bench: Bench, tmp_path: Path
) -> None:
    keep_checkpoint(bench, tmp_path)
    settled = bench.platform.checkpoints.pop((S, "best"))
    bench.platform.checkpoints[S, ""] = settled
    answer = await ask(bench, load(resume=True))
    assert (bench.folder.run / answer["folder"] / "sub/w").read_text() == "weights"
    assert (await ask(bench, load()))["error"] == "NOT_FOUND", "of that name there is none any more"


async def test_a_request_whose_answer_was_lost_can_be_repeated(
    bench: Bench, tmp_path: Path
) -> None:
    keep_checkpoint(bench, tmp_path)
    first, second = await ask(bench, load()), await ask(bench, load())
    assert first["folder"] == "loads/a/m"
    assert second["folder"].startswith("loads/a/")
    for answer in (first, second):
        assert (bench.folder.run / answer["folder"] / "sub/w").read_text() == "weights"
    assert not list((tmp_path / "staging").iterdir())


async def test_a_checkpoint_that_is_not_there(bench: Bench) -> None:
    answer = await ask(bench, load(checkpoint="worst"))
    assert (answer["ok"], answer["error"]) == (False, "NOT_FOUND")


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"nonsense\n",
        b"[1]\n",
        b'{"v": 2, "op": "load"}\n',
        b'{"v": 1, "op": "dance"}\n',
        b"[" * 50_000 + b"\n",
        b"x" * 100_000 + b"\n",
        load(checkpoint=None),
        load(checkpoint="x" * 5000),
        load(target="/etc"),
        load(target="../out"),
        load(target="loads/../../out"),
        load(target="spool/1.records"),
        load(target="socket"),
        load(target="a/b/c/d/e"),
        load(target=""),
        load(session=7),
        load(session="\ud800"),
        load(checkpoint="\udfff"),
        load(target="loads/\ud800"),
    ],
)
async def test_a_wrong_request_is_refused_and_the_next_one_answered(
    bench: Bench, tmp_path: Path, line: bytes
) -> None:
    keep_checkpoint(bench, tmp_path)
    answer = await ask(bench, line)
    assert (answer["ok"], answer["error"] in {"INVALID", "UNSUPPORTED"}) == (False, True)
    assert (await ask(bench, load()))["ok"]


async def test_a_target_behind_a_link_is_refused(bench: Bench, tmp_path: Path) -> None:
    keep_checkpoint(bench, tmp_path)
    (bench.folder.run / "loads").symlink_to(bench.secret)
    assert not (await ask(bench, load(target="loads/m")))["ok"]
    assert [path.name for path in bench.secret.iterdir()] == ["key"]
    assert not list((tmp_path / "staging").iterdir())


async def test_a_link_in_place_of_the_socket_is_replaced(bench: Bench) -> None:
    (bench.folder.run / "socket").symlink_to(bench.secret / "key")
    answer = await ask(bench, load(checkpoint="worst"))
    assert answer["error"] == "NOT_FOUND"
    assert (bench.secret / "key").read_text() == "secret"


async def test_a_link_put_in_place_of_the_bound_socket_changes_no_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, place = bench.secret / "key", bench.folder.run / "socket"
    key.chmod(0o644)
    bind = socket.socket.bind

    def bind_and_swap(listener: socket.socket, address: str) -> None:
        bind(listener, address)
        assert place.lstat().st_mode & 0o777 == 0o600
        place.unlink()
        place.symlink_to(key)

    monkeypatch.setattr(socket.socket, "bind", bind_and_swap)
    async with RequestServer(REPLICA, bench.folder, bench.loads).listening():
        assert key.stat().st_mode & 0o777 == 0o644


async def test_clients_that_say_nothing_or_leave_hurt_nobody(bench: Bench) -> None:
    async with asyncio.timeout(60), connected(bench) as (reader, writer):
        for _ in range(12):
            with open_folder(bench.folder.run, []) as run:
                path = f"/proc/self/fd/{run}/socket"
                _, silent = await asyncio.open_unix_connection(path)
            silent.write(b'{"v": 1')
            silent.close()
        writer.write(load(checkpoint="worst"))
        assert json.loads(await reader.readline())["error"] == "NOT_FOUND"


async def test_a_program_has_no_more_than_some_connections(bench: Bench) -> None:
    async with asyncio.timeout(60), connected(bench) as (_, first):
        with open_folder(bench.folder.run, []) as run:
            path = f"/proc/self/fd/{run}/socket"
            held = [await asyncio.open_unix_connection(path) for _ in range(15)]
            reader, refused = await asyncio.open_unix_connection(path)
            assert await reader.read() == b""
            refused.close()
            first.close()
            await first.wait_closed()
            held[0][1].write(load(checkpoint="worst"))
            assert json.loads(await held[0][0].readline())["error"] == "NOT_FOUND"
        for _, writer in held:
            writer.close()


async def test_a_load_is_asked_for_again_at_a_control_plane_that_has_not_shown_it(
    bench: Bench,
) -> None:
    await bench.send(bench.save("best", 1, w="weights"))
    bench.platform.has_not_shown = 1
    assert (await ask(bench, load()))["ok"]
    assert len(bench.platform.checkpoint_questions) == 2
    bench.platform.has_not_shown = 9
    assert (await ask(bench, load()))["error"] == "NOT_FOUND"
    assert bench.platform.has_not_shown == 6


async def test_the_newest_artifact_of_a_name_is_fetched(bench: Bench) -> None:
    wanted = load(op="artifact", name="report")
    assert (await ask(bench, wanted))["error"] == "NOT_FOUND"
    await bench.send(artifact(bench, 1, a="old"))
    await bench.send(artifact(bench, 2, a="new"))
    answer = await ask(bench, wanted)
    assert answer == {"ok": True, "folder": "loads/a/m", "session": "kim/None/1"}
    assert (bench.folder.run / "loads/a/m/a").read_text() == "new"
    for target in ("../x", "spool/x", "checkpoints", ""):
        refusal = await ask(bench, load(op="artifact", name="report", target=target))
        assert refusal["error"] == "INVALID"


async def test_a_load_without_a_target_is_refused_by_name(bench: Bench) -> None:
    with pytest.raises(RequestRefused, match="target"):
        await bench.loads.load(REPLICA, bench.folder.run, {"checkpoint": "best"})


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")
THEM = 1_912_345_678


@needs_root
async def test_a_hard_link_sends_nobody_elses_file(bench: Bench) -> None:
    """As where the kernel lets everybody link to files of others (fs.protected_hardlinks = 0)."""
    await bench.send(bench.save("own", 1, weights="w"))
    leaking = bench.save("best", 2, weights="w")
    bench.folder.give(THEM, THEM)
    os.link(bench.secret / "key", bench.folder.checkpoints / leaking.folder / "stolen")
    await bench.send(saved("best", leaking.folder, "weights", "stolen"))
    assert [commit.name for commit in bench.platform.commits] == ["own"]
    assert b"secret" not in bench.platform.blobs.values()
    await bench.send(saved("best", leaking.folder, "weights"))
    assert bench.committed("best") == {"weights": b"w"}


@needs_root
async def test_what_is_fetched_and_the_socket_belong_to_the_programs_user(
    bench: Bench, tmp_path: Path
) -> None:
    bench.folder.give(THEM, THEM)
    keep_checkpoint(bench, tmp_path)
    async with asyncio.timeout(60), connected(bench) as (reader, writer):
        facts = (bench.folder.run / "socket").stat()
        assert (facts.st_uid, facts.st_mode & 0o777) == (THEM, 0o600)
        writer.write(load())
        assert json.loads(await reader.readline())["ok"]
    fetched = bench.folder.run / "loads"
    for path in (fetched, *fetched.rglob("*")):
        assert path.stat().st_uid == path.stat().st_gid == THEM, path
    assert (bench.secret / "key").stat().st_uid == 0


async def test_code_is_copied_beside_what_a_program_planted(tmp_path: Path, bench: Bench) -> None:
    """An agent that died just after it began a program copies the code again, beside it."""
    tree = tmp_path / "tree"
    (tree / "package").mkdir(parents=True)
    (tree / "main.py").write_text("main")
    (tree / "package" / "part.py").write_text("part")

    class Trees:
        async def get(self, _digest: str, _user: str) -> Path:
            return tree

        @asynccontextmanager
        async def room_for_copy(self, _digest: str, user: str) -> AsyncIterator[Reservation]:
            async with Room(tmp_path, run=in_thread).reserved(Size(), user) as reservation:
                yield reservation

    assignment = agents_pb2.Assignment(spec=sessions_pb2.SessionSpec(bundle_digest="x"))
    draft = Draft(assignment, bench.folder, PreparationLog(bench.folder, lambda: None))
    hook = CodeHook(cast("Any", Trees()), in_thread)
    (bench.folder.app / "main.py").symlink_to(bench.secret / "key")
    await hook.prepare(draft)
    assert (bench.folder.app / "main.py").read_text() == "main"
    assert (bench.secret / "key").read_text() == "secret"
    shutil.rmtree(bench.folder.app / "package")
    (bench.folder.app / "package").symlink_to(bench.secret)
    with pytest.raises(PreparationFailed):
        await hook.prepare(draft)
    assert [path.name for path in bench.secret.iterdir()] == ["key"]


async def test_requests_are_answered_at_a_pace(bench: Bench) -> None:
    """Each is a call of the control plane."""
    clock = Time()
    pace = Pace(10.0, clock)
    async with RequestServer(REPLICA, bench.folder, bench.loads, pace=pace).listening():
        reader, writer = await asyncio.open_unix_connection(str(bench.folder.socket))
        for _ in range(200):
            writer.write(b"{}\n")
            assert json.loads(await reader.readline())["error"] == "INVALID"
        writer.close()
    assert 11 < clock.slept < 13


async def test_of_a_sealed_session_one_result_is_sent_and_nothing_else(bench: Bench) -> None:
    """Whatever else it saves: even how much that is would tell its user something."""
    limit = OnlyResult(name="prediction", most_bytes=4)
    bench.uploads = bench.sealed(only=limit)
    await bench.uploads.restore()
    wanted = ("best", False), ("other", True), ("prediction", True), ("prediction", True)
    found = [
        replace(bench.save("%artifact", number, file="data"), name=name, is_artifact=is_artifact)
        for number, (name, is_artifact) in enumerate(wanted, 1)
    ]
    (bench.folder.run / "media").mkdir()
    (bench.folder.run / "media" / f"{64 * 'a'}-1").write_text("shown")
    bench.uploads.add_media(f"{64 * 'a'}-1")
    sent = await bench.uploads.existing(found)
    assert sent == [found[2]]
    assert await bench.uploads.existing(found) == sent, "its record may be read again"
    assert await bench.uploads.existing(found[3:]) == []
    await bench.send(*sent)
    assert [(one.name, one.why_lost) for one in bench.platform.artifacts] == [("prediction", "")]
    assert bench.platform.checkpoints == {}
    assert (bench.folder.run / "media" / f"{64 * 'a'}-1").exists()

    bench.uploads = bench.sealed(only=limit)
    large = replace(bench.save("%artifact", 9, file="large"), name="prediction", is_artifact=True)
    await bench.send(*await bench.uploads.existing([large]))
    [_, lost] = bench.platform.artifacts
    assert lost.why_lost
    assert b"large" not in bench.platform.blobs.values()


async def test_an_agent_that_restarts_sends_no_second_result_of_a_sealed_session(
    bench: Bench,
) -> None:
    """The program may save one more when it sees that its agent is away."""
    limit = OnlyResult(name="prediction", most_bytes=9)
    first, second = [
        replace(bench.save("%artifact", n, file=str(n)), name="prediction", is_artifact=True)
        for n in (1, 2)
    ]
    bench.uploads = bench.sealed(only=limit)
    await bench.uploads.restore()
    await bench.send(*await bench.uploads.existing([first]))
    for _ in range(2):
        bench.uploads = bench.sealed(only=limit)
        await bench.uploads.restore()
        assert await bench.uploads.existing([second]) == []
    assert [one.folder for one in bench.platform.artifacts] == [first.folder]


async def test_what_was_lost_is_the_only_result_of_a_sealed_session_too(bench: Bench) -> None:
    limit = OnlyResult(name="prediction", most_bytes=9)
    gone = replace(saved("prediction", "1-%artifact/model", "file"), is_artifact=True)
    bench.uploads = bench.sealed(only=limit)
    await bench.uploads.restore()
    assert await bench.uploads.existing([gone]) == []
    later = replace(bench.save("%artifact", 2, file="2"), name="prediction", is_artifact=True)
    bench.uploads = bench.sealed(only=limit)
    await bench.uploads.restore()
    assert await bench.uploads.existing([later]) == []
    assert [bool(one.why_lost) for one in bench.platform.artifacts] == [True]


async def test_a_result_that_an_earlier_version_noted_is_the_only_one(bench: Bench) -> None:
    """It noted what it had to send, and not which one is the result."""
    limit = OnlyResult(name="prediction", most_bytes=9)
    first, second = [
        replace(bench.save("%artifact", n, file=str(n)), name="prediction", is_artifact=True)
        for n in (1, 2)
    ]
    await bench.sealed(only=limit).add(first)
    assert not bench.folder.result.exists()
    bench.uploads = bench.sealed(only=limit)
    await bench.uploads.restore()
    assert await bench.uploads.existing([second]) == []
    await bench.send()
    assert [one.folder for one in bench.platform.artifacts] == [first.folder]


async def test_of_other_sessions_no_result_is_noted(bench: Bench) -> None:
    made = [replace(bench.save("%artifact", 1, file="1"), name="prediction", is_artifact=True)]
    await bench.uploads.add(*await bench.uploads.existing(made))
    await bench.uploads.restore()
    await bench.uploads.existing(made)
    assert not bench.folder.result.exists()
