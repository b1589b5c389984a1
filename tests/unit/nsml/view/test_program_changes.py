"""Changes of running programs in words, flags and charts."""

from __future__ import annotations

import pytest

from nsml.spec.knobs import json_of, setting_of, setting_word, value_error, word_of
from nsml.v1 import sessions_pb2 as pb
from nsml.view.plot import CHANGED, chart
from nsml.view.program_changes import line, marks, results, set_words, settings
from nsml.view.series import Axis, Series
from nsml.view.sessions import repeat_words


def change(at: int | None = 5000, **fields: object) -> pb.ProgramChange:
    made = pb.ProgramChange(
        number=1,
        kind=pb.PROGRAM_CHANGE_KIND_SET,
        phase=pb.PROGRAM_CHANGE_PHASE_APPLIED,
        values={"lr": "0.003"},
        asked_by="kim",
        counter="step" if at else "",
        at=at,
    )
    made.MergeFrom(pb.ProgramChange(**fields))
    return made


def test_what_is_said_of_one() -> None:
    knob = pb.KnobChange(name="lr", before="0.01", after="0.003", in_force="0.0029")
    one = change(members=[pb.ProgramChangeMember(state=pb.MEMBER_STATE_DONE, knobs=[knob])])
    assert line(one) == "lr=0.003  applied at step 5,000  by kim"
    assert list(results(one)) == ["lr: 0.01 -> 0.003  (one step later: 0.0029)"]
    divided = change(
        phase=pb.PROGRAM_CHANGE_PHASE_DIVIDED,
        members=[
            pb.ProgramChangeMember(rank=0, state=pb.MEMBER_STATE_DONE, position=5000),
            pb.ProgramChangeMember(rank=1, state=pb.MEMBER_STATE_MISSED, reason="too late"),
        ],
    )
    assert list(results(divided)) == [
        "rank 0: applied at step 5,000",
        "rank 1: missed it: too late",
    ]


def test_the_command_line_repeats_what_was_set() -> None:
    session = pb.Session(
        spec=pb.SessionSpec(knobs=[pb.KnobValue(name="lr", value="0.1")]),
        command=["nsml", "run", "--set", "lr=0.1", "main.py", "--set", "x"],
        changes=[
            change(),
            change(phase=pb.PROGRAM_CHANGE_PHASE_WITHDRAWN, values={"lr": "7"}),
            change(None, values={"name": '"5"'}),
            change(counter="optimizer", values={"lr": "0.5"}),
        ],
    )
    del session.changes[1:2]
    assert set_words(session.changes) == [
        *("--set", "lr=0.003@5000", "--set", "lr=0.003"),
        *("--set", 'name="5"', "--set", "lr=0.5"),
    ]
    words = repeat_words(session)
    assert words[:4] == ["nsml", "run", "--set", "lr=0.1"]
    assert words[-3:] == ["main.py", "--set", "x"]
    assert settings([change()]) == {"lr": "0.003 at step 5,000"}


@pytest.mark.parametrize(
    "value", ["1", "-0.5", "1e-05", "true", "text", "a@5", '"', "nan", "1.0", ""]
)
@pytest.mark.parametrize("at", [None, 0, 5000])
def test_a_setting_is_read_as_it_was_written(value: str, at: int | None) -> None:
    text = json_of(value)
    assert setting_of(setting_word("lr", text, at)) == ("lr", text, at)
    assert value_error(text) == ""
    assert word_of(text) is not None


@pytest.mark.parametrize("word", ["lr", "=1", "l r=1", "x" * 65 + "=1", "lr=" + "x" * 300])
def test_what_is_no_setting_says_why(word: str) -> None:
    with pytest.raises(ValueError, match="knob"):
        setting_of(word)


def test_charts_show_where_something_was_changed() -> None:
    series = Series(label="loss", x=[0.0, 100.0], y=[1.0, 1.0])
    places = marks([change(50), change(1000), change(None)])
    rows = chart("loss", [series], axis=Axis.STEP, columns=50, rows=4, marks=places)
    text = ["".join(piece.text for piece in row) for row in rows]
    columns = {row.index(CHANGED) for row in text if CHANGED in row}
    assert len(columns) == 1
    assert sum(CHANGED in row for row in text) >= 3
