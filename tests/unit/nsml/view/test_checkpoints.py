"""Checkpoints as rows: their summaries are ordered and cut as those of sessions."""

import pytest

from nsml.v1.checkpoints_pb2 import Checkpoint
from nsml.view.checkpoints import COLUMNS, record
from nsml.view.tables import pick, render

REPORTED = {"epoch": 5, "epoch_total": 20, "train/loss": 0.12749, "lr": 0.05, "step": 5}


def saved(*, names=tuple(REPORTED)):
    one = Checkpoint(name="best", step=5, summary_names=names)
    one.summary.update(REPORTED)
    return one


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        (60, "epoch=5/20, train/loss=0.1275, lr=0.05"),
        (38, "epoch=5/20, train/loss=0.1275, lr=0.05"),
        (34, "train/loss=0.1275, lr=0.05 …"),
        (20, "train/loss=0.1275 …"),
    ],
)
def test_a_summary_has_its_values_as_they_were_reported(cells, text):
    summary = [column for column in COLUMNS if column.key == "summary"]
    assert render(summary, [saved()], now=0, room=cells)[0][2] == text


def test_of_a_control_plane_that_names_no_order_it_is_that_of_the_alphabet():
    assert list(record(saved(names=()))["summary"]) == sorted(REPORTED)
    assert list(record(saved())["summary"]) == list(REPORTED)


def test_wide_has_all_digits():
    (wide,) = (column for column in pick(COLUMNS, wide=True) if column.key == "exact_summary")
    shown = wide.cell(saved(), 0)
    assert shown == "epoch=5, epoch_total=20, train/loss=0.12749, lr=0.05"


def test_its_step_is_a_column():
    (step,) = (column for column in COLUMNS if column.key == "step")
    one = saved()
    assert step.cell(one, 0) == "5"
    one.ClearField("step")
    one.summary.update({"step": 31_500})
    assert step.cell(one, 0) == "31,500"
    assert step.cell(Checkpoint(), 0) == "-"
