"""The session's side of a folder that is kept in step: what it puts and removes, and what it lets alone."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nsml.copying import messages as m
from nsml.copying import sync_messages as s
from nsml.copying.sync_receiver import SyncReceiver


class Client:
    """The other side, which may say anything."""

    def __init__(self, folder: Path) -> None:
        self.steps = SyncReceiver(os.fsencode(folder)).steps()
        self.incoming = m.Incoming()
        assert next(self.steps) == b""

    def say(self, data: bytes) -> bytes:
        """What it answers to all of it."""
        answer, said = b"", self.steps.send(data)
        while said:
            answer, said = answer + said, next(self.steps)
        return answer

    def heard(self, answer: bytes, kind: bytes) -> object:
        steps = self.incoming.expect(kind)
        next(steps)
        with pytest.raises(StopIteration) as over:
            steps.send(answer)
        return over.value.value

    def states(self, *paths: bytes) -> list[s.State]:
        answer = self.heard(self.say(s.ask_message(paths)), s.STATES)
        return s.states_of(answer, len(paths))

    def results(self, *said: bytes) -> list[s.Result]:
        orders = sum(one[4:5] in {s.PUT, s.REMOVE, s.REMOVE_FOLDER} for one in said)
        answer = self.heard(self.say(b"".join(said) + m.message(m.DONE)), s.RESULTS)
        return s.results_of(answer, orders)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "app"
    made.mkdir()
    return made


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    made = Client(folder)
    made.heard(made.say(m.message(m.BEGIN, s.VERSION)), m.GO)
    yield made
    made.steps.close()


def file_of(content: bytes, *, is_executable: bool = False) -> s.File:
    return s.File(hashlib.sha256(content).hexdigest(), is_executable)


def put(
    path: bytes,
    content: bytes,
    there: bytes | None = None,
    *,
    is_executable: bool = False,
    pieces: Sequence[s.Piece] | None = None,
    why: str = "",
) -> tuple[bytes, ...]:
    file = file_of(content, is_executable=is_executable)
    known = None if there is None else file_of(there)
    return (
        s.order_message(s.Put(path, file, len(content), 1_000_000_007, known)),
        *(s.piece_message(one) for one in ([content] if pieces is None else pieces)),
        m.message(m.CONTENT_END, why),
    )


def words(results: list[s.Result]) -> list[str]:
    return [one.outcome for one in results]


def names(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


def test_files_come_are_replaced_and_go(client: Client, folder: Path) -> None:
    (folder / "d").mkdir()
    [a, b, _] = client.results(
        *put(b"d/e/f/a", b"one", is_executable=True),
        *put(b"b", b"two", pieces=[b"t", b"wo"]),
        *put(b"empty", b"", pieces=[]),
    )
    assert (a, b) == (s.Result(s.DONE, folders=2), s.Result(s.DONE))
    assert stat.S_IMODE((folder / "d/e/f/a").stat().st_mode) == 0o755
    assert (folder / "b").stat().st_mtime_ns == 1_000_000_007
    one = file_of(b"one", is_executable=True)
    assert client.states(b"d/e/f/a", b"b", b"no/such", b"b/below", b"d") == [
        one,
        file_of(b"two"),
        None,
        None,
        s.NoFile("a folder"),
    ]
    after = client.results(
        *put(b"b", b"three", there=b"two"),
        s.order_message(s.Remove(b"d/e/f/a", one)),
        s.order_message(s.Remove(b"never", one)),
        *(s.order_message(s.RemoveFolder(path)) for path in (b"d/e/f", b"d/e", b"no/such")),
    )
    assert words(after) == [s.DONE] * 6
    assert (folder / "b").read_bytes() == b"three"
    assert names(folder) == ["b", "d", "empty"]


def test_a_file_is_put_together_from_the_one_in_its_place(client: Client, folder: Path) -> None:
    (folder / "a").write_bytes(b"0123456789")
    pieces: list[s.Piece] = [s.Old(4, 6), b"new", s.Old(0, 3)]
    [done] = client.results(*put(b"a", b"456789new012", b"0123456789", pieces=pieces))
    assert done.outcome == s.DONE
    assert (folder / "a").read_bytes() == b"456789new012"


def test_what_somebody_else_put_there_meanwhile_is_no_change_if_it_is_the_same(
    client: Client, folder: Path
) -> None:
    for known in (None, b"old"):
        for theirs, outcome in ((b"new", s.DONE), (b"else", s.KEPT)):
            (folder / "a").unlink(missing_ok=True)
            if known is not None:
                (folder / "a").write_bytes(known)
            begin, content, end = put(b"a", b"new", known)
            assert client.say(begin + content) == b""
            (folder / "a").write_bytes(theirs)
            answer = client.heard(client.say(end + m.message(m.DONE)), s.RESULTS)
            assert words(s.results_of(answer, 1)) == [outcome]
            assert (folder / "a").read_bytes() == theirs


@pytest.mark.parametrize(
    ("there", "pieces"),
    [
        (b"456789new012", [b"45678", s.Old(6, 7)]),  # more than it has
        (b"456789new012", [s.Old(0, 12)]),  # not what was said
        (None, [s.Old(0, 12)]),  # nothing is there to be copied
    ],
)
def test_nothing_is_put_that_is_not_what_was_said(
    client: Client, folder: Path, there: bytes | None, pieces: Sequence[s.Piece]
) -> None:
    if there is not None:
        (folder / "a").write_bytes(there)
    (folder / "d").mkdir()
    [result] = client.results(*put(b"a" if there else b"d/e/a", b"x" * 12, there, pieces=pieces))
    assert result.outcome in {s.KEPT, s.FAILED}
    assert names(folder) == (["a", "d"] if there else ["d"])


def test_parts_of_files_are_numbers() -> None:
    for said in ([0, 0], [-1, 3], [0, 1 << 63], [0], "ab", [0.5, 1], None):
        with pytest.raises(m.NotUnderstood):
            s.old_of(said)


def test_what_the_session_changed_or_made_stays(client: Client, folder: Path) -> None:
    (folder / "changed").write_bytes(b"theirs")
    (folder / "d").mkdir()
    (folder / "d/own").write_bytes(b"own")
    (folder / "file").write_bytes(b"file")
    results = client.results(
        *put(b"changed", b"ours", there=b"before"),
        *put(b"changed", b"ours"),
        *put(b"gone", b"ours", there=b"before"),
        *put(b"d", b"ours"),
        *put(b"file/below", b"ours"),
        s.order_message(s.Remove(b"changed", file_of(b"before"))),
        s.order_message(s.RemoveFolder(b"d")),
    )
    assert words(results) == [s.KEPT] * 7
    assert names(folder) == ["changed", "d", "d/own", "file"]
    assert (folder / "changed").read_bytes() == b"theirs"


def test_what_is_written_while_its_successor_comes_stays(client: Client, folder: Path) -> None:
    (folder / "a").write_bytes(b"before")
    order, content, end = put(b"a", b"ours", there=b"before")
    assert client.say(order + content) == b""
    (folder / "a").write_bytes(b"theirs")
    made, made_content, made_end = put(b"new", b"ours")
    assert client.say(end + made + made_content) == b""
    (folder / "new").write_bytes(b"theirs")
    answer = client.heard(client.say(made_end + m.message(m.DONE)), s.RESULTS)
    assert words(s.results_of(answer, 2)) == [s.KEPT, s.KEPT]
    assert names(folder) == ["a", "new"]
    assert {(folder / name).read_bytes() for name in ("a", "new")} == {b"theirs"}


def test_what_did_not_come_whole_has_no_name(client: Client, folder: Path) -> None:
    (folder / "a").write_bytes(b"before")
    results = client.results(
        *put(b"a", b"ours", there=b"before", pieces=[b"ou"], why="it was changed"),
        *put(b"b", b"ours", pieces=[b"ou"]),
        *put(b"c", b"ours", pieces=[b"four"]),
        *put(b"d", b"whole"),
    )
    assert words(results) == [s.FAILED, s.FAILED, s.FAILED, s.DONE]
    assert names(folder) == ["a", "d"]
    assert (folder / "a").read_bytes() == b"before"


def test_links_lead_nowhere(client: Client, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"outside")
    (folder / "way").symlink_to(outside)
    (folder / "link").symlink_to(outside / "a")
    (folder / ".nsml-cp-x").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    assert client.states(b"way/a", b"link", b"way", b"pipe") == [
        None,
        s.NoFile("a link"),
        s.NoFile("a link"),
        s.NoFile("a socket, pipe or device"),
    ]
    known = file_of(b"outside")
    results = client.results(
        *put(b"way/a", b"ours", there=b"outside"),
        *put(b"way/b", b"ours"),
        *put(b"link", b"ours", there=b"outside"),
        *put(b"pipe", b"ours"),
        s.order_message(s.Remove(b"way/a", known)),
        s.order_message(s.Remove(b"link", known)),
        s.order_message(s.RemoveFolder(b"way")),
    )
    assert set(words(results)) == {s.KEPT, s.DONE}
    assert words(results)[:4] == [s.KEPT] * 4
    assert (folder / "link").is_symlink()
    assert (folder / "way").is_symlink()
    assert names(outside) == ["a"]
    assert (outside / "a").read_bytes() == b"outside"


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "", ".", ".nsml-cp-x", "a\0b", "a/" * 3000])
def test_other_paths_are_not_understood(client: Client, path: str) -> None:
    for said in (
        m.message(s.ASK, [path]),
        m.message(s.REMOVE_FOLDER, path),
        m.message(s.REMOVE, [path, ["0" * 64, False]]),
        m.message(s.PUT, [path, ["0" * 64, False], 1, 1, None]),
    ):
        with pytest.raises(m.NotUnderstood):
            client.say(said)
        break


@pytest.mark.parametrize(
    "said",
    [
        m.message(s.PUT, ["a", ["0", False], 1, 1, None]),
        m.message(s.PUT, ["a", ["0" * 64, 1], 1, 1, None]),
        m.message(s.PUT, ["a", ["0" * 64, True], -1, 1, None]),
        m.message(s.PUT, ["a", ["0" * 64, True], 1 << 70, 1, None]),
        m.message(s.PUT, ["a", ["0" * 64, True], 1, 1, "a link"]),
        m.message(s.PUT, 7),
        m.message(s.ASK, 7),
        m.message(s.ASK, [7]),
        m.message(m.CONTENT, b"x"),
        b"".join(put(b"a", b"x", pieces=[b"xyz"])),
        m.message(s.REMOVE_FOLDER, "a") * (s.MOST_ORDERS + 1),
    ],
)
def test_nonsense_is_not_understood(client: Client, folder: Path, said: bytes) -> None:
    with pytest.raises(m.NotUnderstood):
        client.say(said)
    client.steps.close()
    assert [one for one in names(folder) if not one.startswith(".nsml-cp-")] == []


def test_there_is_no_folder_or_another_version(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Client(tmp_path / "none").say(m.message(m.BEGIN, s.VERSION))
    steps = SyncReceiver(os.fsencode(folder)).steps()
    next(steps)
    assert steps.send(m.message(m.BEGIN, s.VERSION + 1))[4:5] == m.REFUSED
