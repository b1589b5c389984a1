"""Copies between two folders: what arrives, what goes on, and what a hostile side cannot do."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import threading
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.copying import receiver as receiving
from nsml.copying import sender as sending_side
from nsml.copying.messages import (
    BEGIN,
    CONTENT,
    CONTENT_END,
    DONE,
    ENTRIES,
    FILE,
    FOLDER,
    HARD_LINK,
    LEFT_OUT,
    MOST_NAMED,
    SYMLINK,
    TEMPORARY,
    WANTED,
    Entry,
    Incoming,
    NotUnderstood,
    Refused,
    Report,
    entries_message,
    entries_of,
    message,
)
from nsml.copying.receiver import Receiver
from nsml.copying.sender import Sender
from nsml.spec.frames import Frames, framed

MEGABYTE = 1 << 20


class Broken(Exception):
    """The connection is gone."""


def copied(
    source: Path | str,
    target: Path | str,
    name: str | None = None,
    *,
    breaks_after: float = float("inf"),
    meanwhile: Callable[[int], None] = lambda sent: None,
) -> tuple[Report, int]:
    """What is reported, and how many bytes went to the receiver."""
    own = Path(source).name if name is None else name
    sender = Sender(os.fsencode(source))
    receiver = Receiver(os.fsencode(target), os.fsencode(own), keeps_inside=True)
    sending, taking = sender.steps(), receiver.steps()
    to_receiver, to_sender = bytearray(), bytearray()
    sent = 0
    from_sender, from_receiver = next(sending), next(taking)
    try:
        while sender.report is None:
            if from_sender:
                to_receiver += from_sender
                sent += len(from_sender)
                meanwhile(sent)
                if sent > breaks_after:
                    raise Broken
                from_sender = next(sending)
            elif to_sender:
                from_sender, to_sender = _given(sending, to_sender), bytearray()
            while from_receiver or to_receiver:
                if from_receiver:
                    to_sender += from_receiver
                    from_receiver = next(taking, b"")
                else:
                    # cut anywhere
                    part, to_receiver = to_receiver[:70_001], to_receiver[70_001:]
                    from_receiver = _given(taking, part)
    finally:
        sending.close()
        taking.close()
    assert sender.report == receiver.report
    return receiver.report, sent


def _given(steps: Generator[bytes, bytes, None], data: bytearray) -> bytes:
    try:
        return steps.send(bytes(data))
    except StopIteration:
        return b""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    (made / "sub" / "empty").mkdir(parents=True)
    (made / "one").write_bytes(b"one")
    (made / "sub" / "two").write_bytes(b"two")
    (made / "sub" / "none").write_bytes(b"")
    return made


def names(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


ALL = ["one", "sub", "sub/empty", "sub/none", "sub/two"]


def test_where_it_goes(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    copied(tree, tmp_path / "there")
    assert names(tmp_path / "there/tree") == ALL
    copied(tree, tmp_path / "new")
    assert names(tmp_path / "new") == ALL
    copied(tree, f"{tmp_path}/made/")
    assert names(tmp_path / "made/tree") == ALL
    copied(tree, tmp_path / "content", name="")
    copied(tree, tmp_path / "content", name="")
    assert names(tmp_path / "content") == ALL

    copied(tree / "one", tmp_path / "there")
    copied(tree / "one", tmp_path / "renamed")
    copied(tree / "one", f"{tmp_path}/for_it/")
    for path in ("there/one", "renamed", "for_it/one"):
        assert (tmp_path / path).read_bytes() == b"one"


def test_where_it_cannot_go(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "there/one").mkdir(parents=True)
    (tmp_path / "there/tree").symlink_to(tmp_path)
    for source, target in (
        (tree, "file"),
        (tree, "there"),
        (tree / "one", "there"),
        (tree, "no/such"),
        (tree / "one", "no/such"),
        (tree / "one", "file/"),
    ):
        with pytest.raises(OSError):
            copied(source, f"{tmp_path}/{target}")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_what_is_there_is_not_sent_again_and_what_differs_is_replaced(
    tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert copied(tree, out)[0] == Report(3, 6, 0, 0, [])
    (out / "own").write_bytes(b"own")
    (out / "one").unlink()
    (out / "one").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"elsewhere")
    (out / "sub/two").chmod(0o600)
    assert copied(tree, out, name="")[0] == Report(1, 3, 2, 0, [])
    assert (out / "one").read_bytes() == b"one"
    assert not (out / "one").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"elsewhere"
    assert stat.S_IMODE((out / "sub/two").stat().st_mode) == 0o644
    assert (out / "own").read_bytes() == b"own"


def test_times_permissions_and_links(tree: Path, tmp_path: Path) -> None:
    (tree / "one").chmod(0o4777)
    (tree / "hard").hardlink_to(tree / "one")
    (tree / "sub/link").symlink_to("../one")
    for path in ("one", "sub", "."):
        os.utime(tree / path, ns=(0, 1_234_567_890_123_456_789))
    copied(tree, tmp_path / "out")
    out = tmp_path / "out"
    assert stat.S_IMODE((out / "one").stat().st_mode) == 0o755
    assert (out / "hard").samefile(out / "one")
    assert (out / "sub/link").readlink() == Path("../one")
    for path in ("one", "sub", "."):
        assert (out / path).stat().st_mtime_ns == 1_234_567_890_123_456_789
    again, _ = copied(tree, out, name="")
    assert (again.files, again.failed) == (0, 0)
    assert (out / "hard").samefile(out / "one")


@pytest.mark.parametrize("moment", [15_000_000_000, 1 << 62, -2_000_000_000, -(1 << 62)])
def test_one_file_of_a_time_without_sense_ends_no_copy(
    tree: Path, tmp_path: Path, moment: int
) -> None:
    for path in ("one", "sub"):
        os.utime(tree / path, (moment, moment))
    report, _ = copied(tree, tmp_path / "out")
    assert (report.files, report.failed) == (3, 0)
    assert copied(tree, tmp_path / "out", name="")[0].failed == 0


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_large_file_goes_on_in_its_middle(tmp_path: Path, *, is_folder: bool) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(os.urandom(8 * MEGABYTE))
    (source / "a").write_bytes(b"a")
    what = source if is_folder else source / "big"
    out = tmp_path / "out"
    with pytest.raises(Broken):
        copied(what, out, breaks_after=5 * MEGABYTE)
    assert not out.exists()
    _, sent = copied(what, out)
    assert sent < 4 * MEGABYTE
    found = out / "big" if is_folder else out
    assert found.read_bytes() == (source / "big").read_bytes()
    assert not list(tmp_path.rglob(".nsml-cp-*"))


def test_two_copies_do_not_write_to_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "_LEAVES_WITHIN_S", 0.1)
    source = tmp_path / "big"
    source.write_bytes(os.urandom(4 * MEGABYTE))
    second: list[Report] = []

    def begin(sent: int) -> None:
        if sent > MEGABYTE and not second:
            second.append(copied(source, tmp_path / "out")[0])

    report, _ = copied(source, tmp_path / "out", meanwhile=begin)
    assert second[0].failures == [(b"", "another copy writes it")]
    assert (report.files, report.failed) == (1, 0)
    assert (tmp_path / "out").read_bytes() == source.read_bytes()
    assert names(tmp_path) == ["big", "out"]


def test_two_copies_do_not_share_a_folder_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "_LEAVES_WITHIN_S", 0.1)
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(os.urandom(4 * MEGABYTE))
    refused: list[str] = []

    def begin(sent: int) -> None:
        if sent > MEGABYTE and not refused:
            with pytest.raises(OSError, match="another copy writes it") as found:
                copied(source, tmp_path / "out")
            refused.append(str(found.value))

    report, _ = copied(source, tmp_path / "out", meanwhile=begin)
    assert refused
    assert (report.files, report.failed) == (1, 0)
    assert (tmp_path / "out/big").read_bytes() == (source / "big").read_bytes()
    assert names(tmp_path) == ["out", "out/big", "source", "source/big"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_copy_goes_on_in_a_folder_that_another_has_just_made_whole(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """It waits for the folder that is not whole; or it has seen none, and begins one when the other is done."""
    stands, goes_on, access, lock = threading.Event(), threading.Event(), os.access, fcntl.flock

    def seen_by_the_second(*arguments: Any, **named: Any) -> bool:
        if is_late and threading.current_thread() is not threading.main_thread():
            stands.set()
            assert goes_on.wait(600)
        return access(*arguments, **named)

    def waited_for(file: int, how: int) -> None:
        try:
            lock(file, how)
        except BlockingIOError:
            stands.set()
            raise

    monkeypatch.setattr(receiving, "_LEAVES_WITHIN_S", 600.0)
    monkeypatch.setattr(os, "access", seen_by_the_second)
    monkeypatch.setattr(fcntl, "flock", waited_for)
    second: list[Future[tuple[Report, int]]] = []

    def begin(sent: int) -> None:
        if not second:
            second.append(pool.submit(copied, tree, tmp_path / "out", ""))
            assert stands.wait(600)

    with ThreadPoolExecutor(1) as pool:
        try:
            report, _ = copied(tree, tmp_path / "out", meanwhile=after(100, begin))
        finally:
            goes_on.set()
        assert second[0].result()[0] == Report(0, 0, 3, 0, [])
    assert (report.files, report.failed) == (3, 0)
    assert names(tmp_path / "out") == ALL
    assert not list(tmp_path.rglob(".nsml-cp-*"))


def test_what_was_made_in_its_place_meanwhile_stays_and_is_told_of(
    tree: Path, tmp_path: Path
) -> None:
    def make(sent: int) -> None:
        (tmp_path / "out/other").mkdir(parents=True, exist_ok=True)

    with pytest.raises(OSError, match="something else was made in its place"):
        copied(tree, tmp_path / "out", meanwhile=after(100, make))
    assert names(tmp_path / "out") == ["other"]
    assert copied(tree, tmp_path / "out", name="")[0].files == 3


def after(least: int, act: Callable[[int], None]) -> Callable[[int], None]:
    """Does it once so much is sent."""
    return lambda sent: act(sent) if sent > least else None


def test_what_was_changed_since_begins_anew(tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(b"a" * 4 * MEGABYTE)
    with pytest.raises(Broken):
        copied(source, tmp_path / "out", breaks_after=2 * MEGABYTE)
    source.write_bytes(b"b" * 4 * MEGABYTE)
    os.utime(source, ns=(0, 1))
    report, _ = copied(source, tmp_path / "out")
    assert report.file_bytes == 4 * MEGABYTE
    assert (tmp_path / "out").read_bytes() == source.read_bytes()


def rewritten(path: Path) -> None:
    path.write_bytes(b"b" * 5 * MEGABYTE)


def shortened(path: Path) -> None:
    path.write_bytes(b"b" * 100)


def appended(path: Path) -> None:
    with path.open("ab") as log:
        log.write(b"b")


@pytest.mark.parametrize("change", [rewritten, shortened])
def test_what_is_changed_meanwhile_is_not_taken_for_whole(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Never a part of what was there with a part of what is."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(b"a" * 4 * MEGABYTE)
    report, _ = copied(source, tmp_path / "out", meanwhile=once(source / "big", change))
    assert report.failures == [(b"big", "it was changed while it was copied")]
    assert names(tmp_path / "out") == []


def once(path: Path, change: Callable[[Path], None]) -> Callable[[int], None]:
    """Changes it in the middle."""
    left = [change]

    def meanwhile(sent: int) -> None:
        if sent > MEGABYTE and left:
            left.pop()(path)

    return meanwhile


def rewritten_in_secret(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"b" * before.st_size)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))


def test_who_lies_about_times_is_not_believed(tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(b"a" * 4 * MEGABYTE)
    os.utime(source, ns=(1, 1))
    change = once(source, rewritten_in_secret)
    report, _ = copied(source, tmp_path / "out", meanwhile=change)
    assert report.failures == [(b"", "it was changed while it was copied")]
    assert not (tmp_path / "out").exists()


def test_a_part_of_what_was_rewritten_in_secret_is_not_gone_on_with(tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(b"a" * 4 * MEGABYTE)
    with pytest.raises(Broken):
        copied(source, tmp_path / "out", breaks_after=2 * MEGABYTE)
    rewritten_in_secret(source)
    copied(source, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"b" * 4 * MEGABYTE


def test_a_write_within_one_tick_of_the_clock_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times say nothing: here they are those of before, whatever is written."""
    source = tmp_path / "big"
    source.write_bytes(b"a" * 4 * MEGABYTE)
    looked: list[os.stat_result] = []

    def frozen(
        descriptor: int, fstat: Callable[[int], os.stat_result] = os.fstat
    ) -> os.stat_result:
        looked.append(fstat(descriptor))
        return looked[0]

    def change(path: Path) -> None:
        path.write_bytes(b"b" * 4 * MEGABYTE)

    monkeypatch.setattr(sending_side, "_TICK_NS", 10**12)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    sender = Sender(os.fsencode(source))
    entry = Entry(b"", FILE, 0, source.stat().st_mtime_ns, 4 * MEGABYTE)
    pieces = sender._pieces(entry, 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", frozen)
        next(pieces)
        change(source)
        with pytest.raises(OSError, match="it was changed"):
            list(pieces)


def test_a_change_of_permissions_is_none_of_content(tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(b"a" * 4 * MEGABYTE)
    change = once(source, lambda path: path.chmod(0o640))
    report, _ = copied(source, tmp_path / "out", meanwhile=change)
    assert (report.files, report.failed) == (1, 0)


def test_a_log_that_grows_is_copied_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "log"
    source.write_bytes(b"a" * 4 * MEGABYTE)
    report, _ = copied(source, tmp_path / "out", meanwhile=once(source, appended))
    assert (report.files, report.failed) == (1, 0)
    assert (tmp_path / "out").read_bytes() == b"a" * 4 * MEGABYTE


@pytest.mark.parametrize("change", [rewritten, shortened, appended])
def test_what_was_changed_before_its_turn_comes_as_it_is_now(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(b"a" * 4 * MEGABYTE)
    left = [change]

    def meanwhile(sent: int) -> None:
        if left and sent > 100:  # the list is sent, and nothing of it
            left.pop()(source / "big")

    report, _ = copied(source, tmp_path / "out", meanwhile=meanwhile)
    assert (report.files, report.failed) == (1, 0)
    found, now = tmp_path / "out/big", source / "big"
    assert found.read_bytes() == now.read_bytes()
    assert found.stat().st_mtime_ns == now.stat().st_mtime_ns
    assert names(tmp_path / "out") == ["big"]


def test_what_the_kernel_makes_up_is_no_empty_file(tmp_path: Path) -> None:
    report, _ = copied("/proc/version", tmp_path / "out")
    assert [why for _, why in report.failures] == ["the kernel makes it up as it is read"]
    assert not (tmp_path / "out").exists()


def test_four_gigabytes_of_nothing_take_no_memory(tmp_path: Path) -> None:
    source = tmp_path / "sparse"
    with source.open("wb") as file:
        file.truncate(4 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(Broken):
            copied(source, tmp_path / "out", breaks_after=64 * MEGABYTE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MEGABYTE


def test_many_files_take_no_memory(tmp_path: Path) -> None:
    source = tmp_path / "many"
    source.mkdir()
    for number in range(5000):
        (source / f"{number:0200}").touch()
    tracemalloc.start()
    try:
        report, _ = copied(source, tmp_path / "out")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.files == 5000
    assert peak < MEGABYTE


ODD = st.binary(min_size=1, max_size=60).filter(
    lambda name: (
        not set(name) & {0, ord("/")}
        and name not in {b".", b".."}
        and not name.startswith(TEMPORARY)
    )
)


@given(ODD)
def test_any_name_passes(name: bytes) -> None:
    entry = Entry(b"a/" + name, SYMLINK, 0o777, -5, 0, name)
    [whole] = Frames().feed(entries_message([entry]))
    assert entries_of(json.loads(whole[1:])) == [entry]


# A hostile side


def told(where: Path, *said: bytes, name: str = "x") -> Receiver:
    """A receiver that is told these, one after the other."""
    receiver = Receiver(os.fsencode(where), os.fsencode(name), keeps_inside=True)
    steps = receiver.steps()
    next(steps)
    try:
        for one in said:
            given: bytes | None = one
            while given is not None:
                answer = steps.send(given) if given else next(steps)
                given = b"" if answer else None
    except StopIteration:
        pass
    finally:
        steps.close()
    return receiver


def folder(*entries: Entry, contents: int = 0) -> list[bytes]:
    """A folder with these, and so many contents of one byte."""
    content = [message(CONTENT, b"!"), message(CONTENT_END, "")] * contents
    first = message(BEGIN, [True, 0, ""])
    return [first, entries_message([Entry(b"", FOLDER), *entries]), *content, message(DONE)]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the target, which nothing may touch."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "kept").write_bytes(b"kept")
    before = (made / "kept").stat()
    yield made
    assert names(made) == ["kept"]
    after = (made / "kept").stat()
    assert (before.st_mode, before.st_mtime_ns) == (after.st_mode, after.st_mtime_ns)
    assert (made / "kept").read_bytes() == b"kept"
    assert after.st_nlink == 1


@pytest.mark.parametrize(
    "path",
    [
        b"../outside/x", b"/etc/x", b"a/../../outside/x", b"..", b".", b"a//b", b"a/", b"/", b"a/./b",
        b"a\0b", b".nsml-cp-0", b"a/.nsml-cp-0/b", b"a" * 5000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [FILE, FOLDER, SYMLINK, HARD_LINK, LEFT_OUT])
def test_no_path_leads_out(tmp_path: Path, outside: Path, path: bytes, kind: str) -> None:
    with pytest.raises(NotUnderstood):
        told(tmp_path / "out", *folder(Entry(path, kind, 0o777, 0, 1, b"kept")))


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (b"a", b"/etc/passwd"), (b"a", b".."), (b"a", b"../outside/kept"), (b"d/a", b"../../outside"),
        (b"d/a", b"e/../.."), (b"a", b"b/../.."), (b"a", b"./../outside"), (b"a", b"//etc"),
    ],
)  # fmt: skip
def test_links_that_lead_out_are_left_out(
    tmp_path: Path, outside: Path, path: bytes, target: bytes
) -> None:
    entries = [Entry(b"d", FOLDER), Entry(path, SYMLINK, target=target)]
    receiver = told(tmp_path / "out", *folder(*entries))
    assert receiver.report is not None
    assert [found for found, _ in receiver.report.failures] == [path]
    assert not (tmp_path / "out" / os.fsdecode(path)).is_symlink()


def test_nothing_is_written_through_links_it_has_made(tmp_path: Path, outside: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").symlink_to(outside)  # its user's own, from before
    (out / "hers").symlink_to(outside / "kept")
    entries = [
        Entry(b"d", FOLDER),
        Entry(b"d/e", FOLDER),
        Entry(b"link", SYMLINK, target=b"d"),
        Entry(b"link/x", FILE, 0o644, 0, 1),
        Entry(b"mine/x", FILE, 0o644, 0, 1),
        Entry(b"mine/kept", FILE, 0o644, 0, 1),
        Entry(b"mine", FOLDER, 0o777),
        Entry(b"mine/kept", HARD_LINK, target=b"d"),
        Entry(b"stolen", HARD_LINK, target=b"mine/kept"),
        Entry(b"hers", FILE, 0o666, 0, 1),
    ]
    receiver = told(out, *folder(*entries, contents=4), name="")
    assert receiver.report is not None
    assert (receiver.report.files, receiver.report.failed) == (1, 6)
    assert names(out) == ["d", "d/e", "hers", "link", "mine"]
    assert (out / "hers").read_bytes() == b"!"
    assert (out / "mine").readlink() == outside


def test_what_stands_in_for_a_part_is_not_written_to(tmp_path: Path, outside: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    entry = Entry(b"f", FILE, 0o644, 7, 2 * MEGABYTE)
    made = out / receiving.temporary_name(b"f").decode()
    note = out / f"{made.name}.note"
    content = message(CONTENT, b"!" * 100_000)
    for plant in (
        lambda: made.symlink_to(outside / "kept"),
        lambda: made.hardlink_to(outside / "kept"),
        lambda: os.mkfifo(made),
    ):
        plant()
        note.write_bytes(b"%d 7" % (2 * MEGABYTE))
        told(out, message(BEGIN, [True, 0, ""]), entries_message([entry]), content, name="")
        assert made.is_file()
        assert made.stat().st_nlink == 1
        made.unlink()
        note.unlink()


def test_a_hard_link_to_a_link_is_none(tmp_path: Path, outside: Path) -> None:
    """It would be a link that leads out once it is moved up."""
    entries = [
        Entry(b"d", FOLDER),
        Entry(b"d/link", SYMLINK, target=b"../outside"),
        Entry(b"up", HARD_LINK, target=b"d/link"),
    ]
    receiver = told(tmp_path / "out", *folder(*entries))
    assert receiver.report is not None
    assert receiver.report.failures == [(b"up", "a hard link to what is no file")]
    assert names(tmp_path / "out") == ["d", "d/link"]


@pytest.mark.parametrize("swapped", [".", "sub", "sub/deep"])
def test_nothing_is_sent_through_links_that_appear_meanwhile(
    tmp_path: Path, outside: Path, swapped: str
) -> None:
    """In a folder, or in place of it: whoever may change it does not choose what else is read."""
    tree = tmp_path / "tree"
    (tree / "sub/deep").mkdir(parents=True)
    for number in range(1500):
        (tree / "sub/deep" / f"{number}").write_bytes(b"mine")
    lure = tmp_path / "lure"
    shutil.copytree(tree, lure)
    for one in lure.rglob("[0-9]*"):
        one.write_bytes(b"hers")
    left = [tree / swapped]

    def swap(sent: int) -> None:
        for one in left:
            one.rename(tmp_path / "moved")
            one.symlink_to(lure / swapped)
        left.clear()

    report, _ = copied(tree, tmp_path / "out", meanwhile=after(100, swap))
    assert not left
    assert {one.read_bytes() for one in (tmp_path / "out").rglob("[0-9]*")} == {b"mine"}
    assert report == Report(1500, 6000, 0, 0, [])


@pytest.mark.parametrize("swapped", ["sub", "one"])
def test_nothing_is_sent_through_a_link_that_appears_as_it_is_opened(
    tree: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, swapped: str
) -> None:
    look = os.stat

    def looked(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        found = look(path, *arguments, **named)
        if path == os.fsencode(swapped) and not (tree / swapped).is_symlink():
            (tree / swapped).rename(tmp_path / "moved")
            (tree / swapped).symlink_to(outside if swapped == "sub" else outside / "kept")
        return found

    sender = Sender(os.fsencode(tree))
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", looked)
        entries = list(sender._entries())
    assert (tree / swapped).is_symlink()
    assert not [one for one in entries if one.path.endswith(b"kept")]
    [entry] = [one for one in entries if one.path == swapped.encode()]
    if swapped == "sub":
        assert entry == Entry(b"sub", LEFT_OUT, target=b"it was changed while it was copied")
    else:
        with pytest.raises(OSError, match="it was changed"):
            list(sender._pieces(entry, 0))


def test_what_is_left_of_a_copy_of_another_folder_is_not_gone_on_with(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "big").write_bytes(name.encode() * MEGABYTE)
        (tmp_path / name / name).touch()
    with pytest.raises(Broken):
        copied(tmp_path / "first", tmp_path / "out", breaks_after=2 * MEGABYTE)
    copied(tmp_path / "second", tmp_path / "out")
    assert names(tmp_path / "out") == ["big", "second"]


def test_what_was_there_keeps_its_permissions_and_is_no_pipe(tmp_path: Path) -> None:
    source, home = tmp_path / "source", tmp_path / "home"
    source.mkdir(mode=0o755)
    (source / "pipe").write_bytes(b"x")
    home.mkdir(mode=0o700)
    os.mkfifo(home / "pipe")
    report, _ = copied(source, home, name="")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_ISFIFO((home / "pipe").stat().st_mode)
    assert report.failures == [(b"pipe", "there is something else in its place")]


def test_a_path_of_nothing_is_none(tree: Path) -> None:
    for source in (tree, tree / "one"):
        with pytest.raises(OSError):
            copied(source, "", name="")


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user takes root")
def test_nobody_else_gets_what_is_copied_by_being_there_before(tmp_path: Path) -> None:
    place = tmp_path / "for all"
    place.mkdir()
    place.chmod(0o1777)
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(b"new" * MEGABYTE)
    facts = (source / "f").stat()

    planted = place / receiving.temporary_name(b"f").decode()
    planted.write_bytes(b"old" * 100)
    note = place / f"{planted.name}.note"
    note.write_bytes(b"%d %d" % (facts.st_size, facts.st_mtime_ns))
    for one in (planted, note):
        os.chown(one, 12345, 12345)
        one.chmod(0o666)
    with planted.open("rb") as watched:
        copied(source / "f", place / "f")
        assert watched.read() == b"old" * 100
    assert (place / "f").read_bytes() == (source / "f").read_bytes()
    assert (place / "f").stat().st_uid == os.geteuid()

    origin = Sender(os.fsencode(source))._origin().encode()
    folder = place / receiving.temporary_name(b"out\0" + origin).decode()
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(OSError, match="somebody else"):
        copied(source, place / "out")
    assert names(folder) == []


@pytest.mark.parametrize(
    "said",
    [
        [message(BEGIN, [True])],
        [message(BEGIN, [1, 0, ""])],
        [message(BEGIN, [True, -1, ""])],
        [message(BEGIN, [True, 1 << 70, ""])],
        [message(DONE)],
        [message(BEGIN, [True, 0, ""]), message(WANTED, [])],
        [message(BEGIN, [True, 0, ""]), message(CONTENT, b"x")],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, 1)],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, [1])],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, [["a", "file", 0, 0, -1, ""]])],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, [["a", "file", 0, 0, 1 << 64, ""]])],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, [["a", "file", 0, 1 << 64, 0, ""]])],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, [["a", "file", "0", 0, 0, ""]])],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, [["a", "device", 0, 0, 0, ""]])],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, [["\ud800", "file", 0, 0, 0, ""]])],
        [message(BEGIN, [True, 0, ""]), message(ENTRIES, [["", "file", 0, 0, 0, ""]])],
        [message(BEGIN, [False, 0, ""]), message(ENTRIES, [["a", "file", 0, 0, 0, ""]])],
        [message(BEGIN, [False, 0, ""]), message(ENTRIES, [["", "folder", 0, 0, 0, ""]])],
        [
            message(BEGIN, [True, 0, ""]),
            entries_message([Entry(b"a", FILE, 0, 0, 1)]),
            message(DONE),
        ],
        [
            message(BEGIN, [True, 0, ""]),
            entries_message([Entry(b"a", FILE, 0, 0, 1)]),
            message(CONTENT, b"more"),
        ],
        [framed(b"")],
        [framed(b"B{")],
        [framed(b"B" + b"[" * 100_000)],
        [framed(b"B" + b"9" * 100_000)],
        [b"\xff" * 8],
    ],
)
def test_what_means_nothing_ends_the_copy(tmp_path: Path, said: list[bytes]) -> None:
    before = stat.S_IMODE(tmp_path.stat().st_mode)
    with pytest.raises(NotUnderstood):
        told(tmp_path / "out", *said)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == before
    assert not (tmp_path / "out").exists()


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_bytes_do_worse(tmp_path_factory: Any, said: list[bytes]) -> None:
    place = tmp_path_factory.mktemp("any")
    with suppress(NotUnderstood, Refused):
        told(place / "out", *[framed(one) for one in said if one] or [b"\0"])
    assert all(name.startswith(".nsml-cp-") for name in names(place))


