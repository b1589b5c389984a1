"""What the dashboard received, kept in a file, and read again as a story.

A file is one zstd stream. In it is `MAGIC`, then frame after frame: the length of its body and the CRC-32 of that
(4 bytes each, the least first), and the body, an array in MessagePack. The first is a `Header`; each of the others an
`_Entry`: the moment and what was received, messages of the contract as they come over the wire. The stream is flushed
after each frame: of one that was cut off, all that is whole can be read.

Nothing in a file is believed: sizes are bounded before anything is taken in, checks are made before
anything is kept, and texts are made safe for a terminal as those of a platform are.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
import zstandard
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from nsml.client.series import ChartQuery
from nsml.client.streams import Link
from nsml.v1.checkpoints_pb2 import Checkpoint
from nsml.v1.datasets_pb2 import Dataset
from nsml.v1.media_pb2 import Media
from nsml.v1.nodes_pb2 import GetClusterResponse, Node
from nsml.v1.projects_pb2 import GetProjectResponse, Project
from nsml.v1.sessions_pb2 import ExplainSessionResponse, ListQueueResponse, Session
from nsml.v1.telemetry_pb2 import ReadTelemetryResponse
from nsml.view.metrics import lines_in_order
from nsml.view.series import Axis, Series
from nsml.view.text import visible
from nsml.view.units import size_text
from tui.model import (
    CheckpointsReceived,
    ClusterReceived,
    CodeReceived,
    ContentReceived,
    DatasetsReceived,
    EndedReceived,
    ExplanationReceived,
    FileReceived,
    FilesReceived,
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
    TelemetryReceived,
    TreeReceived,
    WholeReceived,
)
from tui.sources import CLOSELY, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from tui.model import Event

M = TypeVar("M", bound=Message)

MAGIC: Final = b"nsml-recording\n"
VERSION: Final = 3
READ: Final = frozenset({1, 2, VERSION})
"""Versions that can be shown: in the first there was nothing of what tabs show."""
_LAST_REPORTS: Final = "last reports"
"""A topic of its own in versions before 3."""
MOST_BYTES: Final = 256 * 1024 * 1024
"""Of all frames, before compression: what a replay holds in memory."""
MOST_FRAME_BYTES: Final = 64 * 1024 * 1024
MOST_CONTENT_BYTES: Final = 1024 * 1024
"""Of what a session showed: larger ones are not recorded."""
NOT_RECORDED: Final = "not in the recording"
_FOREIGN: Final = "is no recording of nsml-tui --record"
_HEAD: Final = struct.Struct("<II")
_LEVEL: Final = 3
_MOST_WINDOW: Final = 8 * 1024 * 1024
_CHUNK: Final = 1024 * 1024
_LATEST: Final = 2.0**33
"""Moments of a recording are before it: the year 2242."""
_EARLIEST_STAMP, _LATEST_STAMP = -6.0e10, 2.5e11
"""Seconds of what a calendar can name."""


class RecordingError(Exception):
    """A file that is no recording, or cannot be one; says what and what to do."""


class Header(msgspec.Struct, array_like=True):
    """What a recording is of."""

    version: int
    platform: str
    at: float


class _Sessions(msgspec.Struct, tag="sessions", array_like=True):
    changed: list[bytes]
    removed: list[str]
    reset: bool


class _Ended(msgspec.Struct, tag="ended", array_like=True):
    sessions: list[bytes]
    is_cut: bool = False
    """False also in recordings that do not say."""


class _Reports(msgspec.Struct, tag="reports", array_like=True):
    """Of versions before 3."""

    sessions: list[bytes]


class _Cluster(msgspec.Struct, tag="cluster", array_like=True):
    cluster: bytes
    took_s: float


class _Queue(msgspec.Struct, tag="queue", array_like=True):
    queue: bytes


class _Nodes(msgspec.Struct, tag="nodes", array_like=True):
    nodes: list[bytes]


class _Datasets(msgspec.Struct, tag="datasets", array_like=True):
    datasets: list[bytes]


class _Tree(msgspec.Struct, tag="tree", array_like=True):
    digest: str
    files: list[tuple[str, int]]


class _Projects(msgspec.Struct, tag="projects", array_like=True):
    projects: list[bytes]


class _Project(msgspec.Struct, tag="project", array_like=True):
    name: str
    answer: bytes


class _Line(msgspec.Struct, array_like=True):
    label: str
    x: list[float]
    y: list[float]
    counts: list[int] | None
    means: list[float] | None


class _Series(msgspec.Struct, tag="series", array_like=True):
    session_ids: tuple[str, ...]
    axis: Axis
    low: float | None
    high: float | None
    width: int
    groups: dict[str, list[_Line]]
    owners: dict[str, list[str]]
    left_out: int = 0


class _Log(msgspec.Struct, tag="log", array_like=True):
    session_id: str
    lines: list[str]
    is_anew: bool
    missing_bytes: int
    unended: str = ""
    attempt: int = 0


class _Explanation(msgspec.Struct, tag="explanation", array_like=True):
    session_id: str
    answer: bytes


class _Checkpoints(msgspec.Struct, tag="checkpoints", array_like=True):
    session_id: str
    checkpoints: list[bytes]


class _Telemetry(msgspec.Struct, tag="telemetry", array_like=True):
    session_id: str
    what: str
    answer: bytes


class _Media(msgspec.Struct, tag="media", array_like=True):
    session_id: str
    media: list[bytes]
    left_out: int


class _Content(msgspec.Struct, tag="content", array_like=True):
    session_id: str
    what: str
    data: bytes


class _Linked(msgspec.Struct, tag="linked", array_like=True):
    topic: str
    is_live: bool
    failures: int
    retry_in_s: float
    reason: str


class _Refused(msgspec.Struct, tag="refused", array_like=True):
    topic: str
    why: str


class _Caller(msgspec.Struct, tag="caller", array_like=True):
    """Who looks."""

    user: str


_Body: TypeAlias = (
    _Sessions
    | _Ended
    | _Reports
    | _Cluster
    | _Queue
    | _Nodes
    | _Series
    | _Log
    | _Explanation
    | _Checkpoints
    | _Telemetry
    | _Media
    | _Content
    | _Datasets
    | _Tree
    | _Projects
    | _Project
    | _Linked
    | _Refused
    | _Caller
)


class _Entry(msgspec.Struct, array_like=True):
    at: float
    body: _Body


def _packed(event: Event) -> _Body | None:  # noqa: C901, PLR0911, PLR0912 - a kind of event a line
    match event:
        case SessionsReceived(changed, removed, reset):
            return _Sessions(_all_bytes(changed), list(removed), reset)
        case EndedReceived(sessions, is_cut):
            return _Ended(_all_bytes(sessions), is_cut)
        case ClusterReceived(cluster, took_s):
            return _Cluster(cluster.SerializeToString(), took_s)
        case QueueReceived(queue):
            return _Queue(queue.SerializeToString())
        case NodesReceived(nodes):
            return _Nodes(_all_bytes(nodes))
        case SeriesReceived(ids, query, groups, owners, left_out):
            lines = {name: [_line(one) for one in group] for name, group in groups.items()}
            whose = {name: list(owners.get(name, ())) for name in groups}
            return _Series(
                ids, query.axis, query.low, query.high, query.width, lines, whose, left_out
            )
        case LogReceived(session_id, lines, is_anew, missing_bytes, unended, attempt):
            return _Log(session_id, list(lines), is_anew, missing_bytes, unended, attempt)
        case ExplanationReceived(session_id, answer):
            return _Explanation(session_id, answer.SerializeToString())
        case DatasetsReceived(datasets):
            return _Datasets(_all_bytes(datasets))
        case TreeReceived(digest, files):
            return _Tree(digest, list(files))
        case ProjectsReceived(projects):
            return _Projects(_all_bytes(projects))
        case ProjectReceived(project):
            return _Project(project.project.name, project.SerializeToString())
        case Linked(topic, link):
            return _Linked(topic, link.is_live, link.failures, link.retry_in_s, link.reason)
        case Refused(topic, why):
            return _Refused(topic, why)
        case CheckpointsReceived(session_id, checkpoints):
            return _Checkpoints(session_id, _all_bytes(checkpoints))
        case TelemetryReceived(session_id, what, answer):
            return _Telemetry(session_id, what, answer.SerializeToString())
        case MediaReceived(session_id, media, left_out):
            return _Media(session_id, _all_bytes(media), left_out)
        case ContentReceived(session_id, what, data):
            return _Content(session_id, what, data) if len(data) <= MOST_CONTENT_BYTES else None
        case WholeReceived():
            # A recording shows lists, and repeats nothing.
            return None
        case CodeReceived() | FilesReceived() | FileReceived():
            # What a program is, is not what it does: code stays where it is.
            return None


def _all_bytes(messages: Sequence[Message]) -> list[bytes]:
    return [one.SerializeToString() for one in messages]


def _line(one: Series) -> _Line:
    counts = None if one.counts is None else list(one.counts)
    means = None if one.means is None else list(one.means)
    return _Line(one.label, list(one.x), list(one.y), counts, means)


class Recorder:
    """Writes what is received to a new file that its owner alone may read.

    Args:
        path: the file; there must be none.
        platform: how users call what is recorded.
        at: the moment, Unix seconds.
        most_bytes: of what is recorded, before compression.

    Raises:
        RecordingError: it cannot be made.
    """

    def __init__(
        self, path: Path, *, platform: str, at: float, most_bytes: int = MOST_BYTES
    ) -> None:
        self.ended = ""
        """Why nothing more is recorded; "" while it is."""
        self._most_bytes = most_bytes
        self._taken = 0
        self._at = at
        self._last_written: dict[type, _Body] = {}
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
        """Record what was received at a moment; where that cannot be, `ended` says why."""
        body = _packed(event)
        if isinstance(body, (_Checkpoints, _Media)):
            # What is asked for again and again is written where it has changed.
            if self._last_written.get(type(body)) == body:
                return
            self._last_written[type(body)] = body
        if body is not None:
            self._record(body, at)

    def caller(self, user: str, at: float) -> None:
        """Record who looks."""
        self._record(_Caller(user), at)

    def _record(self, body: _Body, at: float) -> None:
        if self.ended:
            return
        # The machine's clock may be set back; what came later stays later.
        self._at = max(self._at, at)
        try:
            self._write_frame(_Entry(self._at, body))
        except OSError as error:
            self._end(f"the recording ended: {error.strerror or error}")

    def _write_frame(self, body: msgspec.Struct) -> None:
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
        """End the file; what is received later is not recorded."""
        if self.ended:
            return
        self.ended = "the recording is closed"
        try:
            self._file.write(self._zstd.flush())
        except OSError:
            pass  # all that was received is in it: its end alone is missing
        finally:
            self._file.close()


class _Known(msgspec.Struct):
    """An entry as it is kept: its body is made out again when it is shown."""

    at: float
    topic: Topic
    is_whole: bool
    is_word: bool
    data: bytes
    names: frozenset[str] = frozenset()
    """The sessions that it tells of, where it tells nothing else: once each of them is told of later, nothing."""


_TOPICS: Final = {
    _Sessions: Topic.SESSIONS,
    _Ended: Topic.ENDED,
    _Reports: Topic.SESSIONS,
    _Cluster: Topic.CLUSTER,
    _Queue: Topic.QUEUE,
    _Nodes: Topic.NODES,
    _Series: Topic.SERIES,
    _Log: Topic.LOG,
    _Explanation: Topic.EXPLANATION,
    _Checkpoints: Topic.CHECKPOINTS,
    _Telemetry: Topic.TELEMETRY,
    _Media: Topic.MEDIA,
    _Content: Topic.CONTENT,
    _Datasets: Topic.DATASETS,
    _Tree: Topic.TREE,
    _Projects: Topic.PROJECTS,
    _Project: Topic.PROJECT,
}


class Recording:
    """A recording as a story: everything in it is sound.

    The end of one may be missing, since whoever wrote it was killed.

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
        if header.version not in READ:
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
        body = entry.body
        at = _moment(entry.at)
        if at < self.ends:
            raise _Unsound("it goes back in time")
        self.ends = at
        if isinstance(body, _Caller):
            self.user = body.user
            return
        if isinstance(body, (_Linked, _Refused)) and body.topic == _LAST_REPORTS:
            return
        event = _unpacked(body)
        if isinstance(body, (_Linked, _Refused)):
            if (topic := _topic(body.topic)) not in CLOSELY:
                self._general.append(_Known(at, topic, False, True, data))  # noqa: FBT003
            return
        topic = _TOPICS[type(body)]
        is_whole = not isinstance(body, (_Sessions, _Reports, _Log))
        is_whole = is_whole or getattr(body, "reset", False) or getattr(body, "is_anew", False)
        names = frozenset[str]()
        if isinstance(event, SessionsReceived) and not event.reset and not event.removed:
            names = frozenset(one.id for one in event.changed)
        known = _Known(at, topic, is_whole, False, data, names)  # noqa: FBT003
        if isinstance(body, _Series):
            for session_id in set(body.session_ids):
                self._closely.setdefault((topic, session_id, ""), []).append(known)
        elif topic in CLOSELY:
            key = topic, _whose(body), getattr(body, "what", "")
            self._closely.setdefault(key, []).append(known)
        else:
            self._general.append(known)

    def _frames(self, file: BinaryIO) -> Iterator[bytes]:
        """The bodies of all frames that are whole."""
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
        """What was received of all in this time; None: what makes up that moment."""
        last = bisect_right(self._moments, at)
        if after is not None:
            for one in self._general[bisect_right(self._moments, after) : last]:
                yield self._event(one)
            return
        # From the end back: of each topic what came since it was last told as a whole, of sessions what was last told
        # of each, and of its connection what came since anything was received.
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
        """What was received of these; of what was not looked at it is said that it is not there."""
        events = []
        if topic is Topic.SERIES:
            events = self._series(names, query, after, at)
        else:
            found = self._between(topic, names[0], after, at, what)
            # Of a log from its last beginning on, of all else the last.
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
        """What each of the sessions reported, as it was last received, whatever it was beside."""
        if not any(self._between(Topic.SERIES, one, after, at) for one in session_ids):
            return []
        groups: dict[str, list[Series]] = {}
        owners: dict[str, list[str]] = {}
        moments = []
        for session_id in session_ids:
            for one in reversed(self._between(Topic.SERIES, session_id, None, at)):
                when, event = self._event(one)
                if isinstance(event, SeriesReceived) and event.query.axis is query.axis:
                    moments.append(when)
                    for name, line in _own(event, session_id):
                        groups.setdefault(name, []).append(_part(line, query))
                        owners.setdefault(name, []).append(session_id)
                    break
        if not moments:
            return []
        received = SeriesReceived(session_ids, query, lines_in_order(groups), owners)
        return [(max(moments), received)]

    def _event(self, one: _Known) -> tuple[float, Event]:
        return one.at, _unpacked(self._decoder.decode(one.data).body)


