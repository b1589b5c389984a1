"""export: writes all reported points to files."""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import click

from cli.app import App
from cli.arguments import given_references, sessions_argument, sessions_of
from cli.atomic_file import check_folder_of, whole_file
from cli.exits import CommandError, ExitCode
from cli.group import BadValue, command, json_flag, pass_app
from cli.output import write_list
from cli.progress import Progress
from cli.results.metric_options import (
    MOST_LISTED,
    attempts_option,
    check_known,
    fits,
    from_log_option,
    metric_option,
    tell_let_go,
    tell_missing,
)
from cli.results.points import FileFormat, check_library, points_file
from cli.sessions.written_files import remember
from nsml.common.shell import shell_line, shell_word
from nsml.common.units import counted, size_text
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from cli.results.points import PointsFile
    from nsml.client.calls import Client
    from nsml.client.streams import Link
    from nsml.v1.sessions_pb2 import Session

_PATIENCE_S = 60.0
_SUFFIXES = {
    ".csv": FileFormat.CSV,
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
}


class _Target(click.ParamType[str]):
    """A file, a folder, or `-`; a format's name is refused."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text:
            self.fail("it names no file", param, ctx)
        if text in {*FileFormat, "json", "yaml", "table"}:
            raise BadValue(
                f"{text!r} is a format, and -o of this command takes a file",
                param,
                ctx,
                why=f"a file of that name would be ./{text}",
                advice=f"nsml export ... --format {text if text in set(FileFormat) else 'jsonl'}",
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The export of one session."""

    session: str
    points: int
    missing: int
    """Reports lost permanently."""
    let_go: Timestamp
    """Time at which points were removed by retention; 0: never."""
    file: str
    """`-`: stdout."""


_COLUMNS: tuple[Column[Written], ...] = (
    Column(key="session", title="Session", cell=lambda one, _: one.session, is_name=True),
    Column(key="points", title="Points", cell=lambda one, _: f"{one.points:,}"),
    Column(key="file", title="File", cell=lambda one, _: one.file),
)


def _check_no_file(references: Sequence[str]) -> None:
    """Raise CommandError for a file name among the sessions."""
    for one in references:
        if Path(one).suffix.removeprefix(".") in set(FileFormat):
            others = [other for other in references if other != one]
            raise CommandError(
                f"{one[:80]!r} names a file, not a session",
                code=ExitCode.USAGE,
                advice=shell_line(["nsml", "export", *(others or ["@last"]), "-o", one]),
            )


@command(
    "export",
    examples=[
        "nsml export @last -o run.csv",
        "nsml export @last -m 'val/*' > validation.csv",
        "nsml export 'kim/mnist/*' --format parquet -o points/",
        "nsml export @last --format jsonl | head -3",
        "nsml export @last --from-log auto -o printed.csv",
    ],
)
@sessions_argument()
@click.option(
    "--format",
    "form",
    type=click.Choice([item.value for item in FileFormat]),
    help="Default: by the file's extension, else csv.",
)
@metric_option()
@from_log_option
@click.option(
    "-o",
    "--out",
    "target",
    type=_Target(),
    default="-",
    metavar="FILE|DIR",
    help="One file for all, or a folder for one each. Default: stdout (-).",
)
@attempts_option
@json_flag
@pass_app
def export(
    app: App,
    *,
    references: tuple[str, ...],
    form: str | None,
    metrics: tuple[str, ...],
    from_log: tuple[str, ...],
    target: str,
    is_apart: bool,
) -> None:
    """Export every reported point once, in the order of the reports.

    If an attempt repeats steps of an earlier one, its points replace those; --attempts writes all.
    A row is a point: session, attempt, rank, metric, step, time and value; values that are no
    numbers are in `json`. docs/results.md has the line of pandas that makes a row per step. The
    file appears when it is complete. Parquet needs an extra: pip install 'nsml[parquet]'.
    """
    chosen = _format(app, form, target)
    check_library(chosen)
    given = given_references(app, references)
    _check_no_file(given)
    if target != "-":
        check_folder_of(Path(target))
    progress = Progress(app, "exporting", words=lambda total: counted(total, "point"))

    async def copy(client: Client) -> list[Written]:
        sessions = await sessions_of(client, given)
        total = 0 if from_log else await _total(client, sessions, metrics)
        exporting = _Exporting(
            app, client, metrics, progress, total, is_apart=is_apart, from_log=from_log
        )
        if target == "-" or not _is_folder(target):
            with _open(app, target) as file:
                return await exporting.write(file, chosen, sessions, target)
        written: list[Written] = []
        for session, path in _paths(Path(target), sessions, chosen):
            with whole_file(path) as file:
                written += await exporting.write(file, chosen, [session], str(path))
        return written

    try:
        written = app.call(copy)
    finally:
        progress.close()
    _tell(app, written, is_stdout=target == "-")


