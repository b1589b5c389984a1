"""plot --tensorboard: reported values as event files for TensorBoard."""

from __future__ import annotations

import secrets
import shutil
from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cli.app import App
from cli.arguments import sessions_of
from cli.atomic_file import check_folder_of
from cli.exits import CommandError, ExitCode
from cli.progress import Progress
from cli.results.metric_options import check_known, fits, tell_let_go, tell_missing
from cli.sessions.written_files import remember
from nsml.common.units import counted
from nsml.tensorboard.event_files import Counts, EventFiles

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from cli.results.series import Source
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import MetricPoint, ReadMetricsResponse, Session

_PATIENCE_S = 60.0


def write_event_files(app: App, references: Sequence[str], source: Source, folder: Path) -> None:
    """Write a run per session below `folder`, each file atomically, and print the place."""
    if folder.exists() and not folder.is_dir():
        raise CommandError(
            f"{folder} is there and is no folder",
            code=ExitCode.CONFLICT,
            advice="nsml plot ... --tensorboard ANOTHER",
        )
    counts = Counts()
    missing: Counter[str] = Counter()
    check_folder_of(folder)
    places: list[Path] = []
    progress = Progress(app, "writing", words=lambda total: counted(total, "point"))

    async def copy(client: Client) -> None:
        from nsml.client.series import reported

        sessions = await sessions_of(client, references)
        found = await reported(client, (one.name for one in sessions))
        check_known(
            found,
            source.globs,
            lambda session, name: ["plot", session, "-m", name, "--tensorboard", str(folder)],
        )
        named = (metric for metrics in found.values() for metric in metrics)
        total = sum(metric.count for metric in named if fits(metric.name, source.globs))
        read = 0
        for session in sessions:
            run = Run(session, folder, joined=0 if source.has_all else session.attempt)
            try:
                async with aclosing(_points(app, client, session, source)) as stream:
                    async for answer in stream:
                        missing[session.name] += answer.missing_reports
                        tell_let_go(app, answer.let_go, session.name)
                        run.add([p for p in answer.points if source.takes(p)], counts)
                        read += len(answer.points)
                        progress.update(min(read, total), total)
                places.extend(run.finish())
            finally:
                run.close()

    try:
        app.call(copy)
    finally:
        progress.close()
    for name, count in missing.items():
        tell_missing(app, count, name)
    _tell(app, counts, places, folder)


def _points(
    app: App, client: Client, session: Session, source: Source
) -> AsyncGenerator[ReadMetricsResponse, None]:
    from nsml.client.log_points import read_points

    return read_points(
        client,
        session,
        from_log=source.from_log,
        names=source.globs,
        all_attempts=source.has_all,
        patience_s=_PATIENCE_S,
        on_link=app.link_words(),
    )


class Run:
    """The event files of one session, written beside their places; `joined` as in EventFiles."""

    def __init__(self, session: Session, folder: Path, *, joined: int) -> None:
        self._files = EventFiles(session, folder, joined=joined)
        self._drafts = folder / f".nsml-{secrets.token_hex(6)}.part"
        self._numbers: dict[tuple[int, int], int] = {}

    def add(self, points: Sequence[MetricPoint], counts: Counts) -> None:
        """Append points to their files."""
        for key, data in self._files.records(points, counts).items():
            self._append(key, data)

    def _append(self, key: tuple[int, int], data: bytes) -> None:
        # Reopened each time: there may be more replicas than open files are allowed.
        if key not in self._numbers:
            self._drafts.mkdir(parents=True, exist_ok=True)
            self._numbers[key] = len(self._numbers)
            data = self._files.head + data
        with (self._drafts / str(self._numbers[key])).open("ab") as file:
            file.write(data)

    def finish(self) -> list[Path]:
        """Move the files to their places, and return their folders."""
        places = []
        for (attempt, rank), number in self._numbers.items():
            place = self._files.place(attempt, rank)
            place.parent.mkdir(parents=True, exist_ok=True)
            (self._drafts / str(number)).replace(place)
            places.append(place.parent)
        return places

    def close(self) -> None:
        """Remove the unfinished files."""
        with suppress(OSError):
            shutil.rmtree(self._drafts)


def _tell(app: App, counts: Counts, places: Sequence[Path], folder: Path) -> None:
    for count, words in (
        (counts.others, "values left out: event files hold numbers alone"),
        (counts.placeless, "points left out: their step is no number"),
        (counts.rounded, "steps rounded: TensorBoard has whole ones"),
    ):
        if count:
            app.say(f"{count:,} {words}")
    app.say(f"{counted(counts.points, 'point')} · tensorboard --logdir {folder}")
    remember(app, places)
    for place in places:
        app.write(str(place))