def test_a_file_that_comes_in_part_is_none(tmp_path: Path) -> None:
    entry = Entry(b"f", FILE, 0o644, 0, 5)
    receiver = told(tmp_path / "out", *folder(entry, contents=1))
    assert receiver.report is not None
    assert receiver.report.failures == [(b"f", "it came in part")]
    assert names(tmp_path / "out") == []


def test_endless_entries_and_failures_take_no_memory(tmp_path: Path) -> None:
    entries = [Entry(b"", FOLDER)] * 250 + [Entry(b"%0100d" % n, LEFT_OUT) for n in range(250)]
    part = entries_message(entries)
    tracemalloc.start()
    try:
        receiver = told(
            tmp_path / "out", message(BEGIN, [True, 0, ""]), *[part] * 40, message(DONE)
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert receiver.report is not None
    assert receiver.report.failed == 10_000
    assert len(receiver.report.failures) == MOST_NAMED
    assert peak < MEGABYTE


@pytest.mark.parametrize("wanted", [[], [0, 0], ["0"], [2], [-2], {}, None, [1 << 70]])
def test_a_receiver_that_wants_what_is_not_there(tmp_path: Path, wanted: Any) -> None:
    (tmp_path / "f").write_bytes(b"x")
    steps = Sender(os.fsencode(tmp_path / "f")).steps()
    next(steps)
    assert next(steps) == b""
    steps.send(message(b"G"))
    assert next(steps) == b""
    with pytest.raises(NotUnderstood):
        steps.send(message(WANTED, wanted))


def test_a_full_disk_ends_the_copy_and_keeps_what_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big").write_bytes(os.urandom(4 * MEGABYTE))
    write, room = os.write, [2 * MEGABYTE]

    def limited(descriptor: int, data: Any) -> int:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", limited)
        with pytest.raises(OSError, match="No space left"):
            copied(tmp_path / "big", tmp_path / "out")
    report, sent = copied(tmp_path / "big", tmp_path / "out")
    assert report.files == 1
    assert sent < 3 * MEGABYTE
    assert (tmp_path / "out").read_bytes() == (tmp_path / "big").read_bytes()


def test_a_side_that_refuses_says_why() -> None:
    steps = Incoming().next()
    next(steps)
    with pytest.raises(Refused, match="no room") as refused:
        steps.send(message(b"R", ["no room", "ENOSPC"]))
    assert refused.value.name == "ENOSPC"
