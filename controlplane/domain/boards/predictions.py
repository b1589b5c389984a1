"""What a prediction must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.boards.values import SubmissionCause

if TYPE_CHECKING:
    from collections.abc import Sequence

PREDICTION: Final = "prediction"
"""The name of its one file."""


class PredictedFile(NamedTuple):
    """A file, folder or link of a prediction."""

    path: str
    size: int
    is_regular: bool = True


class PredictionRefused(Exception):
    """It cannot be evaluated; the message is one sentence for the participant."""

    def __init__(self, cause: SubmissionCause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def check_prediction(listing: Sequence[PredictedFile], most_bytes: int) -> PredictedFile:
    """Return the prediction: exactly one regular file named PREDICTION, neither empty nor larger than permitted.

    Raises:
        PredictionRefused: it is something else.
    """
    if not listing:
        raise PredictionRefused(SubmissionCause.NO_PREDICTION, "there is no prediction")
    one = listing[0]
    if len(listing) > 1 or one.path != PREDICTION or not one.is_regular:
        raise PredictionRefused(
            SubmissionCause.MALFORMED, f"the prediction is not one regular file named {PREDICTION}"
        )
    if one.size <= 0:
        raise PredictionRefused(SubmissionCause.NO_PREDICTION, "the prediction is empty")
    if one.size > most_bytes:
        # Not how large: with each size a program could tell something of hidden inputs.
        raise PredictionRefused(
            SubmissionCause.TOO_LARGE,
            f"the prediction is larger than {most_bytes} bytes",
        )
    return one
