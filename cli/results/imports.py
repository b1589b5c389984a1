"""import: past runs of other tools as ended sessions."""

from __future__ import annotations

import fnmatch
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list
from cli.progress import Progress
from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.common.units import counted, duration_text, local_moment, moment, size_text
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.imports.folders import Folder
    from nsml.imports.runs import PastRun, Recording
    from nsml.v1.sessions_pb2 import Session

_LEFT_OUT_SHOWN = 5
_STATES = {"SUCCEEDED": "SUC", "FAILED": "FAI", "STOPPED": "STO"}


@click.group("import", cls=Group)
def import_() -> None:
    """Make ended sessions of runs that other tools recorded.

    With their configuration, metrics, media, artifacts, times and outcome, so that nsml plot, ps and diff compare them with
    sessions. They are yours and private, and count for what you may report in a day. A run that was imported before is not
    imported again. What a folder has is read on this machine; nothing is sent to the other tool.
    """


class _Reader(Protocol):
    """A module of `nsml.imports`."""

    def find(self, folder: Folder) -> list[PastRun]: ...


@dataclass(slots=True)
class _Imported:
    """A run, and what became of it. `points`, `media`, `artifacts`: -1 if it was not read."""

    run: PastRun
    dataset: str
    session: Session | None = None
    was_there: bool = False
    points: int = -1
    media: int = -1
    artifacts: int = -1
    artifact_bytes: int = -1
    left_out: tuple[str, ...] = ()
    is_damaged: bool = False
    is_empty: bool = False
    error: str = ""

    @property
    def state(self) -> str:
        """`SUCCEEDED`, `FAILED` or `STOPPED`; of one that was there, as it is there."""
        from nsml.v1.sessions_pb2 import SessionState
        from nsml.view.enums import enum_name

        if self.session is None:
            return self.run.outcome.value
        return enum_name(SessionState, self.session.state, "SESSION_STATE_")

    @property
    def times(self) -> tuple[float, float]:
        """Begin and end in Unix seconds; 0 if unknown."""
        from nsml.view.times import seconds_of

        if self.session is None:
            return self.run.began_at, self.run.ended_at
        return seconds_of(self.session.created_at), seconds_of(self.session.ended_at)

    @property
    def result(self) -> str:
        """For people."""
        if self.error:
            return f"failed: {visible(self.error)}"
        if self.was_there:
            return "was there already"
        if self.is_empty:
            return "left out: it has no values"
        words = "imported" if self.session else "can be imported"
        return f"{words}, damaged" if self.is_damaged else words


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        click.option(
            "--check",
            "is_check",
            is_flag=True,
            help="Only read the runs and list them. Asks no platform.",
        ),
        click.option(
            "--run",
            "globs",
            multiple=True,
            metavar="GLOB",
            help="Only runs with such a name; repeatable.",
        ),
        click.option(
            "--no-artifacts",
            "skips_artifacts",
            is_flag=True,
            help="Without files that become artifacts.",
        ),
        click.option(
            "-d",
            "--dataset",
            metavar="NAME",
            help="The middle part of the sessions' names.  [default: the project's name]",
        ),
        click.argument(
            "place", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
        ),
        pass_app,
    ):
        function = decorate(function)
    return function


@command(
    "tensorboard",
    reads=True,
    examples=[
        "nsml import tensorboard runs",
        "nsml import tensorboard lightning_logs -d digits --run 'version_1*'",
        "nsml import tensorboard --check runs",
    ],
)
@_common
def tensorboard(app: App, **given: Any) -> ExitCode:
    """Import the runs of a folder with event files of TensorBoard.

    Each folder with event files is a run. Folders of add_scalars and add_hparams, and train/ with validation/, are of the
    run above them.
    """
    from nsml.imports import tensorboard as reader

    return _import(app, reader, **given)


@command(
    "mlflow",
    reads=True,
    examples=[
        "nsml import mlflow .",
        "nsml import mlflow mlruns --run 'baseline*'",
        "nsml import mlflow --check .",
    ],
)
@_common
def mlflow(app: App, **given: Any) -> ExitCode:
    """Import the runs of a folder with mlruns or mlflow.db.

    DIR is mlruns, an experiment in it, or the folder that mlruns or mlflow.db is in. Removed runs are left out. Images,
    sounds, videos, texts and tables become media, models and other files artifacts. Nested runs are sessions of their own.
    """
    from nsml.imports import mlflow as reader

    return _import(app, reader, **given)


@command(
    "wandb",
    reads=True,
    examples=[
        "nsml import wandb wandb",
        "nsml import wandb . -d digits --run 'sunny-*'",
        "nsml import wandb --check wandb",
    ],
)
@_common
def wandb(app: App, **given: Any) -> ExitCode:
    """Import the runs of a folder wandb, online and offline ones.

    DIR is wandb, the folder of one run, or a folder above them. The folders of a resumed run become one session. Files of
    run.save and log_artifact become artifacts if they are in DIR: give the program's folder. Nothing is fetched from W&B.
    """
    from nsml.imports import wandb as reader

    return _import(app, reader, **given)


