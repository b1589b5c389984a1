"""Recordings: what was written is read again, and nothing in a file is believed."""

import dataclasses
import math
import stat
import struct
import zlib
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nsml.client.boards import WatchedBoard
from nsml.client.series import ChartQuery
from nsml.client.streams import Link
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.boards_pb2 import Board, BoardEntry
from nsml.v1.checkpoints_pb2 import Checkpoint
from nsml.v1.competitions_pb2 import (
    Announcement,
    Competition,
    Standing,
    WatchStandingsResponse,
)
from nsml.v1.datasets_pb2 import Dataset
from nsml.v1.media_pb2 import Media
from nsml.v1.nodes_pb2 import GetClusterResponse, Node
from nsml.v1.projects_pb2 import GetProjectResponse, Project
from nsml.v1.sessions_pb2 import ExplainSessionResponse, ListQueueResponse
from nsml.v1.telemetry_pb2 import ReadTelemetryResponse
from nsml.view.filtering import Filter
from nsml.view.series import Axis, Series
from tests.unit.tui.test_model import ENDED, session
from tui import recording
from tui.model import (
    BoardReceived,
    BoardsReceived,
    CheckpointsReceived,
    ClusterReceived,
    CodeReceived,
    CompetitionsReceived,
    ConfigReceived,
    ContentReceived,
    DatasetsReceived,
    DetailReceived,
    EndedReceived,
    Event,
    ExplanationReceived,
    FileReceived,
    FilesReceived,
    KnobsReceived,
    Linked,
    LogReceived,
    MediaReceived,
    Model,
    NodesReceived,
    ProcessesReceived,
    ProjectReceived,
    ProjectsReceived,
    QueueReceived,
    Refused,
    SeriesReceived,
    SessionsReceived,
    StacksReceived,
    StandingsReceived,
    TelemetryReceived,
    TreeReceived,
    WholeReceived,
)
from tui.recording import MAGIC, NOT_RECORDED, VERSION, Recorder, Recording, RecordingError
from tui.sources import State, Topic

AT = 1_767_607_200.0
MEASURED = ReadTelemetryResponse(
    series=[
        {"at": [AT], "figures": [{"name": "power_watts", "least": [1], "most": [3], "mean": [2]}]}
    ]
)
LOSS = Series(label="kim/mnist/1", x=[1.0, 2.0, 3.0], y=[3.0, math.nan, 1.0])


def series(*ids, axis=Axis.STEP):
    groups = {"loss": [LOSS for _ in ids]}
    return SeriesReceived(tuple(ids), ChartQuery(axis=axis, width=80), groups, {"loss": list(ids)})


DATASET = Dataset(name="mnist", owner="kim", digest="d1", version=1, size_bytes=7)
BOARD = WatchedBoard(
    Board(owner="kim", name="acc"), [BoardEntry(rank=1, score=0.5, trend=[0.2, 0.5])]
)
STANDINGS = WatchStandingsResponse(
    competition=Competition(owner="kim", name="cup"),
    phase="one",
    standings=[Standing(rank=1, team="a", score=0.5)],
)
PROJECT = GetProjectResponse(project=Project(name="vision", member_count=2), hidden_sessions=1)
GENERAL = [
    SessionsReceived([session(1), session(2)], [], reset=True),
    EndedReceived([session(3, ENDED)]),
    EndedReceived([session(3, ENDED)], is_cut=True),
    ClusterReceived(GetClusterResponse(leader="cp-1"), 0.01),
    QueueReceived(ListQueueResponse(queued=2)),
    NodesReceived([Node(name="n1"), Node(name="n2")]),
    DatasetsReceived([DATASET]),
    ProjectsReceived([PROJECT.project]),
    BoardsReceived([BOARD.board]),
    CompetitionsReceived([STANDINGS.competition]),
    Linked(Topic.SESSIONS, Link(is_live=False, failures=2, retry_in_s=1.0, reason="gone")),
    Refused(Topic.QUEUE, "not for you"),
]
CLOSELY = [
    series("s1"),
    LogReceived("s1", [], is_anew=True),
    LogReceived("s1", ["epoch 1", "epoch 2"], missing_bytes=7),
    ExplanationReceived("s1", ExplainSessionResponse(session=session(1))),
    TreeReceived("d1", [("train/a", 3), ("b", 4)]),
    ProjectReceived(PROJECT),
    BoardReceived("kim/acc 0 0", BOARD, [BoardEntry(owner="kim", submission_id="a")]),
    StandingsReceived("kim/cup one", STANDINGS, [Announcement(text="go")]),
]


