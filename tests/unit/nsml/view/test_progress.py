"""The progress of a training in words: never further than it is, whatever the width."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.text import width
from nsml.v1 import sessions_pb2 as pb
from nsml.view.filter_fields import Filtered
from nsml.view.progress import (
    progress_record,
    progress_text,
    progress_within,
    with_newer_progress,
)
from nsml.view.session_status import lines
from nsml.view.sessions import COLUMNS, columns_for, record
from nsml.view.sorting import value_of
from nsml.view.tables import pick, render
from tests.unit.nsml.view.test_sessions import NOW, ordinary, session

RUNNING = pb.SESSION_STATE_RUNNING


def trains(done, of, unit="epochs", left_s=None, next_s=None, state=RUNNING):
    made = session(7, state)
    made.training.CopyFrom(
        pb.TrainingProgress(
            done=done, of=of, unit=unit, attempt=1, reported_at=Timestamp(seconds=NOW - 5)
        )
    )
    if left_s is not None:
        made.training.ends_at.CopyFrom(Timestamp(seconds=NOW + left_s))
    if next_s is not None:
        made.training.next_report_at.CopyFrom(Timestamp(seconds=NOW + next_s))
    return made


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (session(7, RUNNING), ""),
        (trains(3, 10, left_s=720), "epoch 3/10, 12m left"),
        (trains(3.57, 10), "epoch 3.5/10"),
        (trains(9.99, 10), "epoch 9.9/10"),
        (trains(10, 10, state=pb.SESSION_STATE_SUCCEEDED), "epoch 10/10"),
        (trains(1200, 1_000_000, "steps", left_s=90_000), "step 1200/1000000, 1d1h left"),
        (trains(12_345.6, 0, "steps"), "step 12345"),
        (trains(3, 10, left_s=-1), "epoch 3/10"),
        (trains(3, 10, left_s=720, next_s=-60), "epoch 3/10, 13m left"),
        (trains(3, 10, left_s=720, state=pb.SESSION_STATE_PAUSED), "epoch 3/10"),
        (trains(3, 10, left_s=720, state=pb.SESSION_STATE_FAILED), "epoch 3/10"),
        (trains(2, 4, "s"), "s 2/4"),
    ],
)
def test_it_says_how_far_and_how_long(one, text):
    assert progress_text(one, NOW) == text
    assert (f"  progress: {text}" in lines(one, None, NOW)) is bool(text)


@given(
    st.floats(0, 2.0**53),
    st.floats(0, 2.0**53),
    st.integers(-10, 10**9) | st.none(),
    st.integers(0, 60),
)
def test_it_fits_and_is_never_further_than_it_is(done, of, left_s, cells):
    one = trains(done, of, left_s=left_s)
    found = progress_within(one, NOW, cells)
    assert width(found) <= cells
    full = progress_text(one, NOW)
    assert progress_within(one, NOW, width(full)) == full
    shown, _, total = full.partition(",")[0].removeprefix("epoch ").partition("/")
    assert float(shown) <= done or done >= 1e15
    assert bool(total) == (of > 0)
    percent = progress_within(one, NOW, 4)
    if percent.endswith("%") and done < of:
        assert int(percent[:-1]) <= min(done / of * 100, 100)


def test_narrow_forms_keep_numbers_whole():
    one = trains(300, 1000, "steps", left_s=720)
    forms = [progress_within(one, NOW, cells) for cells in (23, 18, 13, 8, 7, 4, 3, 2)]
    assert forms == [
        "step 300/1000, 12m left", "300/1000, 12m left", "30%, 12m left", "30%, 12m", "30%", "30%", "30%", "",
    ]  # fmt: skip


def test_its_column_is_there_when_a_training_is_under_way():
    ended = trains(10, 10, state=pb.SESSION_STATE_SUCCEEDED)
    ended.ended_at.CopyFrom(Timestamp(seconds=NOW))

    def keys(items, *, wide=False):
        return {one.key for one in pick(COLUMNS, items=items, wide=wide)}

    assert "progress" not in keys(ordinary())
    assert "progress" not in keys([ended])
    assert "progress" in keys([ended], wide=True)
    assert "progress" not in keys(ordinary(), wide=True)
    assert "progress" in keys([*ordinary(), trains(3, 10)])


def test_it_fits_a_terminal_of_80_columns_beside_the_rest():
    run, other = trains(3, 10, left_s=720), trains(45_000, 100_000, "steps", left_s=19_000)
    for one in (run, other):
        one.started_at.CopyFrom(Timestamp(seconds=NOW - 8900))
        one.summary.update({"train/loss": 0.24871})
    items = [*ordinary(), run, other]
    columns = columns_for(items, pick(COLUMNS, items=items))
    text = "\n".join(render(columns, items, now=NOW, room=80).lines)
    assert "12m" in text
    assert "45%, 5h" in text
    assert "0.2487" in text
    assert max(map(width, text.splitlines())) <= 80


def test_programs_get_numbers_and_times():
    assert record(session(7, RUNNING))["progress"] is None
    found = record(trains(3.5, 10, left_s=720))["progress"]
    assert found == progress_record(trains(3.5, 10, left_s=720))
    assert (found["done"], found["of"], found["unit"], found["attempt"]) == (3.5, 10, "epochs", 1)
    assert found["ends_at"].startswith("20")
    assert found["origin"] is found["next_report_at"] is None
    assert progress_record(trains(3, 0))["of"] is None


def test_of_two_messages_the_newer_progress_is_shown():
    older, newer = trains(3, 10), trains(4, 10)
    older.training.reported_at.seconds -= 1
    assert with_newer_progress(older, newer).training == newer.training
    assert with_newer_progress(newer, older) is newer
    assert with_newer_progress(session(7, RUNNING), newer).training == newer.training
    assert with_newer_progress(newer, session(7, RUNNING)) is newer
    assert older.training.done == 3


def test_it_sorts_by_the_done_part():
    values = [
        value_of(Filtered(trains(*pair)), "progress", NOW) for pair in ((3, 10), (9, 6), (1, 0))
    ]
    assert values[0] == pytest.approx(0.3)
    assert values[1:] == [1.0, None]
    assert value_of(Filtered(session(7, RUNNING)), "progress", NOW) is None
