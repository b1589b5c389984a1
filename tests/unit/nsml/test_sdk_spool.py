"""Records reach the file whole, once and in order, whatever happens to disk, threads and process."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml._frames import LOST_BYTES, MAGIC, MAX_FILES, MAX_PAYLOAD, DamagedError, frame, parse
from nsml._spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]


def read(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    records, end = parse(data)
    assert end == len(data), "half a frame at the end"
    assert [seq for seq, _ in records] == list(range(1, len(records) + 1))
    return [json.loads(payload) for _, payload in records]


def run_in_session(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NSML_RUN_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@given(st.lists(st.binary(max_size=200)), st.data())
def test_any_beginning_of_a_file_parses_to_its_whole_frames(
    payloads: list[bytes], data: st.DataObject
) -> None:
    frames = [frame(seq, payload) for seq, payload in enumerate(payloads, 1)]
    whole = MAGIC + b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    records, end = parse(whole[:cut])
    ends = [len(MAGIC) + sum(map(len, frames[:count])) for count in range(len(frames) + 1)]
    assert end == max([stop for stop in ends if stop <= cut], default=0)
    assert [payload for _, payload in records] == payloads[: len(records)]
    if cut == len(whole):
        assert len(records) == len(payloads)


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_flipped_bit_is_never_a_record(payload: bytes, data: st.DataObject) -> None:
    whole = bytearray(MAGIC + frame(1, payload))
    bit = data.draw(st.integers(len(MAGIC) * 8, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << (bit % 8)
    # A length that grew looks like a frame that is still being written; all else is damage.
    with suppress(DamagedError):
        assert parse(bytes(whole)) == ([], len(MAGIC))


def test_another_format_is_refused() -> None:
    with pytest.raises(DamagedError):
        parse(b"NSMLREC9")
    with pytest.raises(DamagedError):
        parse(b"X")


def test_records_arrive_in_order(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    for number in range(100):
        spool.append(b'{"n":%d}' % number)
    assert [record["n"] for record in read(tmp_path / "spool/1.records")] == list(range(100))


def test_many_records_of_one_write_are_those_of_many(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    large = b'"%s"' % (b"x" * (600 << 10))
    spool.append_all([])
    spool.append_all([b"0"])
    spool.append_all([b"%d" % number for number in range(1, 1000)])
    spool.append_all([large, large, b"1000"])
    spool.append_all([b"1001", b"y" * (MAX_PAYLOAD + 1), b"1002"])
    records = read(tmp_path / "1.records")
    text = "x" * (600 << 10)
    dropped = records.pop(-2)
    assert records == [*range(1000), text, text, 1000, 1001, 1002]
    assert (dropped["kind"], dropped["count"]) == ("dropped", 1)


def test_each_writer_takes_the_first_free_number(tmp_path: Path) -> None:
    (tmp_path / "7.records").write_bytes(b"")
    (tmp_path / "notes").write_bytes(b"")
    for _ in range(2):
        Spool(str(tmp_path)).append(b"{}")
    assert sorted(path.name for path in tmp_path.glob("*.records")) == [
        "7.records",
        "8.records",
        "9.records",
    ]
    assert (tmp_path / "7.records").read_bytes() == b""


def test_threads_share_a_file(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))

    def write(name: int) -> None:
        for number in range(300):
            spool.append(b'{"thread":%d,"n":%d}' % (name, number))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = read(tmp_path / "1.records")
    for name in range(4):
        assert [r["n"] for r in records if r["thread"] == name] == list(range(300))


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    done = run_in_session(
        tmp_path,
        """
import fcntl, os, nsml
nsml.report(who=0)
children = []
for number in (1, 2, 3):
    child = os.fork()
    if child == 0:
        own = open("file-of-the-child", "wb")
        fcntl.fcntl(own, fcntl.F_DUPFD, 200)  # takes the number that the parent's file had
        for step in range(50):
            nsml.report(who=number, step=step)
        os._exit(os.fstat(own.fileno()).st_size)
    children.append(child)
    nsml.report(who=0)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
