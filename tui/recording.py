"""Recordings: events received by the dashboard in a file, read again as a story.

A file is one zstd stream: `MAGIC`, then frames. A frame is the length of its body and the CRC-32 of that (4 bytes
each, little-endian), and the body, an array in MessagePack. The first is a `Header`; each of the others an `_Entry`:
the time, and an event's kind and fields, by the table `_FIELDS`; messages of the contract are in wire format. The
stream is flushed after each frame: a truncated file can be read up to its last whole frame.

Files are untrusted: sizes are limited before anything is read, data is checked before it is kept, and texts are
made safe for a terminal as those of a platform are.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import zstandard
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from nsml.client.boards import WatchedBoard
from nsml.client.series import ChartQuery, grouped
from nsml.client.streams import Link
from nsml.common.text import visible
from nsml.common.units import size_text
from nsml.v1.artifacts_pb2 import Artifact
from nsml.v1.boards_pb2 import Board, BoardEntry, WatchBoardResponse
from nsml.v1.checkpoints_pb2 import Checkpoint
from nsml.v1.competitions_pb2 import Announcement, Competition, WatchStandingsResponse
from nsml.v1.datasets_pb2 import Dataset
from nsml.v1.media_pb2 import Media
from nsml.v1.nodes_pb2 import GetClusterResponse, Node
from nsml.v1.projects_pb2 import GetProjectResponse, Project
from nsml.v1.sessions_pb2 import ExplainSessionResponse, ListQueueResponse, Session
from nsml.v1.telemetry_pb2 import ReadTelemetryResponse
from nsml.view.plot import within
from nsml.view.series import Axis, Series
from tui.model import (
    TOPICS,
    ArtifactsReceived,
    BoardReceived,
    BoardsReceived,
    CheckpointsReceived,
    ClusterReceived,
    CompetitionsReceived,
    ContentReceived,
    DatasetsReceived,
    EndedReceived,
    ExplanationReceived,
    Linked,
    LogReceived,
    MediaReceived,
    NodesReceived,
    ProjectReceived,
    ProjectsReceived,
    QueueReceived,
    Refused,
    SeriesReceived,
    SessionsReceived,
    StandingsReceived,
    TelemetryReceived,
    TreeReceived,
)
from tui.sources import CLOSELY, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from tui.model import Event

M = TypeVar("M", bound=Message)

MAGIC: Final = b"nsml-recording\n"
VERSION: Final = 4
MOST_BYTES: Final = 256 * 1024 * 1024
"""Of all frames, before compression: a replay holds them in memory."""
MOST_FRAME_BYTES: Final = 64 * 1024 * 1024
MOST_CONTENT_BYTES: Final = 1024 * 1024
"""Of a media file: larger ones are not recorded."""
NOT_RECORDED: Final = "not in the recording"
_FOREIGN: Final = "is no recording of nsml-tui --record"
_HEAD: Final = struct.Struct("<II")
_LEVEL: Final = 3
_MOST_WINDOW: Final = 8 * 1024 * 1024
_CHUNK: Final = 1024 * 1024
_LATEST: Final = 2.0**33
"""Upper limit of times in a recording: the year 2242."""
_EARLIEST_STAMP, _LATEST_STAMP = -6.0e10, 2.5e11
"""Range of calendar times, in seconds."""


class RecordingError(Exception):
    """A file that is no recording, or cannot be created; says what and what to do."""


class Header(msgspec.Struct, array_like=True):
    """The recorded platform."""

    version: int
    platform: str
    at: float


class _Entry(msgspec.Struct, array_like=True):
    at: float
    body: list[msgspec.Raw]
    """The name of a kind, and its fields."""


class _Line(msgspec.Struct, array_like=True):
    label: str
    x: list[float]
    y: list[float]
    counts: list[int] | None
    means: list[float] | None


class _Unsound(Exception):
    """Invalid content of a file, in words that follow its name."""


class _Field(NamedTuple):
    """How a field is written and read; reading raises if it is invalid."""

    kept: Callable[[Any], Any]
    read: Callable[[msgspec.Raw], Any]


def _reading(kind: Any, checked: Callable[[Any], Any]) -> Callable[[msgspec.Raw], Any]:
    decoder = msgspec.msgpack.Decoder(kind)
    return lambda raw: checked(decoder.decode(raw))


def _plain(kind: Any) -> _Field:
    return _Field(lambda value: value, msgspec.msgpack.Decoder(kind).decode)


def _message(kind: type[Message]) -> _Field:
    return _Field(kind.SerializeToString, _reading(bytes, lambda data: _parsed(kind, data)))


def _messages(kind: type[Message]) -> _Field:
    return _Field(
        lambda messages: [one.SerializeToString() for one in messages],
        _reading(list[bytes], lambda kept: [_parsed(kind, data) for data in kept]),
    )


def _parsed(kind: type[M], data: bytes) -> M:
    message = kind()
    message.ParseFromString(data)
    _check(message)
    return message


def _watched_board(answer: WatchBoardResponse) -> WatchedBoard:
    return WatchedBoard(answer.board, list(answer.entries))


def _check(message: Message) -> None:
    """Raise _Unsound for non-finite numbers and times on no calendar; users' values may be anything."""
    if isinstance(message, (Value, Struct)):
        return
    if isinstance(message, (Timestamp, Duration)):
        if not (_EARLIEST_STAMP < message.seconds < _LATEST_STAMP):
            raise _Unsound("a moment that no calendar has")
        return
    if isinstance(message, ReadTelemetryResponse):
        _check_figures(message)
    for _, value in message.ListFields():
        _check_value(value)