def write(path, events, **more):
    recorder = Recorder(path, platform="garden", at=AT, **more)
    for number, event in enumerate(events):
        recorder.take(event, AT + number)
    recorder.close()
    return recorder


def of(story, topic, *ids, query=None, after=None, at=AT + 100, what=""):
    found = story.received_of(topic, ids, query or ChartQuery(), after, at, what=what)
    return [event for _, event in found]


def test_what_is_recorded_is_read_again(tmp_path):
    recorder = Recorder(tmp_path / "it", platform="garden", at=AT)
    recorder.caller("kim", AT + 1)
    for number, event in enumerate([*GENERAL, *CLOSELY], 2):
        recorder.take(event, AT + number)
    recorder.close()
    story = Recording(tmp_path / "it")
    ends = AT + 1 + len([*GENERAL, *CLOSELY])
    assert (story.platform, story.user, story.begins, story.ends) == ("garden", "kim", AT, ends)
    assert [event for _, event in story.received(AT, AT + 100)] == GENERAL
    (received,) = of(story, Topic.SERIES, "s1", query=ChartQuery(width=200))
    line = received.groups["loss"][0]
    assert (line.label, line.x, received.query.width) == (LOSS.label, LOSS.x, 200)
    assert math.isnan(line.y[1])
    assert of(story, Topic.LOG, "s1") == CLOSELY[1:3]
    assert of(story, Topic.EXPLANATION, "s1") == CLOSELY[3:4]
    assert of(story, Topic.TREE, "d1") == CLOSELY[4:5]
    assert of(story, Topic.PROJECT, "vision") == CLOSELY[5:6]
    assert of(story, Topic.BOARD, "kim/acc 0 0") == CLOSELY[6:7]
    assert of(story, Topic.STANDINGS, "kim/cup one") == CLOSELY[7:]
    assert of(story, Topic.TREE, "d2") == [Refused(Topic.TREE, NOT_RECORDED)]


def test_only_its_owner_may_read_it_and_nothing_is_overwritten(tmp_path):
    path = tmp_path / "it"
    write(path, GENERAL)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(RecordingError, match="is there already"):
        Recorder(path, platform="garden", at=AT)
    with pytest.raises(RecordingError, match="No such file"):
        Recorder(tmp_path / "no" / "it", platform="garden", at=AT)


def test_one_that_is_as_large_as_it_may_be_says_so_and_stays_readable(tmp_path):
    recorder = write(tmp_path / "it", [LogReceived("s1", ["x" * 100])] * 50, most_bytes=2_000)
    assert recorder.ended.startswith("the recording ended: it holds 2.")
    assert 10 < len(of(Recording(tmp_path / "it"), Topic.LOG, "s1")) < 20


def test_a_disk_that_is_full_ends_the_recording_and_nothing_else(tmp_path):
    recorder = Recorder(tmp_path / "it", platform="garden", at=AT)
    recorder._file.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        recorder._file = full
        recorder.take(GENERAL[0], AT)
        assert recorder.ended == "the recording ended: No space left on device"
        recorder.take(GENERAL[0], AT)


def test_code_is_not_recorded(tmp_path):
    write(tmp_path / "it", [CodeReceived(("s1", "s2"), [], 3)])
    story = Recording(tmp_path / "it")
    assert of(story, Topic.CODE, "s1", "s2") == [Refused(Topic.CODE, NOT_RECORDED)]