def _whose(body: _Body) -> str:
    """What it is of: the id of a session, the digest of a dataset, the name of a project."""
    match body:
        case _Tree():
            return body.digest
        case _Project():
            return body.name
    return str(getattr(body, "session_id", ""))


def _at(one: _Known) -> float:
    return one.at


def _own(event: SeriesReceived, session_id: str) -> Iterator[tuple[str, Series]]:
    for name, lines in event.groups.items():
        for line, owner in zip(lines, event.owners[name], strict=True):
            if owner == session_id:
                yield name, line


def _part(one: Series, query: ChartQuery) -> Series:
    """The part of a line that the query asks for."""
    low = -math.inf if query.low is None else query.low
    high = math.inf if query.high is None else query.high
    inside = [n for n, x in enumerate(one.x) if low <= x <= high]
    if len(inside) == len(one.x):
        return one
    return Series(
        label=one.label,
        x=[one.x[n] for n in inside],
        y=[one.y[n] for n in inside],
        counts=None if one.counts is None else [one.counts[n] for n in inside],
        means=None if one.means is None else [one.means[n] for n in inside],
    )


class _Pieces:
    """What is in a compressed file, piece by piece."""

    def __init__(self, file: BinaryIO) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        self._stream = decompressor.stream_reader(file)
        self._is_known = False
        self._held = bytearray()

    def take(self, size: int) -> bytes:
        """The next bytes; fewer, where the file ends before."""
        while len(self._held) < size:
            try:
                # Less than a block would leave the last ones in the decompressor where the end is missing.
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


