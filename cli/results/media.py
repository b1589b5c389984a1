"""media: logged media of sessions."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import session_argument
from cli.atomic_file import check_folder_of
from cli.exits import CommandError, ExitCode
from cli.group import command, near, pass_app
from cli.output import write_list
from cli.progress import Progress
from cli.results.metric_options import metric_option
from cli.sessions.written_files import remember
from nsml.common.shell import operands, shell_line, shell_word
from nsml.content.media import MOST_OF_SESSION
from nsml.spec.folders import folder_name

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.media_pb2 import ListMediaRequest, Media

_COLUMNS = 80
_SHOWN = 10
_MOST_LISTED = 10_000
_MOST_NAME_BYTES = 200
_MOST_DEPTH = 16


@dataclass(slots=True)
class _Exported:
    """The result of an export."""

    session: str = ""
    paths: list[Path] = field(default_factory=list)
    size: int = 0
    expected: int = 0
    there: int = 0
    absent: int = 0
    is_full: bool = False


@command(
    "media",
    reads=True,
    examples=[
        "nsml media @last",
        "nsml media @last -m 'val/*' --from 100 --to 200",
        "nsml media @last val/confusion --step 30",
        "nsml media @last -m 'samples/*' --export pictures",
    ],
)
@session_argument()
@click.argument("name", metavar="[NAME]", default="")
@metric_option("globs", "--match")
@click.option(
    "--kind", metavar="KIND", default="", help="Only this kind: image, audio, video, text, ..."
)
@click.option("--step", type=float, metavar="STEP", help="Only this step; default: the last.")
@click.option("--from", "first", type=float, metavar="STEP", help="From this step on.")
@click.option("--to", "last", type=float, metavar="STEP", help="Up to this step.")
@click.option(
    "--export",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the files to FOLDER.",
)
@pass_app
def media(
    app: App,
    *,
    session: str,
    name: str,
    globs: tuple[str, ...],
    kind: str,
    step: float | None,
    first: float | None,
    last: float | None,
    folder: Path | None,
) -> None:
    """List logged media; with NAME show one, with --export write the files."""
    from nsml.v1.media_pb2 import ListMediaRequest, Media

    if step is not None:
        if first is not None or last is not None:
            raise click.UsageError("--step is of one step: without --from and --to")
        first = last = step
    elif first is not None and last is not None and first > last:
        raise click.UsageError("--to is before --from")
    if name:
        from nsml.client.media import literally

        globs = (*globs, literally(name))
    request = ListMediaRequest(
        session=session, names=globs, kind=kind, first_step=first, last_step=last
    )
    if folder is not None:
        _export(app, request, folder)
        return
    if name and app.is_for_people:
        _show(app, request, name)
        return
    from nsml.view import media as view

    found, has_more, is_full = app.call(lambda client: _listed(client, request))
    write_list(
        app,
        found,
        columns=view.COLUMNS,
        record=view.record,
        none="no media were reported" if not globs and not kind else "no such media were reported",
        blank=Media(),
    )
    if has_more:
        app.say(
            f"only the first {_MOST_LISTED:,} are listed; -m, --kind, --from and --to narrow it"
        )
    _tell_full(app, is_full)


def _tell_full(app: App, is_full: bool) -> None:
    if is_full:
        app.say(f"of a session {MOST_OF_SESSION:,} are kept; further media are dropped")


async def _listed(client: Client, request: ListMediaRequest) -> tuple[list[Media], bool, bool]:
    """Return some media in order, whether there are more, and whether the session has reached the limit of stored media."""
    from nsml.client.media import pages

    found: list[Media] = []
    is_full = False
    async with aclosing(pages(client, request)) as every:
        async for page in every:
            found += page.media
            if len(found) >= _MOST_LISTED:
                return found[:_MOST_LISTED], True, False
            is_full = page.is_full
    return found, False, is_full


def _show(app: App, request: ListMediaRequest, name: str) -> None:
    """Show the last medium of that name, in words if possible."""
    from nsml.common.text import visible
    from nsml.view import media as view

    one, data = app.call(lambda client: _last(client, request, name))
    lost = f": {one.why_lost}" if one.why_lost else ""
    app.say(visible(f"{one.name}, step {view.step_text(one)}, {view.state_word(one)}{lost}"))
    if one.caption:
        app.say(visible(one.caption))
    if data is None:
        return
    export = shell_line(["nsml", "media", "--export", "FOLDER", *operands(request.session, name)])
    if one.kind not in view.IN_WORDS:
        write_list(app, [one], columns=view.COLUMNS, record=view.record)
        app.say(f"to see it: {export}")
        return
    try:
        for line in view.lines(one, data, columns=app.room or _COLUMNS):
            app.write(line)
    except ValueError as error:
        raise CommandError(f"{name!r} cannot be shown", why=str(error), advice=export) from error


async def _last(client: Client, request: ListMediaRequest, name: str) -> tuple[Media, bytes | None]:
    """Return the medium of the highest step, the newest of several, and its bytes if stored."""
    from nsml.client.media import contents, pages

    newest, shown_by = None, None
    async with aclosing(pages(client, request)) as every:
        async for page in every:
            for one in page.media:
                if newest is None or one.step >= newest.step:
                    newest, shown_by = one, page.shown_by
    if newest is None or shown_by is None:
        raise await _unknown(client, request, name)
    async with aclosing(contents(client, [newest], shown_by=shown_by)) as found:
        async for one, data in found:
            return one, data
    return newest, None


async def _unknown(client: Client, request: ListMediaRequest, name: str) -> CommandError:
    """Return the error for an unknown name, with the known ones."""
    from nsml.v1.media_pb2 import ListMediaRequest

    everything = await client.media.page(ListMediaRequest(session=request.session))
    names = list(dict.fromkeys(one.name for one in everything.media))
    if name in names:
        what, why = f"{name!r} was not shown at that step", ""
    else:
        what = f"{name!r} was not shown"
        why = f"there are {', '.join(names[:_SHOWN])}" if names else "nothing was"
    return CommandError(
        what,
        code=ExitCode.NOT_FOUND,
        reason="NOT_FOUND",
        why=why,
        advice="\n".join(
            shell_line(["nsml", "media", *operands(request.session, item)])
            for item in near(name, names)
        )
        or f"nsml media {shell_word(request.session)}",
    )


def _export(app: App, request: ListMediaRequest, folder: Path) -> None:
    """Write durable media into new files, and print their paths."""
    from nsml.common.units import size_text

    check_folder_of(folder)
    progress = Progress(app, "fetching")
    try:
        exported = app.call(lambda client: _fetched(client, request, folder, progress))
    except OSError as error:
        raise CommandError(f"cannot write to {folder}", why=error.strerror or str(error)) from error
    finally:
        progress.close()
    remember(app, (path.parent if path.parent != folder else path for path in exported.paths))
    for path in exported.paths:
        app.write(str(path))
    app.say(f"{len(exported.paths)} files of {exported.session}: {size_text(exported.size)}")
    if exported.there:
        app.say(f"{exported.there} were there already and are left as they are")
    _tell_full(app, exported.is_full)
    if exported.absent:
        app.say(
            f"{exported.absent} are on their node still, or lost: nsml media {shell_word(request.session)}"
        )


async def _fetched(
    client: Client, request: ListMediaRequest, folder: Path, progress: Progress
) -> _Exported:
    from nsml.client.media import contents, pages

    done = _Exported()
    async with aclosing(pages(client, request)) as every:
        async for page in every:
            done.session, done.is_full = page.session, page.is_full
            wanted = []
            for one in page.media:
                path = folder / _path_of(one)
                if not one.root:
                    done.absent += 1
                elif path.exists():
                    done.there += 1
                else:
                    wanted.append(one)
                    done.expected += one.size_bytes
            async with aclosing(contents(client, wanted, shown_by=page.shown_by)) as found:
                async for one, data in found:
                    done.paths.append(_written(folder / _path_of(one), data))
                    done.size += len(data)
                    progress.update(done.size, max(done.expected, done.size))
    return done


def _written(path: Path, data: bytes) -> Path:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name[:_MOST_NAME_BYTES]}.part")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return path


def _path_of(one: Media) -> Path:
    """Return NAME/step-STEP-UNIQUE.ENDING below the folder: `/` in a name makes folders, none leads out of it."""
    from hashlib import sha256

    from nsml.view import media as view

    parts = [_short(folder_name(part)) for part in one.name.split("/")[:_MOST_DEPTH] if part]
    step = view.step_text(one) if one.HasField("step") else "none"
    unique = sha256(f"{one.attempt}.{one.rank}.{one.file}".encode()).hexdigest()[:8]
    rank = f"-rank{one.rank}" if one.rank else ""
    return Path(*parts, f"step-{step}{rank}-{unique}{view.ending(one)}")


def _short(part: str) -> str:
    """Shorten a file name to the limit of file systems."""
    if len(part.encode()) <= _MOST_NAME_BYTES:
        return part
    from hashlib import sha256

    digest = sha256(part.encode()).hexdigest()[:16]
    return f"{part.encode()[: _MOST_NAME_BYTES - 20].decode(errors='ignore')}~{digest}"
