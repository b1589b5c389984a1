"""What was saved stays as it was, whatever its program does to the files afterwards."""

from __future__ import annotations

import json
import mmap
import os
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nodeagent.replica.requests import RequestRefused, RequestServer, _Client
from nodeagent.replica.user_sockets import UserConnection
from nodeagent.storage import sealed_checkpoints as kept
from nodeagent.storage.checkpoints import SavedCheckpoint
from nsml._copies import seal_of
from nsml._path_text import bytes_of
from nsml._session import Session
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread
from nsml.content.manifest import decode
from tests.support.scripted_platform import ScriptedPlatform
from tests.unit.nodeagent.test_upper_user_folders import REPLICA, Bench
from tests.unit.nsml.test_sdk_checkpoints import checkpoint_records

SOMEBODY = 65_533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


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


def sealed(bench: Bench, name: str = "best", number: int = 1, **files: str) -> SavedCheckpoint:
    saved = bench.save(name, number, **files)
    folder = bench.folder.checkpoints / saved.folder
    seal = seal_of(str(folder), sorted(files))
    return SavedCheckpoint(
        name=name,
        folder=saved.folder,
        saved_at=saved.saved_at,
        files=tuple(sorted(files)),
        seal=seal,
    )


def rewrite(file: Path) -> None:
    file.write_text("other")


def append(file: Path) -> None:
    with file.open("a") as opened:
        opened.write("more")


def rewrite_and_set_time_back(file: Path) -> None:
    facts = file.stat()
    file.write_text("x" * facts.st_size)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def replace(file: Path) -> None:
    facts = file.stat()
    other = file.with_name("other")
    other.write_text("y" * facts.st_size)
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(file)


def rename(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))


def write_mapped(file: Path) -> None:
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[0:1] = b"!"


CHANGES = [rewrite, append, rewrite_and_set_time_back, replace, rename, Path.unlink, write_mapped]