def _format(app: App, form: str | None, target: str) -> FileFormat:
    if form is not None:
        chosen = FileFormat(form)
    elif target == "-" or _is_folder(target):
        chosen = FileFormat.CSV
    else:
        suffix = Path(target).suffix.lower()
        if suffix not in _SUFFIXES:
            raise CommandError(
                f"unknown file format: {target!r}",
                code=ExitCode.USAGE,
                why="its name ends with none of .csv, .jsonl, .parquet",
                advice=f"nsml export ... --format csv -o {shell_word(target)}\nnsml export ... -o {shell_word(target + '.csv')}",
            )
        chosen = _SUFFIXES[suffix]
    if chosen is FileFormat.PARQUET and target == "-" and app.stdout.isatty():
        raise CommandError(
            "Parquet cannot be shown on a terminal",
            code=ExitCode.USAGE,
            advice="nsml export ... -o points.parquet",
        )
    return chosen


def _is_folder(target: str) -> bool:
    return target.endswith("/") or Path(target).is_dir()


def _paths(
    folder: Path, sessions: Sequence[Session], chosen: FileFormat
) -> Iterator[tuple[Session, Path]]:
    """Yield each session with its own file; names equal as file names get their ids.

    The folder is created if missing.
    """
    from nsml.spec.folders import folder_name

    folder.mkdir(exist_ok=True)
    names = [session.name.replace("/", "_") for session in sessions]
    for session, name in zip(sessions, names, strict=True):
        unique = name if names.count(name) == 1 else f"{name}_{session.id}"
        yield session, folder / f"{folder_name(unique)}.{chosen.value}"


@contextmanager
def _open(app: App, target: str) -> Iterator[IO[bytes]]:
    if target != "-":
        with whole_file(Path(target)) as file:
            yield file
        return
    app.stdout.flush()
    yield cast("TextIO", app.stdout).buffer
    app.stdout.flush()


async def _total(client: Client, sessions: Sequence[Session], globs: Sequence[str]) -> int:
    """Return the number of points to write. Raises CommandError for a glob that matches no metric at all."""
    from nsml.client.series import reported

    found = await reported(client, (session.name for session in sessions))
    if all(len(metrics) < MOST_LISTED for metrics in found.values()):
        check_known(found, globs, lambda session, name: ["export", session, "-m", name])
    return sum(one.count for metrics in found.values() for one in metrics if fits(one.name, globs))


class _Exporting:
    """Copies points from streams to files, with progress."""

    def __init__(
        self,
        app: App,
        client: Client,
        globs: Sequence[str],
        progress: Progress,
        total: int,
        *,
        is_apart: bool,
        from_log: Sequence[str],
    ) -> None:
        self._app = app
        self._client = client
        self._globs = globs
        self._progress = progress
        self._total = total
        self._is_apart = is_apart
        self._from_log = from_log
        self._done = 0

    async def write(
        self, file: IO[bytes], chosen: FileFormat, sessions: Sequence[Session], target: str
    ) -> list[Written]:
        """Write all points of the sessions, one after another, into one file."""
        rows = points_file(file, chosen)
        written = [await self._copy(session, rows, target) for session in sessions]
        rows.close()
        return written

    async def _copy(self, session: Session, rows: PointsFile, target: str) -> Written:
        from google.protobuf.timestamp_pb2 import Timestamp

        from nsml.client.log_points import read_points

        count = missing = 0
        let_go = Timestamp()
        tell = self._app.link_words()

        def on_link(link: Link) -> None:
            self._progress.close()
            tell(link)

        stream = read_points(
            self._client,
            session,
            from_log=self._from_log,
            names=self._globs,
            all_attempts=self._is_apart,
            patience_s=_PATIENCE_S,
            on_link=on_link,
        )
        async with aclosing(stream):
            async for answer in stream:
                rows.add(session.name, answer.points)
                count += len(answer.points)
                missing += answer.missing_reports
                if answer.HasField("let_go"):
                    let_go = answer.let_go
                self._done += len(answer.points)
                # Running sessions, and metrics beyond the listed ones, have more points than counted.
                total = self._total or self._done
                self._progress.update(min(self._done, total), total)
        return Written(
            session=session.name, points=count, missing=missing, let_go=let_go, file=target
        )


def _tell(app: App, written: Sequence[Written], *, is_stdout: bool) -> None:
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    for one in written:
        tell_missing(app, one.missing, one.session)
        tell_let_go(app, one.let_go, one.session)
    if is_stdout:
        total = sum(one.points for one in written)
        app.say(f"{counted(total, 'point')} of {counted(len(written), 'session')}")
        return
    paths = dict.fromkeys(one.file for one in written)
    remember(app, map(Path, paths))
    for path in paths:
        app.say(f"{path}: {size_text(Path(path).stat().st_size)}")
    write_list(
        app,
        written,
        columns=_COLUMNS,
        record=lambda one: {
            "session": one.session,
            "points": one.points,
            "missing_reports": one.missing,
            "let_go_at": moment(seconds_of(one.let_go)) if one.let_go.seconds else None,
            "file": one.file,
        },
        name="file",
    )