def _check_value(value: Any) -> None:
    if isinstance(value, float):
        _finite(value)
    elif isinstance(value, Message):
        _check(value)
    elif not isinstance(value, (int, str, bytes)) and not hasattr(value, "items"):
        for one in value:
            if isinstance(one, (int, str, bytes)):
                break
            _check_value(one)


def _check_figures(answer: ReadTelemetryResponse) -> None:
    for series in answer.series:
        each = [
            one for figure in series.figures for one in (figure.least, figure.most, figure.mean)
        ]
        if any(len(one) != len(series.at) for one in each):
            raise _Unsound("figures that are not as many as their moments")
        if list(series.at) != sorted(series.at):
            raise _Unsound("figures that go back")
    if answer.until.ToNanoseconds() < answer.since.ToNanoseconds():
        raise _Unsound("a span that ends before it begins")


def _finite(number: float) -> float:
    if not abs(number) < 1e30:
        raise _Unsound("a number that is none")
    return number


def _count(number: int) -> int:
    if number < 0:
        raise _Unsound("less than nothing")
    return number


def _files(files: list[tuple[str, int]]) -> list[tuple[str, int]]:
    if min((size for _, size in files), default=0) < 0:
        raise _Unsound("a file of less than nothing")
    return files


def _topic(name: str) -> Topic:
    try:
        return Topic(name)
    except ValueError:
        raise _Unsound("a topic that there is not") from None


def _link(kept: tuple[bool, int, float, str]) -> Link:
    is_live, failures, retry_in_s, reason = kept
    return Link(is_live=is_live, failures=failures, retry_in_s=_finite(retry_in_s), reason=reason)


def _query(kept: tuple[Axis, float | None, float | None, int]) -> ChartQuery:
    axis, low, high, width = kept
    return ChartQuery(axis=axis, low=low, high=high, width=width)


def _kept_lines(groups: Mapping[str, Sequence[Series]]) -> dict[str, list[_Line]]:
    return {name: [_line(one) for one in group] for name, group in groups.items()}


def _line(one: Series) -> _Line:
    counts = None if one.counts is None else list(one.counts)
    means = None if one.means is None else list(one.means)
    return _Line(one.label, list(one.x), list(one.y), counts, means)


def _lines(groups: dict[str, list[_Line]]) -> dict[str, list[Series]]:
    return {visible(name): [_series(one) for one in lines] for name, lines in groups.items()}


def _series(line: _Line) -> Series:
    others = [each for each in (line.y, line.counts, line.means) if each is not None]
    if any(len(each) != len(line.x) for each in others):
        raise _Unsound("a series of columns that are not as long as one another")
    if not all(math.isfinite(x) for x in line.x) or sorted(line.x) != line.x:
        raise _Unsound("a series that goes back, or nowhere")
    if line.counts is not None and min(line.counts, default=0) < 0:
        raise _Unsound("a series of less than no points")
    return Series(
        label=visible(line.label), x=line.x, y=line.y, counts=line.counts, means=line.means
    )


