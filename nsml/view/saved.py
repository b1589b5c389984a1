"""Checkpoints and artifacts of a session in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsml.v1.artifacts_pb2 import Artifact
from nsml.view import artifacts, checkpoints
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from nsml.v1.checkpoints_pb2 import Checkpoint

    Saved: TypeAlias = Checkpoint | Artifact

_OF_ARTIFACTS: Final = {
    "name": "artifact",
    "step": "step",
    "modified": "saved",
    "size": "size",
    "state": "state",
    "files": "files",
    "saved_at": "saved_at",
    "digest": "digest",
}
"""By the key of a checkpoint's column, that of the equivalent column of artifacts."""


def key_of(saved: Saved) -> str:
    """Return a key that is unique within its session: lost artifacts have no version."""
    if isinstance(saved, Artifact):
        at = saved.saved_at.ToNanoseconds() if not saved.version else 0
        return f"artifact {at} {artifacts.label(saved)}"
    return f"checkpoint {saved.name}"


def newest_first(
    saved: Iterable[Checkpoint], others: Iterable[Artifact]
) -> list[Checkpoint | Artifact]:
    """Return both by time; checkpoints alone in their original order, reversed."""
    both: list[Checkpoint | Artifact] = [*reversed(list(saved)), *reversed(list(others))]
    if not others:
        return both
    return sorted(both, key=lambda one: seconds_of(one.saved_at), reverse=True)


def is_lost(saved: Saved) -> bool:
    """Return whether all copies are lost."""
    of = artifacts.is_lost if isinstance(saved, Artifact) else checkpoints.is_lost
    return of(saved)  # type: ignore[arg-type]


def state_text(saved: Saved) -> str:
    """Return the state's word, with the reason of a loss."""
    return (
        artifacts.state_text(saved)
        if isinstance(saved, Artifact)
        else checkpoints.state_text(saved)
    )


def _column(of: Column[Checkpoint]) -> Column[Checkpoint | Artifact]:
    other = next((one for one in artifacts.COLUMNS if one.key == _OF_ARTIFACTS.get(of.key)), None)

    def cell(saved: Saved, now: float) -> str:
        if not isinstance(saved, Artifact):
            return of.cell(saved, now)
        return other.cell(saved, now) if other is not None else ""

    def within(saved: Saved, now: float, cells: int) -> str:
        if isinstance(saved, Artifact) or of.within is None:
            return ""
        return of.within(saved, now, cells)

    def is_worth(saved: Saved) -> bool:
        asked = other if isinstance(saved, Artifact) else of
        return asked is not None and asked.is_worth is not None and asked.is_worth(saved)  # type: ignore[arg-type]

    return Column(
        key=of.key,
        title=of.title,
        cell=cell,
        is_wide=of.is_wide,
        is_worth=is_worth if of.is_worth else None,
        tells=(lambda one: isinstance(one, Artifact) or of.tells(one)) if of.tells else None,  # type: ignore[misc]
        colour=(lambda one: "red" if is_lost(one) else "") if of.colour else None,
        is_optional=of.is_optional,
        shrinks_to=of.shrinks_to,
        is_name=of.is_name,
        within=within if of.within else None,
    )


COLUMNS: Final[tuple[Column[Checkpoint | Artifact], ...]] = (
    _column(checkpoints.COLUMNS[0])._replace(title="Name"),
    Column(
        key="kind",
        title="Kind",
        cell=lambda one, _: "artifact" if isinstance(one, Artifact) else "checkpoint",
        is_wide=True,
        is_worth=lambda one: isinstance(one, Artifact),
    ),
    *map(_column, checkpoints.COLUMNS[1:]),
)
"""Columns of checkpoints; the kind is shown if there are artifacts."""
