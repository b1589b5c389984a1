"""Which metrics are looked at first, by their names. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_Lines = TypeVar("_Lines")

_LOSSES: Final = frozenset({"loss", "nll", "elbo", "perplexity", "ppl"})
_SCORES: Final = frozenset(
    {
        *("acc", "accuracy", "err", "error", "score", "top", "precision", "recall", "hits"),
        *("f1", "auc", "auroc", "auprc", "map", "iou", "dice", "mse", "rmse", "mae", "mape"),
        *("bleu", "rouge", "meteor", "wer", "cer", "fid", "psnr", "ssim", "mrr", "ndcg"),
        *("reward", "rew", "return"),
    }
)
_ENDINGS: Final = ("loss", "acc", "accuracy", "error", "score", "reward", "auc", "iou", "bleu")
"""How names of several words in one end: `valloss`, `miou`."""
_SETTINGS: Final = frozenset({"lr", "momentum", "beta", "coef", "scale", "seed"})
"""What makes a metric a setting wherever it stands in the name: `lr/group0`, `loss_scale`."""
_COUNTED: Final = frozenset(
    {
        *("epoch", "epochs", "step", "steps", "iter", "iters", "iteration", "iterations", "batch"),
        *("learning", "rate", "weight", "decay", "global", "current", "num", "n", "count", "total"),
        *("size", "walltime", "timestamp", "train", "val", "test"),
    }
)
"""What names of counters and settings consist of."""
_VALIDATION: Final = ("val", "valid", "validation", "eval", "evaluation", "dev", "heldout")
_TRAINING: Final = ("train", "training")
_TEST: Final = ("test", "testing")

_Place: TypeAlias = "tuple[int, int, int, str]"


def in_order(names: Iterable[str]) -> list[str]:
    """How well it learns first, then whatever else there is, counters and settings last; alike ones by name.

    Of losses and scores those of the validation come first, then those of the training and what says nothing of it,
    then those of the test; in each losses before the others.
    """
    return sorted(names, key=_place)


def lines_in_order(groups: Mapping[str, _Lines]) -> dict[str, _Lines]:
    """What is drawn of each metric, in that order."""
    return {name: groups[name] for name in in_order(groups)}


@lru_cache(maxsize=4096)
def _place(name: str) -> _Place:
    words = _words(name)
    if _SETTINGS.intersection(words):
        return 2, 0, 0, name
    if _LOSSES.intersection(words) or any(word.endswith("loss") for word in words):
        return 0, _part(words), 0, name
    if _SCORES.intersection(words) or any(word.endswith(_ENDINGS) for word in words):
        return 0, _part(words), 1, name
    return 2 if words and _COUNTED.issuperset(words) else 1, 0, 0, name


def _words(name: str) -> list[str]:
    """The words of `val/rouge1`, `trainLoss` and `mAP`, without their numbers."""
    apart = re.sub(r"(?<=[a-z]{2})(?=[A-Z])", " ", name)
    found = re.findall(r"[^\W_]+", apart.casefold())
    return [word if word in _SCORES else word.rstrip("0123456789") for word in found]


def _part(words: list[str]) -> int:
    """Of the validation, of the training, of the test; also where the word is one with the next: `valloss`."""
    joined = [word for word in words if word.endswith(_ENDINGS)]
    for rank, part in ((0, _VALIDATION), (2, _TEST)):
        if set(part).intersection(words) or any(word.startswith(part) for word in joined):
            return rank
    return 1
