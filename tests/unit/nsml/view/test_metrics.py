"""Which metrics come first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.view.metrics import in_order, lines_in_order


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