def test_what_tabs_show_is_recorded_where_it_changes_but_for_code(tmp_path):
    saved = CheckpointsReceived("s1", [Checkpoint(name="best")])
    shown = MediaReceived("s1", [Media(name="cat", kind="image", file="f")], 3)
    measured = TelemetryReceived("s1", "10m", MEASURED)
    content = ContentReceived("s1", "1.0.f", b"\x89PNG")
    large = ContentReceived("s1", "1.0.g", bytes(recording.MOST_CONTENT_BYTES + 1))
    code = [FilesReceived("s1", []), FileReceived("s1", "a.py", ["import nsml"])]
    write(tmp_path / "it", [saved, shown, measured, content, large, *code, saved, shown])
    story = Recording(tmp_path / "it")
    assert story.ends == AT + 3
    assert of(story, Topic.CHECKPOINTS, "s1") == [saved]
    assert of(story, Topic.MEDIA, "s1") == [shown]
    assert of(story, Topic.TELEMETRY, "s1", what="10m") == [measured]
    assert of(story, Topic.TELEMETRY, "s1", what="1h") == [Refused(Topic.TELEMETRY, NOT_RECORDED)]
    assert of(story, Topic.CONTENT, "s1", what="1.0.f") == [content]
    assert of(story, Topic.CONTENT, "s1", what="1.0.g") == [Refused(Topic.CONTENT, NOT_RECORDED)]
    assert of(story, Topic.FILES, "s1") == [Refused(Topic.FILES, NOT_RECORDED)]
    assert of(story, Topic.FILE, "s1", what="a.py") == [Refused(Topic.FILE, NOT_RECORDED)]


def test_of_every_kind_it_is_said_whether_it_is_recorded():
    code = {WholeReceived, CodeReceived, FilesReceived, FileReceived}
    kinds = set(get_args(Event)) | set(get_args(DetailReceived))
    inside = {KnobsReceived, ProcessesReceived, StacksReceived}
    code.add(ConfigReceived)
    assert kinds - {DetailReceived} - code - inside == set(recording._FIELDS)
    for kind, fields in recording._FIELDS.items():
        assert len(dataclasses.fields(kind)) == len(fields)


def test_a_clock_that_is_set_back_makes_no_recording_unreadable(tmp_path):
    recorder = Recorder(tmp_path / "it", platform="garden", at=AT)
    recorder.take(GENERAL[0], AT + 60)
    recorder.take(GENERAL[1], AT)
    recorder.close()
    assert Recording(tmp_path / "it").ends == AT + 60


def test_of_one_that_was_never_closed_all_is_read(tmp_path):
    recorder = Recorder(tmp_path / "it", platform="garden", at=AT)
    for number, event in enumerate(GENERAL):
        recorder.take(event, AT + number)
        story = Recording(tmp_path / "it")
        assert [one for _, one in story.received(0, AT + 100)] == GENERAL[: number + 1]


def test_any_part_of_a_recording_from_its_beginning_can_be_read(tmp_path):
    path = tmp_path / "it"
    write(path, [*GENERAL, *CLOSELY])
    whole = path.read_bytes()
    counts = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        try:
            counts.append(len(list(Recording(path).received(0, AT + 100))))
        except RecordingError as error:
            assert "cut off before its beginning" in str(error)  # noqa: PT017
            assert counts == []
    assert counts == sorted(counts)
    assert counts[-1] == len(GENERAL)


def test_what_makes_up_a_moment_is_what_folding_everything_up_to_it_makes(tmp_path):
    steps = [
        SessionsReceived([session(1), session(2)], [], reset=True),
        EndedReceived([session(9, ENDED)]),
        ClusterReceived(GetClusterResponse(leader="cp-1"), 0.01),
        QueueReceived(ListQueueResponse(queued=2)),
        SessionsReceived([session(3)], ["s1"]),
        SessionsReceived([session(3, memo="again")], []),
        SessionsReceived([session(2, ENDED), session(3, memo="and again")], []),
        SessionsReceived([], ["s2"]),
        SessionsReceived([session(3)], []),
        EndedReceived([session(2, ENDED), session(9, ENDED)]),
        Linked(Topic.SESSIONS, Link(is_live=False, failures=1, retry_in_s=1.0, reason="gone")),
        Linked(Topic.CLUSTER, Link(is_live=False, failures=1, retry_in_s=1.0, reason="gone")),
        Refused(Topic.QUEUE, "no"),
        ClusterReceived(GetClusterResponse(leader="cp-2"), 0.01),
        SessionsReceived([session(4)], [], reset=True),
        QueueReceived(ListQueueResponse(queued=1)),
        SessionsReceived([session(4, ENDED)], []),
        EndedReceived([session(4, ENDED), session(9, ENDED)]),
    ]
    write(tmp_path / "it", steps)
    story = Recording(tmp_path / "it")
    folded = Model()
    for number, step in enumerate(steps):
        at = AT + number
        folded.fold(step, at)
        found = Model()
        for when, event in story.received(None, at):
            found.fold(event, when)
        for model in (folded, found):
            shown = [row.session for row in model.rows(Filter(""), at)]
            model.names = [(one.name, one.memo, one.state) for one in shown]
        assert found.names == folded.names
        assert (found.cluster, found.queue) == (folded.cluster, folded.queue)
        assert found.sources == folded.sources


