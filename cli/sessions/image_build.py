"""image build: a Dockerfile is built on a node, by a session that runs nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.signals import ended_as_by_ctrl_c
from nsml.common.shell import option_words, shell_line
from nsml.spec.run_flags import FLAGS, Unreadable

if TYPE_CHECKING:
    from nsml.v1.sessions_pb2 import Session

_ASKED: Final[dict[str, Any]] = {
    **{one.parameter: () if one.kind.is_repeated else None for one in FLAGS},
    "positional": None,
    "is_argv": True,
    "env_file": (),
    "visibility": None,
    "sends_code": True,
    "args": "",
    "max_size": None,
    "rehash": False,
    "queue": True,
}
"""What `run` is asked for where nothing is typed."""
_BUILD_ARG: Final = next(one for one in FLAGS if one.parameter == "build_arg")
_STOPPED: Final = "image build was interrupted"


@command(
    "build",
    examples=[
        "nsml image build",
        "nsml image build ~/code/train -f docker/train.Dockerfile --build-arg PYTHON=3.12",
    ],
)
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option(
    "-f",
    "--file",
    "dockerfile",
    default="Dockerfile",
    metavar="FILE",
    help="The Dockerfile, by its path in the folder; default: Dockerfile.",
)
@click.option(
    "--build-arg",
    multiple=True,
    metavar="NAME=VALUE",
    help=_BUILD_ARG.help,
)
@click.option("--refresh", is_flag=True, help="Pull its images and build all steps anew.")
@click.option("--pod", metavar="NAME", help="On a node of this pod.")
@pass_app
def build(
    app: App,
    *,
    folder: Path,
    dockerfile: str,
    build_arg: tuple[str, ...],
    refresh: bool,
    pod: str | None,
) -> int:
    """Build a Dockerfile on a node, as nsml run --dockerfile in that folder would.

    It shows the build, which is the preparation of a session without GPUs that does nothing, and prints the
    id of the image. Sessions with the same Dockerfile and files find it on that node; others find the
    steps. Ctrl-C stops the build.
    """
    from cli.sessions.logs import LogReader, LogReaders, code_of_end, end_words, follow_to_end
    from cli.sessions.preflight import check_first
    from cli.sessions.run import options_of, submitted
    from nsml.common.text import visible

    try:
        os.chdir(folder)
    except OSError as error:
        raise CommandError(
            f"{visible(str(folder))} is not a folder", code=ExitCode.USAGE, why=error.strerror or ""
        ) from None
    asked = {
        **_ASKED,
        "dockerfile": dockerfile,
        "build_arg": tuple(map(_pair, build_arg)),
        "refresh": refresh,
        "pod": pod,
        "memo": f"image build {dockerfile}",
    }
    options = options_of(asked, ["true"], [])
    repeat = [word for text in build_arg for word in option_words("--build-arg", text)]
    options.request.command[:] = (
        "nsml",
        "image",
        "build",
        *option_words("-f", dockerfile),
        *repeat,
    )
    check_first(app, options)
    with ended_as_by_ctrl_c():
        session = submitted(app, options)
        if session is None:
            return ExitCode.INTERRUPTED
        app.say(f"building in session {session.name}")
        reader = LogReaders([LogReader(app, session)], in_place=True)
        try:
            ended = app.call(
                lambda client: follow_to_end(client, app, session, shows=reader, prepares=True)
            )
        except KeyboardInterrupt:
            _stop(app, session)
            return ExitCode.INTERRUPTED
    if code := code_of_end(ended):
        app.say(end_words(ended, is_log_shown=True))
        return code
    ran = next(iter(ended.replicas), None)
    image, node = (ran.image, ran.node) if ran is not None else ("", "")
    app.write(f"built {visible(image)} on {visible(node)}")
    if app.is_for_people:
        app.say(f"  use: {shell_line(['nsml', 'run', '--dockerfile', dockerfile, *repeat])}")
    return ExitCode.OK


def _pair(text: str) -> tuple[str, str]:
    try:
        name, value = _BUILD_ARG.kind.read(text)
    except Unreadable as error:
        raise CommandError(
            str(error), code=ExitCode.USAGE, why=error.why, advice=error.advice
        ) from None
    return name, value


def _stop(app: App, session: Session) -> None:
    """Stop the build; where that cannot be said to anybody, say how."""
    from nsml.client.errors import ClientError

    with suppress(KeyboardInterrupt):
        try:
            app.call(lambda client: client.sessions.stop(session.id, reason=_STOPPED))
        except (ClientError, CommandError) as error:
            app.say(f"not stopped: {error}; nsml stop {session.name}")
        else:
            app.say(f"stopped the build in session {session.name}")
