"""Decides which checkpoints to remove; no I/O."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.program_changes import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from controlplane.domain.values import Session
    from controlplane.history.sql.checkpoint_marks import Marks
    from controlplane.history.values import Checkpoint
    from nsml.spec.checkpoint_retention import Best, CheckpointRetention

LOADING_S: Final = 3_600.0
"""How long after requesting a checkpoint of its own session a program may still load it."""


class Candidate(NamedTuple):
    """A checkpoint saved by the session itself, and present in the object store.

    `saved`: attempt and time; ordered by attempt first, since clocks of nodes may differ. `values`:
    metrics of the last report before it.
    """

    name: str
    rank: int
    saved: tuple[int, float]
    values: Mapping[str, float]


def removable(
    rules: CheckpointRetention, there: Iterable[Candidate], protected: Collection[str] = ()
) -> list[str]:
    """Return the names of the checkpoints to remove, oldest first.

    Each replica of a gang may save checkpoints, so the rules apply per rank. If none of a rank has
    a rule's metric, the best is unknown: then all are kept.
    """
    by_rank: dict[int, list[Candidate]] = defaultdict(list)
    for one in there:
        by_rank[one.rank].append(one)
    gone = [one for those in by_rank.values() for one in _removable(rules, those)]
    return [one.name for one in sorted(gone, key=_age) if one.name not in protected]


def _removable(rules: CheckpointRetention, there: Sequence[Candidate]) -> list[Candidate]:
    newest_first = sorted(there, key=_age, reverse=True)
    kept = {one.name for one in newest_first[: rules.last]}
    for rule in rules.best:
        if not any(rule.metric in one.values for one in there):
            return []
        kept |= {one.name for one in _best(rule, newest_first)}
    return [one for one in there if one.name not in kept]


def _best(rule: Best, newest_first: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield the best, newer ones first if equal; if too few have the metric, the newest others follow."""
    sign = -1 if rule.is_max else 1
    ranked = [one for one in newest_first if rule.metric in one.values]
    others = [one for one in newest_first if rule.metric not in one.values]
    yield from [*sorted(ranked, key=lambda one: sign * one.values[rule.metric]), *others][
        : rule.number
    ]


def candidates(rules: CheckpointRetention, found: Iterable[Checkpoint]) -> Iterator[Candidate]:
    """Yield the durable checkpoints that the rules apply to: those with a folder.

    A session's initial checkpoint has none, nor has one without its record yet: its values are
    unknown.
    """
    metrics = {rule.metric for rule in rules.best}
    for one in found:
        if one.folder:
            yield Candidate(one.name, one.rank, one.content_of, _values(one, metrics))


def protected(session: Session, marks: Marks, now: float) -> set[str]:
    """Return the names of checkpoints exempt from the rules.

    Tagged ones; those that other sessions loaded or started from; of a live session, the one that
    its attempt resumed from, and those that its programs will load, or may be loading.
    """
    names = set(marks.tags.values())
    is_live = not session.state.is_ended and session.state is not SessionState.FINALIZING
    for use in marks.uses:
        if use.used_by != session.id or (is_live and now - use.used_at < LOADING_S):
            names.add(use.name)
    if is_live:
        names |= {
            one.checkpoint
            for one in session.changes
            if one.kind is ChangeKind.LOAD and not one.ended_at
        }
        if session.resume is not None:
            names.add(session.resume.checkpoint)
    return names


def _age(one: Candidate) -> tuple[tuple[int, float], str]:
    return one.saved, one.name


def _values(checkpoint: Checkpoint, metrics: Collection[str]) -> dict[str, float]:
    if not metrics:
        return {}
    summary = json.loads(checkpoint.summary)
    found = {name: _number(summary.get(name)) for name in metrics}
    return {name: number for name, number in found.items() if number is not None}


def _number(value: object) -> float | None:
    """Return the value if it is a finite number: programs report anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