def _import(
    app: App,
    reader: _Reader,
    *,
    place: Path,
    dataset: str | None,
    globs: tuple[str, ...],
    is_check: bool,
    skips_artifacts: bool = False,
) -> ExitCode:
    from nsml.client.errors import ClientError
    from nsml.imports.folders import Folder
    from nsml.spec.dataset_names import is_dataset_name

    if dataset is not None and not is_dataset_name(dataset):
        raise CommandError(
            f"{visible(dataset)} is not a dataset name",
            code=ExitCode.USAGE,
            why="1 to 64 of A-Z a-z 0-9 _ - ., beginning with a letter or a digit",
        )
    with Folder(place) as folder:
        try:
            rows = _found(folder, reader, globs, dataset)
        except (OSError, ValueError) as error:
            raise CommandError(
                f"{visible(str(place))} cannot be read", why=_words(error)
            ) from error
        if not rows:
            raise _none(folder, place, globs)
        progress = Progress(
            app, "reading" if is_check else "importing", words=lambda total: counted(total, "run")
        )
        importing = _Importing(
            app,
            rows,
            lambda done: progress.update(done, len(rows)),
            with_artifacts=not skips_artifacts,
        )
        try:
            if is_check:
                importing.check()
            else:
                app.call(importing.run)
        except KeyboardInterrupt:
            progress.close()
            raise CommandError(
                "interrupted",
                code=ExitCode.INTERRUPTED,
                why=f"{counted(importing.done, 'run')} of {len(rows)} imported; of the next one nothing is there",
                advice="run it again: it goes on with the others",
            ) from None
        except ClientError:
            progress.close()
            app.say(
                f"{counted(importing.done, 'run')} of {len(rows)} done; the same command goes on"
            )
            raise
        finally:
            progress.close()
    for text in folder.unreadable:
        app.say(f"not read: {visible(text)}")
    for one in rows:
        _say_left_out(app, one)
    write_list(
        app,
        rows,
        columns=_COLUMNS,
        record=partial(_record, is_check=is_check),
        name="run" if is_check else "session",
    )
    code = _code(rows)
    return ExitCode.PARTLY if code is ExitCode.OK and folder.unreadable else code


def _none(folder: Folder, place: Path, globs: Sequence[str]) -> CommandError:
    """Say that there is no run, and which other tool's runs are there."""
    from nsml.imports import mlflow, tensorboard, wandb

    others = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    commands = []
    for name, reader in others.items():
        try:
            is_there = not globs and bool(reader.find(folder))
        except (OSError, ValueError):
            continue
        if is_there:
            commands.append(shell_line(["nsml", "import", name, str(place)]))
    return CommandError(
        f"no such run in {visible(str(place))}",
        code=ExitCode.NOT_FOUND,
        why="no run has a name like --run" if globs else "",
        advice="\n".join(commands),
    )


def _found(
    folder: Folder, reader: _Reader, globs: Sequence[str], dataset: str | None
) -> list[_Imported]:
    """Return the runs in the order in which they began, as far as that is known."""
    from nsml.imports.archives import dataset_of

    runs = [
        one
        for one in reader.find(folder)
        if not globs or any(fnmatch.fnmatchcase(one.name, glob) for glob in globs)
    ]
    runs.sort(key=lambda one: one.began_at or one.order)
    return [_Imported(one, dataset or dataset_of(one.project)) for one in runs]


class _Importing:
    """Imports runs one after the other; `done`: how many are over."""

    def __init__(
        self,
        app: App,
        rows: Sequence[_Imported],
        progress: Callable[[int], None],
        *,
        with_artifacts: bool,
    ) -> None:
        self._app = app
        self._with_artifacts = with_artifacts
        self._rows = rows
        self._progress = progress
        self.done = 0

    def check(self) -> None:
        """Only read them."""
        from nsml.imports.archives import recorded

        for row in self._rows:
            try:
                with recorded(row.run, with_artifacts=self._with_artifacts) as recording:
                    _note(row, recording)
            except (OSError, ValueError) as error:
                row.error = _words(error)
            self._count()

    async def run(self, client: Client) -> None:
        """Import them. Raises ClientError unless it is a refusal of one run alone."""
        from nsml.client.errors import InvalidRequest, TooLarge
        from nsml.content.errors import ContentError

        for row in self._rows:
            try:
                await self._import(client, row)
            except (InvalidRequest, TooLarge) as error:
                row.error = error.message + (f": {error.why}" if error.why else "")
            except (OSError, ValueError, ContentError) as error:
                row.error = _words(error)
            self._count()

    def _count(self) -> None:
        self.done += 1
        self._progress(self.done)

    async def _import(self, client: Client, row: _Imported) -> None:
        from nsml.client.session_restores import find_restored, read_contents, restore
        from nsml.common.clock import in_thread
        from nsml.common.concurrency import to_its_end
        from nsml.imports.archives import session_of

        known = session_of(row.run, row.dataset)
        row.session = await find_restored(client, known, row.run.origin)
        if row.session is not None:
            row.was_there = True
            return
        with tempfile.TemporaryDirectory(prefix="nsml-import-") as scratch:
            file = Path(scratch) / "session.tar.zst"
            write = partial(
                _write, file, row, self._app.clock.time(), with_artifacts=self._with_artifacts
            )
            await to_its_end(in_thread(write))
            if row.is_empty:
                return
            contents = await to_its_end(in_thread(partial(read_contents, file)))
            await restore(client, file, contents, restored=lambda one: _restored(row, one.session))


