"""backup, restore: sessions into one archive, and onto another platform."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.arguments import given_references, sessions_argument, sessions_of
from cli.atomic_file import check_folder_of, whole_file
from cli.exits import CommandError, ExitCode
from cli.group import command, json_flag, pass_app
from cli.output import write_list, write_one
from cli.progress import Progress
from cli.sessions.written_files import remember
from nsml.common.shell import shell_line, shell_word
from nsml.common.text import visible
from nsml.common.units import counted, moment, size_text
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.session_backups import Backed
    from nsml.client.session_restores import Contents, Restored
    from nsml.v1.sessions_pb2 import Session

_FILE = click.Path(dir_okay=False, path_type=Path)
_SUFFIX = ".tar.zst"
_LEFT_OUT_SHOWN = 5


@command(
    "backup",
    examples=[
        "nsml backup @last",
        "nsml backup kim/mnist/3 kim/mnist/4 -o mnist.tar.zst",
        "nsml backup 'kim/mnist/*' --no-checkpoints --with-datasets -o mnist.tar.zst",
    ],
)
@sessions_argument()
@click.option(
    "-o",
    "--out",
    "target",
    type=_FILE,
    metavar="FILE",
    help="The archive. Default: in this folder.",
)
@click.option("--no-checkpoints", is_flag=True, help="Without files of checkpoints.")
@click.option("--with-datasets", is_flag=True, help="With the datasets that the sessions used.")
@json_flag
@pass_app
def backup(
    app: App,
    *,
    references: tuple[str, ...],
    target: Path | None,
    no_checkpoints: bool,
    with_datasets: bool,
) -> None:
    """Write ended sessions to one archive.

    With records, logs, metrics, media, code, checkpoints, artifacts, kept files, and the lock of the
    environment. tar --zstd -xf reads it. nsml restore FILE restores the sessions, also on another platform. Without secrets.
    nsml admin backup is for whole platforms.
    """
    from nsml.client.session_backups import SessionBackup
    from nsml.content.session_archives import ArchiveWriter, Header

    given = given_references(app, references)

    async def write(client: Client) -> tuple[Path, int, int, list[Backed]]:
        # The oldest first, so that a restore can keep their numbers.
        found = await sessions_of(client, given)
        sessions = sorted(found, key=lambda one: one.created_at.ToNanoseconds())
        _check_ended(sessions)
        place = target or Path(_file_name(app, sessions))
        check_folder_of(place)
        if place.exists():
            raise CommandError(
                f"{place} is there already",
                code=ExitCode.CONFLICT,
                reason="TARGET_EXISTS",
                advice="remove it, or give another name with -o",
            )
        header = Header(
            platform=(await client.nodes.cluster()).cluster_id,
            nsml_version=_version(),
            taken_at=moment(app.clock.time()),
            user=(await client.accounts.caller()).user.name,
            sessions=tuple(one.name for one in sessions),
        )
        with whole_file(place) as file:
            with ArchiveWriter(file, header, now=app.clock.time()) as archive:
                taking = SessionBackup(
                    client,
                    archive,
                    with_checkpoints=not no_checkpoints,
                    with_datasets=with_datasets,
                    progress=lambda done: progress.update(min(done, total), total),
                )
                total = sum([await taking.size_of(one) for one in sessions])
                dataset_files = await taking.add_datasets(sessions)
                backed = [await taking.add(one) for one in sessions]
                archive.finish()
            size = file.tell()
        return place, size, dataset_files, backed

    progress = Progress(app, "writing")
    try:
        place, size, dataset_files, backed = app.call(write)
    except KeyboardInterrupt:
        progress.close()
        raise CommandError(
            "interrupted",
            code=ExitCode.INTERRUPTED,
            why="nothing was written: the archive appears once it is whole",
            advice=shell_line(["nsml", *app.arguments]),
        ) from None
    finally:
        progress.close()
    remember(app, [place])
    for one in backed:
        _say_left_out(app, one.session, one.left_out)
    record = {
        "path": str(place),
        "sessions": [one.session for one in backed],
        "files": dataset_files + sum(one.files for one in backed),
        "size_bytes": size,
        "left_out": {one.session: one.left_out for one in backed if one.left_out},
    }
    app.say(f"{counted(len(backed), 'session')} in {visible(str(place))} ({size_text(size)})")
    write_one(app, record, [str(place)], name="path")


def _check_ended(sessions: Sequence[Session]) -> None:
    from nsml.client.streams import ENDED_STATES

    live = [one.name for one in sessions if one.state not in ENDED_STATES]
    if live:
        raise CommandError(
            f"{live[0]} has not ended" + (f", and {len(live) - 1} more" if live[1:] else ""),
            code=ExitCode.CONFLICT,
            reason="STATE_CONFLICT",
            why="a backup has what does not change any more",
            advice=f"nsml logs -f {shell_word(live[0])}    waits until it ends\n"
            f"nsml stop {shell_word(live[0])}    ends it",
        )


def _file_name(app: App, sessions: Sequence[Session]) -> str:
    from nsml.spec.folders import session_folder

    if len(sessions) == 1:
        return f"{session_folder(sessions[0].name)}{_SUFFIX}"
    stamp = moment(app.clock.time())[:19].replace("-", "").replace(":", "")
    return f"sessions-{stamp}Z{_SUFFIX}"


def _version() -> str:
    from nsml._version import VERSION

    return VERSION


def _say_left_out(app: App, session: str, left_out: Sequence[str]) -> None:
    for text in left_out[:_LEFT_OUT_SHOWN]:
        app.say(f"{visible(session)}: without {visible(text)}")
    if more := left_out[_LEFT_OUT_SHOWN:]:
        app.say(f"{visible(session)}: without {len(more)} more (-j names them)")


_RESTORED: tuple[Column[Restored], ...] = (
    Column(key="session", title="Session", cell=lambda one, _: one.session.name, is_name=True),
    Column(key="was", title="Was", cell=lambda one, _: one.was),
    Column(
        key="restored",
        title="Restored",
        cell=lambda one, _: "was there already" if one.was_there else "yes",
    ),
)


def _restored_record(one: Restored) -> dict[str, Any]:
    return {
        "session": one.session.name,
        "id": one.session.id,
        "was": one.was,
        "was_there": one.was_there,
        "left_out": list(one.left_out),
        "datasets": dict(one.datasets),
    }


@command(
    "restore",
    reads=True,
    examples=["nsml restore mnist.tar.zst", "nsml restore --check mnist.tar.zst"],
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--check", "is_check", is_flag=True, help="Only verify FILE and list its sessions and datasets."
)
@pass_app
def restore(app: App, *, file: Path, is_check: bool) -> None:
    """Restore the sessions of an archive that nsml backup wrote.

    As ended sessions of yours, private, with a number of this platform unless their old one is free. Their files count for your
    storage. A session that was restored before, or never left, is not restored again: run it again after a break. FILE is
    verified first. nsml admin restore is for whole platforms.
    """
    from nsml.client.session_restores import read_contents
    from nsml.client.session_restores import restore as restore_sessions

    size = file.stat().st_size
    checking = Progress(app, "checking")
    try:
        with _naming(file):
            contents = read_contents(file, lambda done: checking.update(min(done, size), size))
    finally:
        checking.close()
    if is_check:
        _tell_contents(app, file, contents)
        return
    found: list[Restored] = []
    progress = Progress(app, "restoring")
    try:
        with _naming(file):
            app.call(
                lambda client: restore_sessions(
                    client,
                    file,
                    contents,
                    progress=lambda done: progress.update(
                        min(done, contents.bytes), contents.bytes
                    ),
                    restored=found.append,
                )
            )
    except KeyboardInterrupt:
        progress.close()
        raise CommandError(
            "interrupted",
            code=ExitCode.INTERRUPTED,
            why=f"{counted(len(found), 'session')} of {len(contents.sessions)} restored; of the next one nothing is there",
            advice=f"{shell_line(['nsml', *app.arguments])}    goes on",
        ) from None
    finally:
        progress.close()
    for one in found:
        _say_left_out(app, one.session.name, one.left_out)
        for was, now in one.datasets:
            app.say(f"{visible(one.session.name)}: dataset {visible(was)} is {visible(now)} here")
    write_list(app, found, columns=_RESTORED, record=_restored_record, name="session")


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Name the refused file in errors. Raises CommandError."""
    from nsml.content.session_archives import ArchiveRefused, NoArchive

    try:
        yield
    except NoArchive as error:
        raise CommandError(
            f"{visible(str(file))} is no nsml backup",
            why=visible(str(error)),
            advice="a file that nsml backup wrote; nsml admin restore has whole platforms",
        ) from error
    except ArchiveRefused as error:
        raise CommandError(
            f"{visible(str(file))} is damaged, or was not written by nsml backup",
            why=visible(str(error)),
            advice="copy it again from where it was written, and compare the sums of both",
        ) from error


def _tell_contents(app: App, file: Path, contents: Contents) -> None:
    header = contents.header
    names = [one.session.name for one in contents.sessions.values()]
    record = {
        "path": str(file),
        "platform": header.platform,
        "nsml": header.nsml_version,
        "taken_at": header.taken_at,
        "user": header.user,
        "sessions": names,
        "datasets": list(contents.datasets),
        "size_bytes": contents.bytes,
    }
    lines = [
        f"{visible(str(file))}: whole, {counted(len(names), 'session')}, {size_text(contents.bytes)} unpacked",
        f"  written   {visible(header.taken_at)} by {visible(header.user)}, nsml {visible(header.nsml_version)}",
        f"  platform  {visible(header.platform)}",
        *(f"  session   {visible(name)}" for name in names),
        *(f"  dataset   {visible(name)}" for name in contents.datasets),
    ]
    if contents.datasets:
        lines.append(
            "  versions of datasets become yours: of NAME, or of NAME.restored if you have another NAME"
        )
    write_one(app, record, lines, name="path")
