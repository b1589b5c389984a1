"""Results of the steps of submissions: what their sessions saved as artifacts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from controlplane.domain.boards.predictions import (
    PredictedFile,
    PredictionRefused,
    check_prediction,
)
from controlplane.domain.boards.scores import ScoreRefused, parse_score
from controlplane.domain.boards.values import SubmissionCause
from controlplane.domain.errors import InvalidRequest, NotFound
from controlplane.domain.identity import User, UserCaller
from controlplane.objects.errors import BlobDamaged, BlobNotFound
from controlplane.submissions.pipeline import Fail, Result
from nsml.spec import submission_exits as exits

if TYPE_CHECKING:
    from controlplane.content.content import Content
    from controlplane.history.sql.history import History
    from controlplane.history.values import Artifact

_READER: Final = UserCaller(user=User(name=""))
"""The platform itself, which takes turns beside its users."""
MOST_RESULT_BYTES: Final = 64 << 10
MOST_ROWS: Final = 1 << 53
_MOST_VERSIONS: Final = 1_000
"""Versions of a result that are looked at: a step saves one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What an evaluation gave."""

    score: float
    private: float | None
    standard_error: float | None
    checked: float | None
    row_count: int


class _ResultFile(msgspec.Struct):
    """result.json, written beside the evaluation of the dataset's owner: no field is trusted."""

    score: str
    private: str | None = None
    standard_error: float | None = None
    check: str | None = None
    rows: int = 0


class Results:
    """Reads results."""

    def __init__(self, *, history: History, content: Content) -> None:
        self._history = history
        self._content = content

    async def state(self, session_id: str, name: str) -> Result:
        """Where the result of an ended session is."""
        found = await self._found(session_id, name)
        return Result(found.state.value) if found is not None else Result.NONE

    async def prediction(self, session_id: str, most_bytes: int) -> str | Fail:
        """Return the digest of a prediction: one file, of at most so many bytes and not empty."""
        found = await self._found(session_id, exits.PREDICTION)
        if found is None or not found.digest:
            return Fail(SubmissionCause.NO_PREDICTION)
        listing = await self._content.listing(_READER, found.digest, is_with_sizes=True)
        files = [PredictedFile(*one) for one in islice((listing.sizes or {}).items(), 2)]
        try:
            check_prediction(files, most_bytes)
        except PredictionRefused as error:
            return Fail(error.cause, str(error))
        return found.digest

    async def size(self, digest: str) -> int:
        """Return the bytes of a kept prediction. Raises NotFound."""
        listing = await self._content.listing(_READER, digest)
        return listing.size

    async def scores(self, session_id: str) -> Scores | Fail:
        """Return the scores of an evaluation."""
        found = await self._found(session_id, exits.EVALUATION)
        data = None
        if found is not None and found.digest:
            try:
                data = await self._content.small_file(
                    found.digest, exits.RESULT, most_bytes=MOST_RESULT_BYTES
                )
            except (NotFound, InvalidRequest, BlobNotFound, BlobDamaged):
                return Fail(SubmissionCause.PLATFORM)
        if data is None:
            return Fail(SubmissionCause.EVALUATION_FAILED, "the evaluation left no result")
        return scores_in(data)

    async def _found(self, session_id: str, name: str) -> Artifact | None:
        """Return the result of the last attempt: one in the object store, else the last one that was saved."""
        found = await self._history.artifacts.list(session_id, name=name, limit=_MOST_VERSIONS)
        return max(
            (one for one in found if one.rank == 0),
            key=lambda one: (one.attempt, bool(one.digest), one.saved_at),
            default=None,
        )


def scores_in(data: bytes) -> Scores | Fail:
    """Parse result.json; each score strictly."""
    try:
        result = msgspec.json.decode(data, type=_ResultFile)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Fail(
            SubmissionCause.EVALUATION_FAILED, "the result of the evaluation cannot be read"
        )
    try:
        score, private, checked = (
            None if text is None else parse_score(text)
            for text in (result.score, result.private, result.check)
        )
    except ScoreRefused:
        return Fail(SubmissionCause.NOT_FINITE)
    error = result.standard_error
    is_usable = error is not None and math.isfinite(error) and error >= 0
    return Scores(
        score=score if score is not None else math.nan,
        private=private,
        standard_error=error if is_usable else None,
        checked=checked,
        row_count=result.rows if 0 <= result.rows < MOST_ROWS else 0,
    )