nsml.report(who=0)
""",
    )
    assert done.returncode == 0, done.stderr
    files = [read(path) for path in (tmp_path / "spool").glob("*.records")]
    owners = sorted((len(file), {r["values"]["who"] for r in file}.pop()) for file in files)
    assert owners == [(5, 0), (50, 1), (50, 2), (50, 3)]
    assert all(len({r["values"]["who"] for r in file}) == 1 for file in files)


def test_a_fork_while_another_thread_reports_does_not_hang_the_child(tmp_path: Path) -> None:
    done = run_in_session(
        tmp_path,
        """
import os, threading, nsml
stop = threading.Event()
nsml.report(a=0)
def loop():
    while not stop.is_set():
        nsml.report(a=1)
thread = threading.Thread(target=loop)
thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        nsml.report(child=1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
thread.join()
""",
    )
    assert done.returncode == 0, done.stderr
    files = [read(path) for path in (tmp_path / "spool").glob("*.records")]
    assert len(files) == 31


def test_a_report_that_returned_survives_sigkill(tmp_path: Path) -> None:
    done = run_in_session(
        tmp_path,
        """
import os, signal, nsml
for step in range(1000):
    nsml.report(step=step, loss=step / 2)
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    assert done.returncode == -signal.SIGKILL
    assert [record["step"] for record in read(tmp_path / "spool/1.records")] == list(range(1000))


def test_a_signal_handler_may_report_and_raise_at_any_point(tmp_path: Path) -> None:
    done = run_in_session(
        tmp_path,
        """
import signal, nsml
beats = returned = interrupted = 0
def beat(number, frame):
    global beats
    beats += 1
    nsml.report(beat=beats)
    if beats % 2:
        raise KeyboardInterrupt
nsml.report(begin=1)
signal.signal(signal.SIGALRM, beat)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
try:
    while beats < 400:
        try:
            while beats < 400:
                returned += 1
                nsml.report(n=returned)
        except KeyboardInterrupt:
            interrupted += 1
finally:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
nsml.report(end=returned, beats=beats)
""",
    )
    assert done.returncode in (0, -signal.SIGINT, 1), done.stderr
    records = [record["values"] for record in read(tmp_path / "spool/1.records")]
    numbers = [record["n"] for record in records if "n" in record]
    assert numbers == sorted(set(numbers)), "twice or out of order"
    if "end" in records[-1]:
        assert len(numbers) >= records[-1]["end"] - records[-1]["beats"]


@pytest.mark.parametrize("written", [0, 10, None])
def test_a_write_that_is_interrupted_is_found_again_whole_or_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int | None
) -> None:
    """A frame that readers may have seen is never cut off, a half one never stays."""
    spool = Spool(str(tmp_path))
    spool.append(b'{"n":1}')
    write = os.write

    def interrupted(fd: int, data: bytes) -> int:
        write(fd, data[:written])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            spool.append(b'{"n":2}')
    spool.append(b'{"n":3}')
    numbers = [record["n"] for record in read(tmp_path / "1.records")]
    assert numbers == ([1, 2, 3] if written is None else [1, 3])