@pytest.mark.parametrize("change", CHANGES)
async def test_what_changed_after_it_was_saved_is_lost_and_reported(
    bench: Bench, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing keeps a program from its files: no root, and no file system that shares blocks."""
    monkeypatch.setattr(kept, "share_blocks", _cannot)
    saved = sealed(bench, weights="w" * 9, config="c")
    change(bench.folder.checkpoints / saved.folder / "weights")
    await bench.send(saved, sealed(bench, "next", 2, weights="n"))
    assert [commit.name for commit in bench.platform.commits] == ["next"]
    (loss,) = bench.platform.losses
    assert (loss.name, loss.digest, loss.saved_at.seconds) == ("best", "", 101)
    what = "removed" if change in {rename, Path.unlink} else "changed"
    assert loss.why_lost == f"weights was {what} after it was saved"


async def test_files_of_any_name_are_saved(bench: Bench) -> None:
    names = [b"caf\xe9", b"a\nb", b"a\\b", b"aux", b"A", b"a", b"Jr."]

    def write(folder: str) -> None:
        for name in names:
            Path(folder, os.fsdecode(name)).write_bytes(name)

    Session(str(bench.folder.run), "anna/digits/3").save("best", save_fn=write)
    (record,) = checkpoint_records(bench.folder.run)
    saved = SavedCheckpoint.from_record(record)
    assert saved is not None
    await bench.send(saved)
    (commit,) = bench.platform.commits
    manifest = decode(bench.platform.blobs[commit.digest])
    assert {bytes_of(entry.path) for entry in manifest.entries} == {*names}


@pytest.mark.parametrize("what", ["1-best", "1-best/model"])
async def test_a_folder_that_is_gone_is_lost_and_reported(bench: Bench, what: str) -> None:
    saved = sealed(bench, weights="w")
    (bench.folder.checkpoints / what).rename(bench.folder.checkpoints / "elsewhere")
    await bench.send(saved)
    (loss,) = bench.platform.losses
    assert loss.why_lost == "its folder was removed after it was saved"


async def test_what_did_not_change_is_sent(bench: Bench) -> None:
    saved = sealed(bench, weights="w", config="c")
    (bench.folder.checkpoints / saved.folder / "weights").read_bytes()
    await bench.send(saved)
    assert bench.committed("best") == {"config": b"c", "weights": b"w"}
    assert not bench.platform.losses


async def test_the_copy_of_a_removed_checkpoint_goes_with_the_next_one(bench: Bench) -> None:
    """But not one that was saved again under its name, and is not sent yet."""
    first = [sealed(bench, name, number, weights=name) for number, name in enumerate("abc", 1)]
    await bench.send(*first)
    folders = {one.name: bench.folder.checkpoints / one.folder for one in first}
    bench.platform.removed_checkpoints = {"a", "b"}
    await bench.send(sealed(bench, "d", 4, weights="d"))
    assert [one.is_dir() for one in folders.values()] == [False, False, True]
    assert set(bench.platform.commits[-1].held) == {"a", "b", "c"}
    bench.platform.removed_checkpoints = {"c"}
    again = sealed(bench, "c", 6, weights="again")
    await bench.send(sealed(bench, "e", 5, weights="e"), again)
    assert bench.committed("c") == {"weights": b"again"}
    assert (bench.folder.checkpoints / again.folder / "weights").read_text() == "again"
    bench.platform.removed_checkpoints = set("abcde")
    await bench.send(sealed(bench, "f", 7, weights="f"))
    assert [one.name for one in bench.folder.checkpoints.iterdir()] == ["7-f"]


@pytest.mark.parametrize("folder", ["..", ".", "../..", "1-best/../.."])
async def test_a_folder_that_is_no_checkpoint_is_never_removed(bench: Bench, folder: str) -> None:
    """Not even where an earlier agent noted it, and the platform removed what was said to be there."""
    best = sealed(bench, weights="w")
    await bench.send(best, SavedCheckpoint(name="x", folder=folder, saved_at=1.0, files=("w",)))
    bench.platform.removed_checkpoints = {"x"}
    await bench.send(sealed(bench, "next", 2, weights="n"))
    bench.uploads._remove(folder)
    names = {one.name for one in bench.folder.checkpoints.iterdir()}
    assert names == {"1-best", "2-next"}
    assert (bench.folder.checkpoints / best.folder / "weights").read_text() == "w"


async def test_a_loss_removes_no_copy(bench: Bench) -> None:
    """What a program saved last that can be loaded stays."""
    await bench.send(saved := sealed(bench, "a", 1, weights="a"))
    bench.platform.removed_checkpoints = {"a"}
    lost = sealed(bench, "b", 2, weights="b")
    (bench.folder.checkpoints / lost.folder / "weights").unlink()
    await bench.send(lost)
    assert [one.name for one in bench.platform.losses] == ["b"]
    assert (bench.folder.checkpoints / saved.folder / "weights").read_text() == "a"


async def test_a_loss_is_reported_once_the_platform_answers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, refusals = bench.platform.CommitCheckpoint, [1, 1]

    async def away(request: Any, context: Any) -> Any:
        if refusals:
            refusals.pop()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        return await commit(request, context)

    monkeypatch.setattr(bench.platform, "CommitCheckpoint", away)
    saved = sealed(bench, weights="w")
    (bench.folder.checkpoints / saved.folder / "weights").unlink()
    await bench.send(saved)
    assert [loss.name for loss in bench.platform.losses] == ["best"]


class TestWithRoot:
    """The agent makes the files its own."""

    pytestmark = as_root

    @pytest.fixture
    def owned(self, bench: Bench) -> Bench:
        bench.folder.give(SOMEBODY, SOMEBODY)
        return bench

    @staticmethod
    def save(bench: Bench, name: str = "best", number: int = 1, **files: str) -> Path:
        """As the program does, which is another user's: the folder."""
        saved = bench.save(name, number, **files)
        folder = bench.folder.checkpoints / saved.folder
        for one in (folder.parent, folder, *folder.iterdir()):
            os.chown(one, SOMEBODY, SOMEBODY)
        return folder

    @staticmethod
    def record(folder: Path) -> SavedCheckpoint:
        files = sorted(one.name for one in folder.iterdir())
        entry = folder.parent.name
        return SavedCheckpoint(
            name=entry.partition("-")[2],
            folder=f"{entry}/model",
            saved_at=1e9,
            files=tuple(files),
            seal=seal_of(str(folder), files),
        )

    async def test_what_is_kept_is_sent_whatever_becomes_of_the_programs_files(
        self, owned: Bench
    ) -> None:
        folder = self.save(owned, weights="w", config="c")
        kept.keep(owned.folder, "1-best/model")
        kept.keep(owned.folder, "1-best/model")
        saved = self.record(folder)
        facts = (folder / "weights").stat()
        assert (facts.st_uid, facts.st_mode & 0o777, facts.st_nlink) == (0, 0o444, 2)
        (folder / "weights").unlink()
        (folder / "weights").write_text("another")
        folder.parent.rename(folder.parent.with_name("7-else"))
        await owned.send(saved)
        assert owned.committed("best") == {"config": b"c", "weights": b"w"}

    async def test_what_the_agent_reads_of_later_is_kept_too(self, owned: Bench) -> None:
        folder = self.save(owned, weights="w")
        await owned.uploads.add(self.record(folder))
        (folder / "weights").unlink()
        await owned.send()
        assert owned.committed("best") == {"weights": b"w"}

    async def test_what_changed_before_the_agent_read_of_it_is_lost(self, owned: Bench) -> None:
        folder = self.save(owned, weights="w")
        saved = self.record(folder)
        (folder / "weights").write_text("x")
        await owned.send(saved)
        (loss,) = owned.platform.losses
        assert "was changed after it was saved" in loss.why_lost
        assert (folder / "weights").stat().st_uid == SOMEBODY

    @pytest.mark.parametrize("how", ["open", "mapped", "linked", "foreign"])
    async def test_a_file_that_somebody_else_may_write_is_not_taken(
        self, owned: Bench, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kept, "share_blocks", _cannot)
        folder = self.save(owned, weights="w" * 9, config="c")
        file, held = folder / "weights", []
        if how == "linked":
            (tmp_path / "second").hardlink_to(file)
        elif how == "foreign":
            os.chown(file, SOMEBODY - 1, SOMEBODY)
        else:
            held.append(os.open(file, os.O_RDWR))
        if how == "mapped":
            mapped = mmap.mmap(held.pop(), 9)
        with pytest.raises(kept.NotKept):
            kept.keep(owned.folder, "1-best/model")
        assert (folder / "config").stat().st_uid == SOMEBODY
        assert (folder / "config").stat().st_nlink == 1
        if how == "mapped":
            mapped.close()
        for descriptor in held:
            os.close(descriptor)

    async def test_what_changed_while_it_was_kept_too_late_is_lost(self, owned: Bench) -> None:
        """The SDK did not wait for an agent that hung; it sealed the files, and the program went on."""
        folder = self.save(owned, weights="w")
        saved = self.record(folder)
        (folder / "weights").write_text("other")
        kept.keep(owned.folder, "1-best/model")
        await owned.send(saved)
        (loss,) = owned.platform.losses
        assert loss.why_lost == "weights was changed after it was saved"

    async def test_a_dead_client_has_nothing_kept(self, owned: Bench) -> None:
        folder = self.save(owned, weights="w")
        server = RequestServer(REPLICA, owned.folder, owned.loads, run=in_thread)
        theirs, ours = socket.socketpair()
        client = UserConnection(ours)
        theirs.close()
        with pytest.raises(RequestRefused):
            await server._answer(
                b'{"v": 1, "op": "keep", "folder": "1-best/model"}', _Client(client)
            )
        await client.close()
        assert (folder / "weights").stat().st_uid == SOMEBODY

    async def test_what_a_dead_agent_had_begun_is_undone(self, owned: Bench) -> None:
        folder = self.save(owned, weights="w", config="c")
        begun = owned.folder.kept / ".begun-1-best/model"
        begun.mkdir(parents=True)
        (begun / "weights").hardlink_to(folder / "weights")
        os.chown(folder / "weights", 0, 0)
        # the program was told nothing, and seals what it finds
        saved = self.record(folder)
        await owned.send(saved)
        assert owned.committed("best") == {"config": b"c", "weights": b"w"}

    async def test_a_program_asks_for_it_at_the_socket(self, owned: Bench) -> None:
        folder = self.save(owned, weights="w")
        async with RequestServer(REPLICA, owned.folder, owned.loads, run=in_thread).listening():
            answers = [
                await in_thread(partial(ask, owned, entry))
                for entry in ("1-best/model", "2-none/model", "../secret", ".begun-1/model")
            ]
        assert answers[0] == {"ok": True, "kept": True}
        assert [answer["ok"] for answer in answers[1:]] == [False] * 3
        assert (folder / "weights").stat().st_uid == 0

    async def test_earlier_ones_of_the_name_go_once_it_is_durable(self, owned: Bench) -> None:
        for number in (1, 2):
            folder = self.save(owned, number=number, weights=f"{number}")
            kept.keep(owned.folder, f"{number}-best/model")
        await owned.send(self.record(folder))
        assert [one.name for one in owned.folder.kept.iterdir()] == ["2-best"]
        assert [one.name for one in owned.folder.checkpoints.iterdir()] == ["2-best"]


async def test_without_root_files_are_copied_where_blocks_can_be_shared(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clone(file: int, copy: int) -> bool:
        os.sendfile(copy, file, 0, 1 << 20)
        return True

    monkeypatch.setattr(kept, "share_blocks", clone)
    saved = sealed(bench, weights="w", config="c")
    kept.keep(bench.folder, saved.folder)
    rewrite(bench.folder.checkpoints / saved.folder / "weights")
    (bench.folder.checkpoints / saved.folder / "config").unlink()
    await bench.send(saved)
    assert bench.committed("best") == {"config": b"c", "weights": b"w"}


async def test_without_root_and_such_a_file_system_the_program_stops_asking(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "share_blocks", _cannot)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    bench.save("best", 1, weights="w")
    async with RequestServer(REPLICA, bench.folder, bench.loads, run=in_thread).listening():
        answer = await in_thread(partial(ask, bench, "1-best/model"))
    assert (answer["ok"], answer["error"]) == (False, "UNSUPPORTED")


def test_a_deep_folder_is_not_walked(bench: Bench) -> None:
    folder = bench.folder.checkpoints / "1-deep" / "model"
    folder.mkdir(parents=True)
    for _ in range(80):
        folder /= "d"
        folder.mkdir()
    (folder / "weights").write_text("w")
    with pytest.raises(kept.NotKept):
        kept.keep(bench.folder, "1-deep/model")


def _cannot(file: int, copy: int) -> bool:
    return False


def ask(bench: Bench, entry: str) -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(bench.folder.socket))
        connection.sendall(json.dumps({"v": 1, "op": "keep", "folder": entry}).encode() + b"\n")
        return json.loads(connection.makefile().readline())
