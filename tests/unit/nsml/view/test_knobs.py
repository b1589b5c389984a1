"""Knobs in rows and lines: what the program says of them, and who set them."""

from __future__ import annotations

from nsml.v1 import sessions_pb2 as pb
from nsml.view.knobs import COLUMNS, history_lines, knob_line, rows

NOW = 1_700_000_000.0
LR = {"value": 0.0029, "default": 0.01, "min": 1e-06, "max": None, "choices": None, "step": 5000}


def session(*changes: pb.ProgramChange) -> pb.Session:
    for number, one in enumerate(changes, 1):
        one.number, one.asked_by = number, one.asked_by or "kim"
        one.kind = pb.PROGRAM_CHANGE_KIND_SET
        one.asked_at.seconds = int(NOW) - 60 * number
    given = [pb.KnobValue(name="batch", value="64")]
    return pb.Session(spec=pb.SessionSpec(knobs=given), changes=changes)


def made(**fields: object) -> pb.ProgramChange:
    return pb.ProgramChange(
        **{"phase": pb.PROGRAM_CHANGE_PHASE_APPLIED, "counter": "step", "at": 5000, **fields}
    )


def cells(session: pb.Session, found: dict[str, dict[str, object]]) -> list[list[str]]:
    return [[column.cell(row, NOW) for column in COLUMNS] for row in rows(session, found)]


def test_a_knob_has_the_value_in_force_and_who_set_it_last() -> None:
    withdrawn = made(values={"lr": "7"}, phase=pb.PROGRAM_CHANGE_PHASE_WITHDRAWN)
    chosen = made(values={"lr": "0.003", "opt": '"adam"'}, asked_by="lee", at=9000)
    one = session(made(values={"lr": "0.1"}), chosen, withdrawn)
    found = {"lr": LR, "opt": {"value": "sgd", "choices": ["sgd", "adam"], "default": "sgd"}}
    assert cells(one, found) == [
        ["lr", "0.0029", "min 1e-06", "0.01", "step 9,000", "lee", "2 minutes ago"],
        ["opt", "sgd", "sgd/adam", "sgd", "step 9,000", "lee", "2 minutes ago"],
        ["batch", "64", "", "", "at the start", "", ""],
    ]
    assert knob_line(rows(one, found)[0]) == "lr = 0.0029  (min 1e-06, default 0.01)"


def test_where_the_program_says_nothing_what_was_set_last_is_shown() -> None:
    divided = made(values={"lr": "0.2", "on": "true"}, phase=pb.PROGRAM_CHANGE_PHASE_DIVIDED)
    divided.members.add(rank=0, state=pb.MEMBER_STATE_DONE, position=5000)
    divided.members.add(rank=1, state=pb.MEMBER_STATE_MISSED, reason="too late\x1b")
    one = session(made(values={"lr": "0.1"}, asked_by="lee"), divided)
    assert [row[:5] for row in cells(one, {})] == [
        ["batch", "64", "", "", "at the start"],
        ["lr", "0.2", "", "", "DIVIDED step 5,000"],
        ["on", "true", "", "", "DIVIDED step 5,000"],
    ]
    assert history_lines(one.changes, NOW) == [
        "#2  lr=0.2 on=true  DIVIDED at step 5,000  by kim, 2 minutes ago",
        "    rank 0: applied at step 5,000",
        "    rank 1: missed it: too late␛",
        "#1  lr=0.1  applied at step 5,000  by lee, a minute ago",
    ]


def test_whatever_a_program_says_of_its_knobs_is_shown_safely() -> None:
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    found = {"a\x1b": {"value": "\x1b]0;x", "min": {"x": "\x07"}, "choices": 5, "default": deep}}
    text = "\n".join(cell for row in cells(session(), found) for cell in row)  # type: ignore[arg-type]
    assert "a␛" in text
    assert not {"\x1b", "\x07"} & set(text)
