"""Writes reports of sessions as event files of TensorBoard: a run per session and replica, or attempt."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsml.spec.folders import folder_name
from nsml.tensorboard import tfevents

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nsml.v1.sessions_pb2 import MetricPoint, Session


@dataclass(slots=True)
class Counts:
    """What was written, and what event files cannot represent."""

    points: int = 0
    others: int = 0
    """Non-numeric values."""
    placeless: int = 0
    """Points without a finite step."""
    rounded: int = 0
    """Points with a step that is no whole number."""


class EventFiles:
    """The event files of one session: names, places and contents.

    Args:
        session: the source of the points.
        folder: parent of the runs.
        joined: attempts up to this one are one run; later ones have runs of their own. Joined attempts should
            have no points superseded by a later one (nsml/spec/attempt_points.py).
    """

    def __init__(self, session: Session, folder: Path, *, joined: int) -> None:
        parts = [folder_name(part) for part in session.name.split("/")]
        self._place = folder.joinpath(*parts)
        self._began_at = session.created_at.seconds
        self._joined = joined
        self._file_name = f"events.out.tfevents.{self._began_at:010}.{folder_name(session.id)}"
        self._without_step: Counter[tuple[int, int, str]] = Counter()

    @property
    def head(self) -> bytes:
        """The header of each file."""
        return tfevents.head(float(self._began_at))

    def place(self, attempt: int, rank: int) -> Path:
        """Return the file of a replica (from 0) of an attempt (from 1); its folder may not exist."""
        place = self._place
        if attempt > 1:
            place /= f"attempt-{attempt}"
        if rank:
            place /= f"rank-{rank}"
        return place / self._file_name

    def records(
        self, points: Sequence[MetricPoint], counts: Counts
    ) -> dict[tuple[int, int], bytes]:
        """Encode points by attempt (1 for joined ones) and rank, for their files; counts them."""
        parts: dict[tuple[int, int], list[bytes]] = {}
        for point in points:
            if not point.HasField("number"):
                counts.others += 1
                continue
            attempt = 1 if point.attempt <= self._joined else point.attempt
            step = self._step(point, attempt, counts)
            if step is None:
                continue
            data = tfevents.scalar(
                point.name,
                point.number,
                step=step,
                wall_time_s=point.time.seconds + point.time.nanos / 1e9,
            )
            parts.setdefault((attempt, point.rank), []).append(data)
            counts.points += 1
        return {key: b"".join(records) for key, records in parts.items()}

    def _step(self, point: MetricPoint, attempt: int, counts: Counts) -> int | None:
        if not point.HasField("step"):
            key = attempt, point.rank, point.name
            self._without_step[key] += 1
            return self._without_step[key] - 1
        if not math.isfinite(point.step):
            counts.placeless += 1
            return None
        step = round(point.step)
        counts.rounded += step != point.step
        return step


class LiveEventFiles:
    """Growing event files, which TensorBoard follows.

    Written points are permanent: an attempt that begins later than these files is a run of its own.

    Attributes:
        counts: what was written.
        size_bytes: of all files.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self._files = EventFiles(session, folder, joined=session.attempt)
        self._begun: set[Path] = set()
        self.counts = Counts()
        self.size_bytes = 0

    def add(self, points: Sequence[MetricPoint]) -> None:
        """Append points; each file is reopened, since there may be too many to keep open."""
        for (attempt, rank), data in self._files.records(points, self.counts).items():
            place = self._files.place(attempt, rank)
            if place not in self._begun:
                place.parent.mkdir(parents=True, exist_ok=True)
                self._begun.add(place)
                data = self._files.head + data  # noqa: PLW2901
            with place.open("ab") as file:
                self.size_bytes += file.write(data)