def _owners(owners: dict[str, list[str]]) -> dict[str, list[str]]:
    return {visible(name): whose for name, whose in owners.items()}


_TEXT, _FLAG, _BYTES = _plain(str), _plain(bool), _plain(bytes)
_TEXTS = _Field(list, _plain(list[str]).read)
_SHOWN = _Field(list, _reading(list[str], lambda lines: [visible(one) for one in lines]))
_UNENDED = _Field(str, _reading(str, lambda text: "\n".join(map(visible, text.split("\n")))))
_COUNT = _Field(int, _reading(int, _count))
_NUMBER = _Field(float, _reading(float, _finite))
_TOPIC = _Field(str, _reading(str, _topic))
_LINK = _Field(
    lambda link: (link.is_live, link.failures, link.retry_in_s, link.reason),
    _reading(tuple[bool, int, float, str], _link),
)
_BOARD = _Field(
    lambda one: WatchBoardResponse(board=one.board, entries=one.entries).SerializeToString(),
    _reading(bytes, lambda data: _watched_board(_parsed(WatchBoardResponse, data))),
)
_QUERY = _Field(
    lambda query: (query.axis, query.low, query.high, query.width),
    _reading(tuple[Axis, float | None, float | None, int], _query),
)

_FIELDS: Final[Mapping[type, tuple[_Field, ...]]] = {
    SessionsReceived: (_messages(Session), _TEXTS, _FLAG),
    EndedReceived: (_messages(Session), _FLAG),
    ClusterReceived: (_message(GetClusterResponse), _NUMBER),
    QueueReceived: (_message(ListQueueResponse),),
    NodesReceived: (_messages(Node),),
    DatasetsReceived: (_messages(Dataset),),
    TreeReceived: (_TEXT, _Field(list, _reading(list[tuple[str, int]], _files))),
    ProjectsReceived: (_messages(Project),),
    ProjectReceived: (_message(GetProjectResponse),),
    BoardsReceived: (_messages(Board),),
    BoardReceived: (_TEXT, _BOARD, _messages(BoardEntry)),
    CompetitionsReceived: (_messages(Competition),),
    StandingsReceived: (_TEXT, _message(WatchStandingsResponse), _messages(Announcement)),
    SeriesReceived: (
        _plain(tuple[str, ...]),
        _QUERY,
        _Field(_kept_lines, _reading(dict[str, list[_Line]], _lines)),
        _Field(dict, _reading(dict[str, list[str]], _owners)),
        _COUNT,
    ),
    LogReceived: (_TEXT, _SHOWN, _FLAG, _COUNT, _UNENDED, _COUNT),
    ExplanationReceived: (_TEXT, _message(ExplainSessionResponse)),
    CheckpointsReceived: (_TEXT, _messages(Checkpoint)),
    ArtifactsReceived: (_TEXT, _messages(Artifact)),
    TelemetryReceived: (_TEXT, _TEXT, _message(ReadTelemetryResponse)),
    MediaReceived: (_TEXT, _messages(Media), _COUNT),
    ContentReceived: (_TEXT, _TEXT, _BYTES),
    Linked: (_TOPIC, _LINK),
    Refused: (_TOPIC, _TEXT),
}
"""Recorded events, each with its fields in order.

Code is not recorded: a replay shows only what a program did. Nor is the rest of long commands, nor configurations that
programs reported: it shows lists. Nor is
data from inside a program: its processes and variables may contain secrets.
"""
_CALLER: Final = "caller"
"""Kind of the user's entry."""
_CALLER_WRITTEN: Final = msgspec.msgpack.encode(_CALLER)
_WORDS: Final = {
    kind: TOPICS[kind].value if kind in TOPICS else kind.__name__.lower() for kind in _FIELDS
}
_KINDS: Final = {msgspec.msgpack.encode(word): kind for kind, word in _WORDS.items()}
"""By the encoded name."""
_NAMES: Final = {kind: [one.name for one in dataclasses.fields(kind)] for kind in _FIELDS}


def _kept(event: Event) -> list[Any] | None:
    """Encode it; None if it is not recorded."""
    kind = type(event)
    if kind not in _FIELDS:
        return None
    if isinstance(event, ContentReceived) and len(event.data) > MOST_CONTENT_BYTES:
        return None
    kept = [_WORDS[kind]]
    for field, name in zip(_FIELDS[kind], _NAMES[kind], strict=True):
        kept.append(field.kept(getattr(event, name)))
    return kept