@pytest.fixture
def file_limit() -> Iterator[Callable[[int | None], None]]:
    """Sets how large files may become: the kernel then cuts writes short, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [1, 15, 16, 17, 40])
def test_a_full_disk_costs_records_that_are_counted_and_hides_no_later_ones(
    tmp_path: Path, file_limit: Callable[[int | None], None], room: int
) -> None:
    spool = Spool(str(tmp_path))
    path = tmp_path / "1.records"
    spool.append(b'{"n":0}')
    file_limit(path.stat().st_size + room)
    for number in range(1, 6):
        spool.append(b'{"n":%d,"text":"%s"}' % (number, b"x" * 40))
        assert read(path) == [{"n": 0}]
    spool.append(b'{"n":6,"must":"arrive"}' + b" " * 40, must_arrive=True)
    file_limit(None)
    spool.append(b'{"n":7}')
    first, *rest = read(path)
    assert first == {"n": 0}
    assert rest[0] == {"n": 6, "must": "arrive"}
    assert (rest[1]["kind"], rest[1]["count"]) == ("dropped", 5)
    assert rest[1]["since"] <= rest[1]["time"]
    assert rest[2:] == [{"n": 7}]


@pytest.mark.parametrize("room", [0, 1, 17, 18, 40, 10_000])
def test_of_many_records_a_full_disk_takes_the_first_and_the_others_are_counted(
    tmp_path: Path, file_limit: Callable[[int | None], None], room: int
) -> None:
    spool = Spool(str(tmp_path))
    path = tmp_path / "1.records"
    spool.append_all([b"10", b"11"])
    file_limit(path.stat().st_size + room)
    spool.append_all([b"%d" % number for number in range(12, 30)])
    file_limit(None)
    spool.append_all([b"30", b"31"])
    records = read(path)
    numbers = [one for one in records if isinstance(one, int)]
    lost = sum(one["count"] for one in records if isinstance(one, dict))
    kept = min(room // len(frame(1, b"12")), 18)
    assert numbers == [*range(10, 12 + kept), 30, 31]
    assert lost == 18 - kept


def counted(path: Path) -> dict[str, int]:
    return {name: int(count) for name, count in json.loads(path.read_text()).items()}


def test_what_is_lost_is_counted_where_there_is_room_for_it_until_a_record_says_so(
    tmp_path: Path, file_limit: Callable[[int | None], None]
) -> None:
    spool = Spool(str(tmp_path))
    path, lost = tmp_path / "1.records", tmp_path / "1.lost"
    spool.append(b'{"n":0,"text":"%s"}' % (b"x" * 100))
    assert lost.read_text().strip() == ""
    room = lost.stat().st_size
    file_limit(path.stat().st_size)
    for number in range(1, 4):
        spool.append(b"{}")
        assert counted(lost) == {"after": 1, "count": number}
    spool.append(b"{}", must_arrive=True)
    assert counted(lost) == {"after": 1, "count": 4, "waiting": 1}
    file_limit(None)
    spool.append(b"{}")
    # Records follow number 1: whoever reads the count knows that it is told there.
    assert len(read(path)) == 4
    file_limit(path.stat().st_size)
    spool.append(b"{}")
    assert counted(lost) == {"after": 4, "count": 1}
    assert lost.stat().st_size == room


def test_who_finds_no_room_for_a_file_counts_where_room_was_taken_for_it(
    tmp_path: Path, file_limit: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsml._spool._REOPEN_AFTER_S", 0.0)
    lost = tmp_path / "1.lost"
    lost.write_text(" " * LOST_BYTES)
    spool = Spool(str(tmp_path))

    def refuse(path: str, *_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("nsml._spool._create", refuse)
        for number in range(1, 4):
            spool.append(b"{}")
            assert counted(lost) == {"after": 0, "count": number}
    spool.append(b'{"n":4}')
    assert [record.get("count") for record in read(tmp_path / "1.records")] == [3, None]
    file_limit((tmp_path / "1.records").stat().st_size)
    spool.append(b"{}")
    assert counted(lost) == {"after": 2, "count": 1}


def test_the_count_of_a_child_is_not_its_parents(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.append(b"{}")
    spool.after_fork()
    spool.drop("lost before it had a file")
    spool.append(b"{}")
    spool.drop("lost")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["1.lost", "1.records", "2.lost", "2.records"]
    assert (tmp_path / "1.lost").read_text().strip() == ""


def test_a_process_too_many_drops_its_records_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{MAX_FILES - 1}.records").touch()
    Spool(str(tmp_path)).append(b"{}")
    one_too_many = Spool(str(tmp_path))
    one_too_many.append(b"{}")
    one_too_many.append(b"{}")
    names = sorted(path.name for path in tmp_path.glob("*.records"))
    assert names == ["4095.records", "4096.records"]
    assert capsys.readouterr().err.count("4096 processes have reported") == 1


def test_files_with_numbers_of_other_alphabets_are_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "\u00b2.records").touch()
    Spool(str(tmp_path)).append(b"{}")
    assert read(tmp_path / "1.records") == [{}]


@pytest.mark.parametrize("kind", ["metric", "state", "checkpoint"])
def test_what_is_owed_is_written_at_exit_when_no_report_follows(tmp_path: Path, kind: str) -> None:
    done = run_in_session(
        tmp_path,
        """