def _restored(row: _Imported, session: Session) -> None:
    row.session = session


def _write(file: Path, row: _Imported, now: float, *, with_artifacts: bool) -> None:
    from nsml.imports.archives import recorded, write_archive

    with (
        recorded(row.run, with_artifacts=with_artifacts) as recording,
        file.open("wb") as archive,
    ):
        _note(row, recording)
        if not row.is_empty:
            write_archive(archive, row.run, recording, dataset=row.dataset, now=now)


def _note(row: _Imported, recording: Recording) -> None:
    row.points, row.media = recording.points, recording.media_files
    artifacts = recording.artifacts.found
    row.artifacts, row.artifact_bytes = len(artifacts), sum(one.size for one in artifacts)
    row.is_empty = recording.is_empty
    row.left_out, row.is_damaged = tuple(recording.left_out), recording.is_damaged


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _say_left_out(app: App, row: _Imported) -> None:
    name = visible(row.run.name)
    for text in row.left_out[:_LEFT_OUT_SHOWN]:
        app.say(f"{name}: without {visible(text)}")
    if more := row.left_out[_LEFT_OUT_SHOWN:]:
        app.say(f"{name}: without {len(more)} more (-j names them)")


def _code(rows: Sequence[_Imported]) -> ExitCode:
    bad = [one for one in rows if one.error or one.is_damaged]
    if not bad:
        return ExitCode.OK
    return ExitCode.FAILED if all(one.error for one in rows) else ExitCode.PARTLY


def _number(number: int) -> str:
    return "" if number < 0 else f"{number:,}"


def _artifacts(row: _Imported) -> str:
    return f"{row.artifacts:,} ({size_text(row.artifact_bytes)})" if row.artifacts > 0 else ""


def _took(row: _Imported) -> str:
    began, ended = row.times
    return duration_text(ended - began) if began else ""


_COLUMNS: tuple[Column[_Imported], ...] = (
    Column(key="run", title="Run", cell=lambda one, _: one.run.name, is_name=True),
    Column(
        key="session",
        title="Session",
        cell=lambda one, _: one.session.name if one.session else f"-/{one.dataset}/-",
        is_name=True,
    ),
    Column(key="state", title="State", cell=lambda one, _: _STATES.get(one.state, one.state)),
    Column(
        key="began_at",
        title="Began",
        cell=lambda one, _: (
            local_moment(one.times[0])[:16].replace("T", " ") if one.times[0] else ""
        ),
        is_optional=True,
    ),
    Column(key="took", title="Took", cell=lambda one, _: _took(one), is_optional=True),
    Column(key="points", title="Points", cell=lambda one, _: _number(one.points)),
    Column(key="media", title="Media", cell=lambda one, _: _number(one.media), is_optional=True),
    Column(
        key="artifacts", title="Artifacts", cell=lambda one, _: _artifacts(one), is_optional=True
    ),
    Column(key="result", title="Result", cell=lambda one, _: one.result, wraps=True),
)


def _record(one: _Imported, *, is_check: bool) -> dict[str, Any]:
    began, ended = one.times
    return {
        "run": one.run.name,
        "place": one.run.place,
        "session": one.session.name if one.session else None,
        "id": one.session.id if one.session else None,
        "dataset": one.dataset,
        "origin": one.run.origin,
        "origin_id": one.run.id,
        "state": one.state,
        "began_at": moment(began) if began else None,
        "ended_at": moment(ended) if ended else None,
        "points": one.points if one.points >= 0 else None,
        "media": one.media if one.media >= 0 else None,
        "artifacts": one.artifacts if one.artifacts >= 0 else None,
        "artifact_bytes": one.artifact_bytes if one.artifact_bytes >= 0 else None,
        "imported": not one.was_there and one.session is not None,
        "was_there": one.was_there,
        "is_check": is_check,
        "is_damaged": one.is_damaged,
        "is_empty": one.is_empty,
        "error": one.error or None,
        "left_out": list(one.left_out),
    }


import_.add_command(tensorboard)
import_.add_command(mlflow)
import_.add_command(wandb)