def _received(body: list[msgspec.Raw]) -> Event:
    """Decode an event; raises if it is invalid."""
    kind = _KINDS.get(bytes(body[0])) if body else None
    if kind is None:
        raise _Unsound("of a kind that there is not")
    fields = _FIELDS[kind]
    if len(body) != 1 + len(fields):
        raise _Unsound("with more fields than its kind has, or fewer")
    event: Event = kind(*(one.read(raw) for one, raw in zip(fields, body[1:], strict=True)))
    if isinstance(event, SeriesReceived):
        for name, lines in event.groups.items():
            whose = event.owners.get(name, ())
            if len(whose) != len(lines) or not {*whose} <= {*event.session_ids}:
                raise _Unsound("a series of nobody")
    return event


class Recorder:
    """Writes events to a new file, readable by its owner alone.

    Args:
        path: the file; it must not exist.
        platform: its name for users.
        at: the start, Unix seconds.
        most_bytes: limit of the data, before compression.

    Raises:
        RecordingError: the file cannot be created.
    """

    def __init__(
        self, path: Path, *, platform: str, at: float, most_bytes: int = MOST_BYTES
    ) -> None:
        self.ended = ""
        """Why recording has ended; "" while it is on."""
        self._most_bytes = most_bytes
        self._taken = 0
        self._at = at
        self._last_written: dict[type, list[Any]] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise RecordingError(
                f"{visible(str(path))} is there already: name a new file"
            ) from None
        except (OSError, ValueError) as error:
            raise RecordingError(_unable("make", path, error)) from None
        self._file = os.fdopen(made, "wb", buffering=0)
        try:
            self._write(MAGIC)
            self._write_frame(Header(VERSION, platform, at))
        except OSError as error:
            self._file.close()
            raise RecordingError(_unable("write", path, error)) from None

    def take(self, event: Event, at: float) -> None:
        """Record an event received at a time; if that fails, `ended` says why."""
        body = _kept(event)
        if body is None:
            return
        if isinstance(event, (CheckpointsReceived, ArtifactsReceived, MediaReceived)):
            # Polled lists are written only if they have changed.
            if self._last_written.get(type(event)) == body:
                return
            self._last_written[type(event)] = body
        self._record(body, at)

    def caller(self, user: str, at: float) -> None:
        """Record the user."""
        self._record([_CALLER, user], at)

    def _record(self, body: list[Any], at: float) -> None:
        if self.ended:
            return
        # The machine's clock may be set back; recorded times never decrease.
        self._at = max(self._at, at)
        try:
            self._write_frame([self._at, body])
        except OSError as error:
            self._end(f"the recording ended: {error.strerror or error}")

    def _write_frame(self, body: msgspec.Struct | list[Any]) -> None:
        data = self._encoder.encode(body)
        self._taken += _HEAD.size + len(data)
        if self._taken > self._most_bytes or len(data) > MOST_FRAME_BYTES:
            self._end(f"the recording ended: it holds {size_text(self._most_bytes)} at most")
            return
        self._write(_HEAD.pack(len(data), zlib.crc32(data)) + data)

    def _write(self, data: bytes) -> None:
        packed = self._zstd.compress(data) + self._zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        view = memoryview(packed)
        while view:
            view = view[self._file.write(view) :]

    def _end(self, why: str) -> None:
        self.close()
        self.ended = why

    def close(self) -> None:
        """End the file; later events are not recorded."""
        if self.ended:
            return
        self.ended = "the recording is closed"
        try:
            self._file.write(self._zstd.flush())
        except OSError:
            pass  # all events are in it: only the end of the stream is missing
        finally:
            self._file.close()


class _Known(msgspec.Struct):
    """An entry as it is kept: its body is decoded again when it is shown."""

    at: float
    topic: Topic
    is_whole: bool
    is_word: bool
    data: bytes
    names: frozenset[str] = frozenset()
    """Sessions of an entry with nothing else: it is obsolete once each of them has a later one."""