class _Unsound(Exception):
    """What a file holds and should not, in words that follow its name."""


def _unpacked(body: _Body) -> Event:  # noqa: C901, PLR0911, PLR0912 - a kind of event a line
    """What was received; _Unsound and DecodeError where it is not what a platform says."""
    match body:
        case _Sessions(changed, removed, reset):
            return SessionsReceived([_message(Session, one) for one in changed], removed, reset)
        case _Ended(sessions, is_cut):
            return EndedReceived([_message(Session, one) for one in sessions], is_cut)
        case _Reports(sessions):
            return SessionsReceived([_message(Session, one) for one in sessions], ())
        case _Cluster(cluster, took_s):
            return ClusterReceived(_message(GetClusterResponse, cluster), _finite(took_s))
        case _Queue(queue):
            return QueueReceived(_message(ListQueueResponse, queue))
        case _Nodes(nodes):
            return NodesReceived([_message(Node, one) for one in nodes])
        case _Series():
            query = ChartQuery(axis=body.axis, low=body.low, high=body.high, width=body.width)
            groups, owners = {}, {}
            for name, lines in body.groups.items():
                whose = body.owners.get(name, [])
                if len(whose) != len(lines) or not {*whose} <= {*body.session_ids}:
                    raise _Unsound("a series of nobody")
                groups[visible(name)] = [_series(one) for one in lines]
                owners[visible(name)] = whose
            return SeriesReceived(body.session_ids, query, groups, owners, body.left_out)
        case _Log(session_id, lines, is_anew, missing_bytes, unended, attempt):
            if missing_bytes < 0 or attempt < 0:
                raise _Unsound("less than nothing is missing of a log, or made it")
            shown = [visible(line) for line in lines]
            open_lines = "\n".join(map(visible, unended.split("\n")))
            return LogReceived(session_id, shown, is_anew, missing_bytes, open_lines, attempt)
        case _Explanation(session_id, answer):
            return ExplanationReceived(session_id, _message(ExplainSessionResponse, answer))
        case _Checkpoints(session_id, checkpoints):
            return CheckpointsReceived(
                session_id, [_message(Checkpoint, one) for one in checkpoints]
            )
        case _Telemetry(session_id, what, answer):
            return TelemetryReceived(session_id, what, _telemetry(answer))
        case _Media(session_id, media, left_out):
            if left_out < 0:
                raise _Unsound("less than nothing is left out")
            return MediaReceived(session_id, [_message(Media, one) for one in media], left_out)
        case _Content(session_id, what, data):
            return ContentReceived(session_id, what, data)
        case _Datasets(datasets):
            return DatasetsReceived([_message(Dataset, one) for one in datasets])
        case _Tree(digest, files):
            if min((size for _, size in files), default=0) < 0:
                raise _Unsound("a file of less than nothing")
            return TreeReceived(digest, files)
        case _Projects(projects):
            return ProjectsReceived([_message(Project, one) for one in projects])
        case _Project(name, answer):
            project = _message(GetProjectResponse, answer)
            if project.project.name != name:
                raise _Unsound("a project of another name")
            return ProjectReceived(project)
        case _Linked():
            link = Link(
                is_live=body.is_live,
                failures=body.failures,
                retry_in_s=_finite(body.retry_in_s),
                reason=body.reason,
            )
            return Linked(_topic(body.topic), link)
        case _Refused(topic, why):
            return Refused(_topic(topic), why)
        case _Caller():
            raise _Unsound("who looks is nothing that is received")


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


def _telemetry(data: bytes) -> ReadTelemetryResponse:
    answer = _message(ReadTelemetryResponse, data)
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
    return answer


def _topic(name: str) -> Topic:
    try:
        return Topic(name)
    except ValueError:
        raise _Unsound("a topic that there is not") from None


def _message(kind: type[M], data: bytes) -> M:
    message = kind()
    message.ParseFromString(data)
    _check(message)
    return message


def _check(message: Message) -> None:
    """_Unsound where a number is none, or a moment is on no calendar; what users report may be anything."""
    if isinstance(message, (Value, Struct)):
        return
    if isinstance(message, (Timestamp, Duration)):
        if not (_EARLIEST_STAMP < message.seconds < _LATEST_STAMP):
            raise _Unsound("a moment that no calendar has")
        return
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


def _finite(number: float) -> float:
    if not abs(number) < 1e30:
        raise _Unsound("a number that is none")
    return number


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