def test_what_was_not_looked_at_is_said_not_to_be_there(tmp_path):
    write(tmp_path / "it", [series("s1"), series("s2", axis=Axis.WALL)])
    story = Recording(tmp_path / "it")
    assert of(story, Topic.LOG, "s1") == [Refused(Topic.LOG, NOT_RECORDED)]
    assert of(story, Topic.SERIES, "s2") == [Refused(Topic.SERIES, NOT_RECORDED)]
    assert of(story, Topic.SERIES, "s1", at=AT - 1) == [Refused(Topic.SERIES, NOT_RECORDED)]
    assert of(story, Topic.LOG, "s1", after=AT) == []
    model = Model()
    model.show("s1")
    model.fold(Refused(Topic.LOG, NOT_RECORDED), AT)
    assert model.sources[Topic.LOG].state(AT) is State.DENIED


def test_sessions_that_were_looked_at_one_by_one_can_be_compared(tmp_path):
    write(tmp_path / "it", [series("s1"), series("s2"), series("s1", "s3")])
    (received,) = of(
        Recording(tmp_path / "it"), Topic.SERIES, "s2", "s3", query=ChartQuery(low=2.0, high=9.0)
    )
    assert (received.session_ids, received.owners) == (("s2", "s3"), {"loss": ["s2", "s3"]})
    assert [list(line.x) for line in received.groups["loss"]] == [[2.0, 3.0]] * 2


# Files of others


def packed(*bodies, magic=MAGIC, header=(VERSION, "garden", AT)):
    frames = [msgspec.msgpack.encode(one) for one in (header, *bodies)]
    data = magic + b"".join(struct.pack("<II", len(one), zlib.crc32(one)) + one for one in frames)
    return zstandard.compress(data)


