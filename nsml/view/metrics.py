"""Display order of metrics, by their names. Pure."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsml.view.series import Series

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
"""Endings of compound names: `valloss`, `miou`."""
_SETTINGS: Final = frozenset({"lr", "momentum", "beta", "coef", "scale", "seed"})
"""Words that make a metric a setting wherever they occur: `lr/group0`, `loss_scale`."""
_COUNTED: Final = frozenset(
    {
        *("epoch", "epochs", "step", "steps", "iter", "iters", "iteration", "iterations", "batch"),
        *("learning", "rate", "weight", "decay", "global", "current", "num", "n", "count", "total"),
        *("size", "walltime", "timestamp", "train", "val", "test"),
    }
)
"""Words of the names of counters and settings."""
_CHANGING: Final = _SETTINGS | {"rate", "decay"}
"""Words of a setting that may follow a schedule, and is no counter."""
_VALIDATION: Final = ("val", "valid", "validation", "eval", "evaluation", "dev", "heldout")
_TRAINING: Final = ("train", "training")
_TEST: Final = ("test", "testing")

_SET_OR_COUNTED: Final = 2
_NAMED: Final = 5
"""Most listed metrics of those not drawn."""
_Place: TypeAlias = "tuple[int, int, int, str]"


def in_order(names: Iterable[str]) -> list[str]:
    """Sort metrics: losses and scores, then others, then counters and settings; equal ones by name.

    Losses and scores of the validation come first, then those of the training or without a part,
    then those of the test; within each, losses first.
    """
    return sorted(names, key=_place)


def lines_in_order(groups: Mapping[str, _Lines]) -> dict[str, _Lines]:
    """Return the lines of each metric, in that order."""
    return {name: groups[name] for name in in_order(groups)}


def origin_words(origin: str) -> str:
    """Say what reported a metric, if it was not `nsml.report`: `from wandb`, `from the log`; else ""."""
    return f"from {'the log' if origin == 'log' else origin}" if origin else ""


def is_set_or_counted(name: str) -> bool:
    """Return whether a metric is a setting or a counter by its name: `lr`, `epoch_total`, `batch_size`."""
    return _place(name)[0] == _SET_OR_COUNTED


def not_worth_drawing(groups: Mapping[str, Sequence[Series]]) -> list[str]:
    """Return the metrics not drawn by default; none if nothing else would be left.

    Counters, and metrics with one value in each line, such as the batch size. Losses and scores are always
    drawn: a constant one is news.
    """
    found = [
        name
        for name, lines in groups.items()
        if _place(name)[0] and (_is_counter(name) or (lines and all(map(_is_constant, lines))))
    ]
    return found if len(found) < len(groups) else []


def not_drawn_text(names: Sequence[str]) -> str:
    """Name the metrics left out by default, and the option to draw them."""
    rest = len(names) - _NAMED
    some = ", ".join(names[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
    return f"(counters and constants left out: {some}; all: -m '*')"


def _is_counter(name: str) -> bool:
    return is_set_or_counted(name) and not _CHANGING.intersection(_words(name))


def _is_constant(line: Series) -> bool:
    if line.points < 2 or not math.isfinite(line.y[0]):
        return False
    return all(value == line.y[0] for value in line.y)


@lru_cache(maxsize=4096)
def _place(name: str) -> _Place:
    words = _words(name)
    if _SETTINGS.intersection(words):
        return _SET_OR_COUNTED, 0, 0, name
    if _LOSSES.intersection(words) or any(word.endswith("loss") for word in words):
        return 0, _part(words), 0, name
    if _SCORES.intersection(words) or any(word.endswith(_ENDINGS) for word in words):
        return 0, _part(words), 1, name
    rank = _SET_OR_COUNTED if words and _COUNTED.issuperset(words) else 1
    return rank, 0, 0, name


def _words(name: str) -> list[str]:
    """Return the words of `val/rouge1`, `trainLoss` and `mAP`, without their numbers."""
    apart = re.sub(r"(?<=[a-z]{2})(?=[A-Z])", " ", name)
    found = re.findall(r"[^\W_]+", apart.casefold())
    return [word if word in _SCORES else word.rstrip("0123456789") for word in found]


def _part(words: list[str]) -> int:
    """Return the rank of validation, training or test; also if joined with the next word: `valloss`."""
    joined = [word for word in words if word.endswith(_ENDINGS)]
    for rank, part in ((0, _VALIDATION), (2, _TEST)):
        if set(part).intersection(words) or any(word.startswith(part) for word in joined):
            return rank
    return 1
