"""The protocol of syncing a folder with one in a session: frames, as in `messages`.

```
client                          session
B  its version of this
                                G  go on; or R, why not
A  paths                        S  their state: a digest and whether it is executable, or why it is no file
...
P  a file to put: C  its bytes, O  bytes of the file in its place; X  their end, and why it is incomplete
U  a file to remove
M  a folder to remove if it is empty
D  the end                      F  the result of each
```

A file is replaced or removed only if it is the one expected by the client, checked again at the last moment.
One side sends at a time; rounds follow each other. All but C is JSON. However it was assembled, a file
is accepted only with the announced digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from nsml.copying.messages import CONTENT, NotUnderstood, check_path, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

VERSION: Final = 2
ASK: Final = b"A"
STATES: Final = b"S"
PUT: Final = b"P"
OLD: Final = b"O"
REMOVE: Final = b"U"
REMOVE_FOLDER: Final = b"M"
RESULTS: Final = b"F"

MOST_ORDERS: Final = 512
"""Most orders of a round, so that its results fit in one message."""
_MOST_WHY: Final = 150
_DIGEST_LETTERS: Final = 64

DONE: Final = "done"
KEPT: Final = "kept"
"""The existing file is not the expected one."""
FAILED: Final = "failed"
FULL: Final = "full"
"""There is no room for it."""
_OUTCOMES: Final = frozenset({DONE, KEPT, FAILED, FULL})


class File(NamedTuple):
    """Compared properties of a file: the SHA-256 of its content, and whether it is executable."""

    digest: str
    is_executable: bool


class NoFile(NamedTuple):
    """Anything but a readable file; `why` describes it, for people."""

    why: str


State: TypeAlias = File | NoFile | None
"""The state of a path; None: it does not exist."""


class Put(NamedTuple):
    """Put a file of this size in place of `there`: a file, or None."""

    path: bytes
    file: File
    size: int
    mtime_ns: int
    there: File | None


class Old(NamedTuple):
    """Part of a file's content, to be copied from the existing file in its place."""

    offset: int
    size: int


Piece: TypeAlias = bytes | Old
"""A piece of a file's content."""


class Remove(NamedTuple):
    """Remove the file `there`."""

    path: bytes
    there: File


class RemoveFolder(NamedTuple):
    """Remove a folder if it is empty."""

    path: bytes


Order: TypeAlias = Put | Remove | RemoveFolder


class Result(NamedTuple):
    """The result of an order: one of the words above, and why. `folders`: number of parent folders made for it."""

    outcome: str
    why: str = ""
    folders: int = 0


def ask_message(paths: Iterable[bytes]) -> bytes:
    """Encode a request for the states of these paths."""
    return message(ASK, [_text(path) for path in paths])


def asked(value: Any) -> list[bytes]:
    """Decode the paths of such a message. Raises NotUnderstood."""
    try:
        return [_path(text) for text in value]
    except (AttributeError, TypeError, ValueError) as error:
        raise NotUnderstood("paths") from error


def states_message(states: Iterable[State]) -> bytes:
    """Encode states."""
    return message(STATES, [_state_row(state) for state in states])


def states_of(value: Any, count: int) -> list[State]:
    """Decode such a message for `count` paths. Raises NotUnderstood."""
    if not isinstance(value, list) or len(value) != count:
        raise NotUnderstood("states")
    return [_state(one) for one in value]


def order_message(order: Order) -> bytes:
    """Encode an order; the content of a file follows it."""
    path = _text(order.path)
    if isinstance(order, Put):
        there = _state_row(order.there)
        return message(PUT, [path, [*order.file], order.size, order.mtime_ns, there])
    if isinstance(order, Remove):
        return message(REMOVE, [path, [*order.there]])
    return message(REMOVE_FOLDER, path)


def order_of(kind: bytes, value: Any) -> Order:
    """Decode such a message. Raises NotUnderstood."""
    try:
        if kind == REMOVE_FOLDER:
            return RemoveFolder(_path(value))
        if kind == REMOVE:
            path, there = value
            return Remove(_path(path), _file(there))
        path, file, size, mtime_ns, there = value
        for number in (size, abs(mtime_ns)):
            if not isinstance(number, int) or not 0 <= number < 1 << 63:
                raise ValueError  # noqa: TRY301
        return Put(
            _path(path), _file(file), size, mtime_ns, None if there is None else _file(there)
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotUnderstood("an order") from error


def piece_message(piece: Piece) -> bytes:
    """Encode the next bytes of a file."""
    return message(OLD, [*piece]) if isinstance(piece, Old) else message(CONTENT, piece)


def old_of(value: Any) -> Old:
    """Decode such a message. Raises NotUnderstood."""
    match value:
        case [int(offset), int(size)] if 0 <= offset < 1 << 63 and 0 < size < 1 << 63:
            return Old(offset, size)
    raise NotUnderstood("a part of a file")


def results_message(results: Iterable[Result]) -> bytes:
    """Encode the results of orders."""
    return message(RESULTS, [[one.outcome, one.why[:_MOST_WHY], one.folders] for one in results])


def results_of(value: Any, count: int) -> list[Result]:
    """Decode `count` results. Raises NotUnderstood."""
    try:
        results = [Result(str(word), str(why)[:_MOST_WHY], int(made)) for word, why, made in value]
    except (TypeError, ValueError) as error:
        raise NotUnderstood("results") from error
    if len(results) != count or any(one.outcome not in _OUTCOMES for one in results):
        raise NotUnderstood("results")
    return results


def parts(paths: Iterable[bytes], *, most: int, most_bytes: int) -> Iterator[list[bytes]]:
    """Group paths by message."""
    part: list[bytes] = []
    held = 0
    for path in paths:
        part.append(path)
        held += len(path)
        if len(part) >= most or held >= most_bytes:
            yield part
            part, held = [], 0
    if part:
        yield part


def _state_row(state: State) -> Any:
    return state.why[:_MOST_WHY] if isinstance(state, NoFile) else state and [*state]


def _state(value: Any) -> State:
    if value is None:
        return None
    return NoFile(value[:_MOST_WHY]) if isinstance(value, str) else _file(value)


def _file(value: Any) -> File:
    match value:
        case [str(digest), bool(is_executable)] if len(digest) == _DIGEST_LETTERS:
            return File(digest, is_executable)
    raise NotUnderstood("a file")


def _path(text: str) -> bytes:
    path = text.encode("utf-8", "surrogateescape")
    if not path:
        raise NotUnderstood("a path")
    check_path(path)
    return path


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