FAR = pb.Session(id="s1")
FAR.created_at.seconds = 2**60
BAD = pb.ExplainSessionResponse()
BAD.session.usage.device_seconds = math.inf
UNEVEN, BACK, EMPTY = MEASURED.SerializeToString(), ReadTelemetryResponse(), ReadTelemetryResponse()
UNEVEN += ReadTelemetryResponse(
    series=[{"at": [1.0], "figures": [{"name": "a"}]}]
).SerializeToString()
BACK.series.add(at=[2.0, 1.0])
EMPTY.since.seconds = 9
LINE = ("it", [1.0], [1.0], None, None)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off before its beginning"),
        (b"hello, I am text\n" * 9, "is no recording"),
        (zstandard.compress(b"another file"), "is no recording"),
        (packed(header=(3, "garden", AT)), "is of version 3, and this program reads 4"),
        (packed(header=("x",)), "damaged at its beginning"),
        (packed(header=(VERSION, "garden", math.nan)), "no calendar has"),
        (packed((math.inf, ["cluster", b"", 0.0])), "damaged in frame 1: a moment"),
        (packed((AT - 1, ["cluster", b"", 0.0])), "goes back in time"),
        (packed((AT, ["cluster", b"", math.inf])), "a number that is none"),
        (packed((AT, ["cluster", b"\xff\xff", 0.0])), "damaged in frame 1"),
        (packed((AT, ["nonsense"])), "damaged in frame 1: of a kind that there is not"),
        (packed((AT, [])), "of a kind that there is not"),
        (packed((AT, [["queue"], b""])), "of a kind that there is not"),
        (packed((AT, ["queue"])), "with more fields than its kind has, or fewer"),
        (packed((AT, ["queue", b"", 1])), "with more fields than its kind has, or fewer"),
        (packed((AT, ["queue", "text"])), "Expected `bytes`"),
        (packed((AT, ["caller"])), "damaged in frame 1"),
        (packed((AT, ["dataset's files", "d1", [["a", -1]]])), "less than nothing"),
        (packed((AT, ["refused", "weather", "no"])), "a topic that there is not"),
        (packed((AT, ["sessions", [FAR.SerializeToString()], [], True])), "no calendar has"),
        (packed((AT, ["explanation", "s1", BAD.SerializeToString()])), "number that is none"),
        (packed((AT, ["log", "s1", [], True, -1, "", 1])), "less than nothing"),
        (packed((AT, ["media", "s1", [], -1])), "less than nothing"),
        (packed((AT, ["telemetry", "s1", "", UNEVEN])), "not as many as"),
        (packed((AT, ["telemetry", "s1", "", BACK.SerializeToString()])), "go back"),
        (packed((AT, ["telemetry", "s1", "", EMPTY.SerializeToString()])), "ends before"),
        (
            packed((AT, ["metrics", ["s"], ["step", None, None, 9], {"a": [LINE]}, {}, 0])),
            "a series of nobody",
        ),
        (
            packed(
                (
                    AT,
                    [
                        *("metrics", ["s"], ["step", None, None, 9]),
                        *({"a": [("", [2.0, 1.0], [1.0, 1.0], None, None)]}, {"a": ["s"]}, 0),
                    ],
                )
            ),
            "goes back",
        ),
        (
            zstandard.compress(MAGIC + struct.pack("<II", 2**31, 0)),
            "holds more than",
        ),
        (
            zstandard.compress(MAGIC + struct.pack("<II", 3, 0) + b"abc"),
            "a checksum does not fit",
        ),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_one_line(tmp_path, data, why):
    path = tmp_path / "it\x1b[31m"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=why) as failed:
        Recording(path)
    assert len(str(failed.value).splitlines()) == 1
    assert "\x1b" not in str(failed.value)


def test_a_file_that_is_small_and_holds_much_takes_no_more_than_is_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "MOST_BYTES", 100_000)
    path = tmp_path / "it"
    path.write_bytes(packed(*[(AT, ["log", "s1", [" " * 9_000], False, 0, "", 0])] * 20))
    assert path.stat().st_size < 1_000
    with pytest.raises(RecordingError, match="too much to show"):
        Recording(path)


def test_texts_of_a_file_are_made_safe(tmp_path):
    path = tmp_path / "it"
    line = ("\x1b[2J", [1.0], [1.0], None, None)
    path.write_bytes(
        packed(
            (AT, ["log", "s1", ["\x1b]0;owned\x07"], True, 0, "\x1b[A\nb", 0]),
            (
                AT,
                [
                    "metrics",
                    ["s1"],
                    ["step", None, None, 9],
                    {"\x1b[31m": [line]},
                    {"\x1b[31m": ["s1"]},
                    0,
                ],
            ),
        )
    )
    story = Recording(path)
    (log,), (received,) = of(story, Topic.LOG, "s1"), of(story, Topic.SERIES, "s1")
    assert (log.lines, log.unended) == (["␛]0;owned␇"], "␛[A\nb")
    assert received.groups["␛[31m"][0].label == "␛[2J"


@given(st.binary(max_size=40), st.integers(0, 400), st.integers(0, 255))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path_factory, junk, place, value):
    path = tmp_path_factory.mktemp("any") / "it"
    frames = [MAGIC]
    for body in (
        (VERSION, "garden", AT),
        (AT, ["queue", junk]),
        (AT, ["sessions", [junk], [], True]),
    ):
        data = msgspec.msgpack.encode(body)
        frames.append(struct.pack("<II", len(data), zlib.crc32(data)) + data)
    whole = bytearray(zstandard.compress(b"".join(frames)))
    whole[place % len(whole)] = value
    path.write_bytes(whole)
    try:
        list(Recording(path).received(None, AT + 1))
    except RecordingError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
