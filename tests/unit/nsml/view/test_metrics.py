"""Which metrics come first."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.view.metrics import in_order, lines_in_order, not_drawn_text, not_worth_drawing
from nsml.view.series import Series


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (
            [
                "epoch",
                "lr",
                "test/loss",
                "train/accuracy",
                "train/loss",
                "val/accuracy",
                "val/loss",
            ],
            [
                "val/loss",
                "val/accuracy",
                "train/loss",
                "train/accuracy",
                "test/loss",
                "epoch",
                "lr",
            ],
        ),
        (["acc", "grad_norm", "loss"], ["loss", "acc", "grad_norm"]),
        (["a", "train_loss", "valloss"], ["valloss", "train_loss", "a"]),
        (
            ["loss_scale", "samples_per_s", "trainLoss"],
            ["trainLoss", "samples_per_s", "loss_scale"],
        ),
        (["global_step", "mAP", "x"], ["mAP", "x", "global_step"]),
        (["epoch_loss", "steps_per_second"], ["epoch_loss", "steps_per_second"]),
        (
            ["learning_rate", "lr/group0", "mean_reward"],
            ["mean_reward", "learning_rate", "lr/group0"],
        ),
        (["bleu", "perplexity", "step"], ["perplexity", "bleu", "step"]),
        (["epoch", "f1", "top5"], ["f1", "top5", "epoch"]),
    ],
)
def test_what_tells_how_well_it_learns_is_first_and_what_counts_last(names, first):
    assert in_order(names) == first


@given(st.lists(st.text(max_size=12), unique=True))
def test_of_any_names_none_is_lost_and_their_order_says_nothing(names):
    found = in_order(names)
    assert sorted(found) == sorted(names)
    assert found == in_order(reversed(names))
    assert lines_in_order(dict.fromkeys(names, 1)) == dict.fromkeys(names, 1)


def lines(*values):
    return [Series(label="s", x=range(len(line)), y=line) for line in values]


def test_counters_and_what_stays_the_same_are_not_worth_drawing():
    groups = {
        "val/loss": lines([1, 1, 1]),
        "loss@std": lines([0, 0]),
        "gradnorm": lines([3, 2]),
        "lr": lines([0.1, 0.1], [0.2, 0.2]),
        "learning_rate": lines([0.1, 0.05]),
        "epoch": lines([0, 1]),
        "epoch_total": lines([2, 2]),
        "global_step": lines([0, 1]),
        "batch_size": lines([32, 32]),
        "params": lines([10, 10]),
        "temperature": lines([1]),
        "odd": lines([math.nan, math.nan]),
    }
    assert not_worth_drawing(groups) == [
        *("lr", "epoch", "epoch_total", "global_step", "batch_size", "params")
    ]


def test_where_nothing_else_was_reported_counters_are_drawn():
    assert not_worth_drawing({"epoch": lines([0, 1]), "lr": lines([1, 1])}) == []
    assert not_worth_drawing({}) == []


def test_what_is_not_drawn_is_named():
    assert not_drawn_text(["epoch", "lr"]) == (
        "(counters and constants left out: epoch, lr; all: -m '*')"
    )
    assert "d, e and 1 more; all" in not_drawn_text(list("abcdef"))