import resource, nsml
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
nsml.report(a=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
if KIND == "metric":
    nsml.report(a=2)
elif KIND == "checkpoint":
    nsml.bind(save=lambda path: open(path + "/w", "w").close())
    nsml.save("best")
else:
    nsml._session._SESSION._record_state("PAUSED")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
""".replace("KIND", repr(kind)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("nsml: records ")
    kinds = [record["kind"] for record in read(tmp_path / "spool/1.records")]
    assert kinds == ["metric", "dropped" if kind == "metric" else kind]


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_records(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spool").write_text("a file where the folder should be")
    spool = Spool(str(tmp_path / "spool"))
    for _ in range(1000):
        spool.append(b"{}")
    assert capfd.readouterr().err.count("training goes on") == 1
    (tmp_path / "spool").unlink()
    spool._reopen_at = 0.0
    spool.append(b'{"n":1}')
    dropped, last = read(tmp_path / "spool/1.records")
    assert dropped["count"] == 1000
    assert last == {"n": 1}


def test_an_empty_file_is_not_left_behind_when_the_disk_has_no_room_for_a_header(
    tmp_path: Path, file_limit: Callable[[int | None], None]
) -> None:
    spool = Spool(str(tmp_path))
    file_limit(4)
    spool.append(b"{}")
    file_limit(None)
    assert list(tmp_path.iterdir()) == []


def test_a_record_over_the_limit_is_dropped_and_said_so(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.append(b'"' + b"x" * MAX_PAYLOAD + b'"')
    spool.append(b'{"n":1}')
    dropped, last = read(tmp_path / "1.records")
    assert dropped["kind"] == "dropped"
    assert str(MAX_PAYLOAD) in dropped["reason"]
    assert last == {"n": 1}


def test_a_program_that_closes_all_its_files_reports_into_another_one(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.append(b'{"n":1}')
    assert spool._file is not None
    os.close(spool._file.fd)
    spool.append(b'{"n":2}')
    spool.append(b'{"n":3}')
    assert read(tmp_path / "1.records") == [{"n": 1}]
    assert read(tmp_path / "2.records") == [{"n": 2}, {"n": 3}]


def test_a_program_that_closes_low_numbers_and_opens_its_own_keeps_them_clean(
    tmp_path: Path,
) -> None:
    done = run_in_session(
        tmp_path,
        """
import os, nsml
nsml.report(a=1)
os.closerange(3, 100)
own = [open(f"own-{number}", "wb") for number in range(20)]
nsml.report(a=2)
assert all(os.fstat(file.fileno()).st_size == 0 for file in own)
""",
    )
    assert done.returncode == 0, done.stderr
    assert [record["values"]["a"] for record in read(tmp_path / "spool/1.records")] == [1, 2]


def test_the_writer_in_the_documentation_writes_this_format(tmp_path: Path) -> None:
    text = (ROOT / "docs/sdk-protocol.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for _ in range(2):
        done = run_in_session(tmp_path, program)
        assert done.returncode == 0, done.stderr
    for number in (1, 2):
        records = read(tmp_path / f"spool/{number}.records")
        assert [record["values"]["loss"] for record in records] == [1, 1 / 2, 1 / 3]
