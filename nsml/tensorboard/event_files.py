"""What sessions reported, as event files that TensorBoard reads: a run a session and replica, or attempt of it."""

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
    """What was written, and what an event file has no place for."""

    points: int = 0
    others: int = 0
    """Values that are no numbers."""
    placeless: int = 0
    """Points whose step is no finite number."""
    rounded: int = 0
    """Points whose step is no whole number."""


class EventFiles:
    """The event files of one session: which there are, where, and what goes into each.

    Args:
        session: of which points come.
        folder: in which the runs are.
        joined: attempts up to this one are one run; later ones have runs of their own. Of joined attempts there should
            be no points that a later one supersedes (nsml/spec/attempt_points.py).
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
        """What each of the files begins with."""
        return tfevents.head(float(self._began_at))

    def place(self, attempt: int, rank: int) -> Path:
        """The file of a replica (from 0) of an attempt (from 1); its folder may not be there yet."""
        place = self._place
        if attempt > 1:
            place /= f"attempt-{attempt}"
        if rank:
            place /= f"rank-{rank}"
        return place / self._file_name

    def records(
        self, points: Sequence[MetricPoint], counts: Counts
    ) -> dict[tuple[int, int], bytes]:
        """Points as bytes of the files that they belong to, by attempt (1 of joined ones) and rank; counts them."""
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
    """Event files that grow where they are read, as TensorBoard follows them.

    What is in a file is read once and stays: an attempt that begins later than these files is a run of its own.

    Attributes:
        counts: what was written.
        size_bytes: of all of them.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self._files = EventFiles(session, folder, joined=session.attempt)
        self._begun: set[Path] = set()
        self.counts = Counts()
        self.size_bytes = 0

    def add(self, points: Sequence[MetricPoint]) -> None:
        """Append points; each file is opened anew, since there may be more than may be open."""
        for (attempt, rank), data in self._files.records(points, self.counts).items():
            place = self._files.place(attempt, rank)
            if place not in self._begun:
                place.parent.mkdir(parents=True, exist_ok=True)
                self._begun.add(place)
                data = self._files.head + data  # noqa: PLW2901
            with place.open("ab") as file:
                self.size_bytes += file.write(data)