class Recording:
    """A recording as a story: everything in it is checked.

    Its end may be missing, if its writer was killed.

    Raises:
        RecordingError: it cannot be read, is no recording, or is damaged.
    """

    is_made_up = False

    def __init__(self, path: Path) -> None:
        self.user = ""
        self._decoder = msgspec.msgpack.Decoder(_Entry)
        self._general: list[_Known] = []
        self._closely: dict[tuple[Topic, str, str], list[_Known]] = {}
        try:
            with path.open("rb") as file:
                self._read(file)
        except (OSError, ValueError) as error:
            raise RecordingError(_unable("read", path, error)) from None
        except _Unsound as error:
            raise RecordingError(f"{visible(str(path))} {error}") from None
        self._moments = [one.at for one in self._general]

    def _read(self, file: BinaryIO) -> None:
        frames = self._frames(file)
        first = next(frames, None)
        if first is None:
            raise _Unsound("is cut off before its beginning: nothing can be shown")
        try:
            header = msgspec.msgpack.decode(first, type=Header)
        except (msgspec.MsgspecError, RecursionError):
            raise _Unsound("is damaged at its beginning") from None
        if header.version != VERSION:
            raise _Unsound(f"is of version {header.version}, and this program reads {VERSION}")
        self.platform, self.begins = header.platform, _moment(header.at)
        self.opens = self.ends = self.begins
        for number, data in enumerate(frames, 1):
            try:
                self._add(data)
            except (msgspec.MsgspecError, DecodeError, RecursionError, _Unsound) as error:
                raise _Unsound(f"is damaged in frame {number}: {_brief(error)}") from None

    def _add(self, data: bytes) -> None:
        entry = self._decoder.decode(data)
        at = _moment(entry.at)
        if at < self.ends:
            raise _Unsound("it goes back in time")
        self.ends = at
        if len(entry.body) == 2 and bytes(entry.body[0]) == _CALLER_WRITTEN:
            self.user = _TEXT.read(entry.body[1])
            return
        event = _received(entry.body)
        if isinstance(event, (Linked, Refused)):
            if event.topic not in CLOSELY:
                known = _Known(at, event.topic, is_whole=False, is_word=True, data=data)
                self._general.append(known)
            return
        topic = TOPICS[type(event)]
        known = _Known(at, topic, is_whole=_is_whole(event), is_word=False, data=data)
        if isinstance(event, SessionsReceived) and not event.reset and not event.removed:
            known.names = frozenset(one.id for one in event.changed)
        if topic not in CLOSELY:
            self._general.append(known)
        for name in _whose(event) if topic in CLOSELY else ():
            key = topic, name, getattr(event, "what", "")
            self._closely.setdefault(key, []).append(known)

    def _frames(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the bodies of all whole frames."""
        pieces = _Pieces(file)
        begin = pieces.take(len(MAGIC))
        if not MAGIC.startswith(begin):
            raise _Unsound(_FOREIGN)
        taken = 0
        while head := pieces.take(_HEAD.size):
            if len(head) < _HEAD.size:
                return
            size, check = _HEAD.unpack(head)
            taken += _HEAD.size + size
            if size > MOST_FRAME_BYTES or taken > MOST_BYTES:
                raise _Unsound(f"holds more than {size_text(MOST_BYTES)}: too much to show")
            data = pieces.take(size)
            if len(data) < size:
                return
            if zlib.crc32(data) != check:
                raise _Unsound("is damaged: a checksum does not fit")
            yield data

    def received(self, after: float | None, at: float) -> Iterator[tuple[float, Event]]:
        """Yield general events from `after` to `at`; None: the state at `at`."""
        last = bisect_right(self._moments, at)
        if after is not None:
            for one in self._general[bisect_right(self._moments, after) : last]:
                yield self._event(one)
            return
        # Backwards: of each topic the entries since its last whole one, of sessions the last entry of each, and of
        # connections the entries since anything was received.
        is_yielded: set[Topic] = set()
        is_received: set[Topic] = set()
        named: set[str] = set()
        found = []
        for one in reversed(self._general[:last]):
            if one.topic in is_yielded or (one.is_word and one.topic in is_received):
                continue
            if one.names and one.names <= named:
                continue
            named |= one.names
            found.append(one)
            if not one.is_word:
                is_received.add(one.topic)
            if one.is_whole:
                is_yielded.add(one.topic)
        for one in reversed(found):
            yield self._event(one)

    def received_of(
        self,
        topic: Topic,
        names: tuple[str, ...],
        query: ChartQuery,
        after: float | None,
        at: float,
        *,
        what: str = "",
    ) -> Iterator[tuple[float, Event]]:
        """Yield events of these; if there are none, Refused that says they were not recorded."""
        events = []
        if topic is Topic.SERIES:
            events = self._series(names, query, after, at)
        else:
            found = self._between(topic, names[0], after, at, what)
            # Of a log, events since its last start; of all else the last one.
            begins = [number for number, one in enumerate(found) if one.is_whole]
            events = [self._event(one) for one in found[begins[-1] if begins else 0 :]]
        if after is None and not events:
            events = [(at, Refused(topic, NOT_RECORDED))]
        yield from events

    def _between(
        self, topic: Topic, session_id: str, after: float | None, at: float, what: str = ""
    ) -> Sequence[_Known]:
        known = self._closely.get((topic, session_id, what), ())
        first = 0 if after is None else bisect_right(known, after, key=_at)
        return known[first : bisect_right(known, at, key=_at)]

    def _series(
        self, session_ids: tuple[str, ...], query: ChartQuery, after: float | None, at: float
    ) -> list[tuple[float, Event]]:
        """Return each session's last received series, whatever sessions it was requested with."""
        if not any(self._between(Topic.SERIES, one, after, at) for one in session_ids):
            return []
        found: list[tuple[str, Mapping[str, Sequence[Series]]]] = []
        moments = []
        for session_id in session_ids:
            for one in reversed(self._between(Topic.SERIES, session_id, None, at)):
                when, event = self._event(one)
                if isinstance(event, SeriesReceived) and event.query.axis is query.axis:
                    moments.append(when)
                    found.append((session_id, _own(event, session_id, query)))
                    break
        if not moments:
            return []
        lines = grouped(found)
        return [(max(moments), SeriesReceived(session_ids, query, lines.groups, lines.owners))]

    def _event(self, one: _Known) -> tuple[float, Event]:
        return one.at, _received(self._decoder.decode(one.data).body)


def _is_whole(event: Event) -> bool:
    """Whether it has all of its topic, not only changes."""
    match event:
        case SessionsReceived(_, _, reset):
            return reset
        case LogReceived(_, _, is_anew):
            return is_anew
    return True


def _whose(event: Event) -> Iterable[str]:
    """Return its subjects: ids of sessions, digest of a dataset, name of a project, or key of a board or of standings."""
    match event:
        case SeriesReceived(session_ids):
            return set(session_ids)
        case TreeReceived(digest):
            return [digest]
        case ProjectReceived(answer):
            return [answer.project.name]
        case BoardReceived(key) | StandingsReceived(key):
            return [key]
    return [getattr(event, "session_id", "")]


def _at(one: _Known) -> float:
    return one.at


def _own(
    event: SeriesReceived, session_id: str, query: ChartQuery
) -> Mapping[str, Sequence[Series]]:
    """Return the lines of one session, limited to the span of the query."""
    own: dict[str, list[Series]] = {}
    for name, lines in event.groups.items():
        for line, owner in zip(lines, event.owners[name], strict=True):
            if owner == session_id:
                own.setdefault(name, []).append(within(line, *query.span))
    return own


class _Pieces:
    """Reads a compressed file piece by piece."""

    def __init__(self, file: BinaryIO) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        self._stream = decompressor.stream_reader(file)
        self._is_known = False
        self._held = bytearray()

    def take(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end of the file."""
        while len(self._held) < size:
            try:
                # A read below the block size would leave the last bytes in the decompressor if the end is missing.
                piece = self._stream.read(_CHUNK)
            except zstandard.ZstdError:
                raise _Unsound("is damaged" if self._is_known else _FOREIGN) from None
            if not piece:
                break
            self._held += piece
        self._is_known = True
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken


def _moment(at: float) -> float:
    if not 0 <= at < _LATEST:
        raise _Unsound("a moment that no calendar has")
    return at


def _brief(error: Exception) -> str:
    words = visible(" ".join(str(error).split()))
    return words[:120] or type(error).__name__


def _unable(what: str, path: Path, error: OSError | ValueError) -> str:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot {what} {visible(str(path))}: {why}"
