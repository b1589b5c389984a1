"""competition export, verify: everything as one signed file, which others check."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.atomic_file import check_folder_of, whole_file
from cli.competitions.options import name_argument
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_one
from cli.sessions.written_files import remember
from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsml.client.calls import Client

_FORMAT = "nsml.competition.v1"


@command(
    "export",
    examples=[
        "nsml competition export digits-cup -o digits-cup.json",
        "nsml competition export digits-cup | gzip > digits-cup.json.gz",
    ],
)
@name_argument()
@click.option(
    "-o",
    "--out",
    "target",
    metavar="FILE",
    default="-",
    help="Write this file, when it is complete. Default: stdout (-).",
)
@pass_app
def export(app: App, *, name: str, target: str) -> None:
    """Write all of it as one signed JSON file.

    Of your competition: settings, teams, all submissions with all versions of their scores and digests, standings, statistics.
    nsml competition verify checks it with the platform's certificate, without the platform.
    """

    async def write(client: Client, put: Callable[[bytes], Any]) -> None:
        parts = client.competitions.export(name)
        async with aclosing(parts):
            async for part in parts:
                put(part)

    if target == "-":
        app.call(lambda client: write(client, lambda part: app.stdout.write(part.decode())))
        app.stdout.flush()
        return
    check_folder_of(Path(target))
    with whole_file(Path(target)) as file:
        app.call(lambda client: write(client, file.write))
    remember(app, [Path(target)])
    act = shell_line(["nsml", "competition", "verify", target])
    app.say(visible(f"wrote {target}; others check it with: {act}"))


@command(
    "verify",
    reads=True,
    examples=[
        "nsml competition verify digits-cup.json",
        "nsml competition verify digits-cup.json --ca lab.pem",
    ],
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--ca",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The platform's certificate, PEM; default: that of your context.",
)
@pass_app
def verify(app: App, *, file: Path, ca: Path | None) -> None:
    """Check that an export was not changed.

    Needs the platform's certificate alone; it calls nobody. A file that was changed ends with exit code 1.
    """
    from nsml.common.signed_json import SignatureInvalid
    from nsml.common.signed_json import verify as checked

    authority = ca or _authority(app)
    try:
        document = checked(file, authority.read_bytes())
    except SignatureInvalid as error:
        raise CommandError(
            f"{file} is not valid",
            reason="SIGNATURE",
            why=str(error),
            advice="--ca FILE    the certificate of the platform that exported it",
        ) from error
    except ValueError as error:
        raise CommandError(
            f"{authority} is not a certificate in PEM", code=ExitCode.USAGE
        ) from error
    record = _summary(document)
    name, exported_at = record["name"], record["exported_at"]
    counts = f"{counted(record['teams'], 'team')}, {counted(record['submissions'], 'submission')}"
    lines = [f"{file} is valid: {name}, {counts}, exported at {exported_at}"]
    write_one(app, record, [visible(line) for line in lines])


def _summary(document: Any) -> dict[str, Any]:
    """Return what a signed document is about."""
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise CommandError(
            "it is signed by the platform, but is no competition that this version knows",
            why=f"its format is not {_FORMAT}",
        )
    competition = document["competition"]
    return {
        "name": f"{competition['owner']}/{competition['name']}",
        "is_valid": True,
        "platform": document["platform"],
        "exported_at": document["exported_at"],
        "state": competition["state"],
        "teams": len(document["teams"]),
        "submissions": len(document["submissions"]),
    }


def _authority(app: App) -> Path:
    """Return the file of the platform's certificate; CommandError: the context has none."""
    from cli.local.data_folder import CONTEXT_NAME, data_folder

    context = app.context
    if context.ca:
        return Path(context.ca)
    if context.name == CONTEXT_NAME:
        found = data_folder(None, app.environ).authority
        if found.exists():
            return found
    raise CommandError(
        f"the context {context.name} has no certificate of the platform",
        code=ExitCode.USAGE,
        why="it trusts this machine, or public authorities, instead",
        advice="--ca FILE    the platform's certificate: ca.pem in the data folder of a control plane",
    )
