"""image build: builds a Dockerfile on a node, in a session that runs nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App
from cli.arguments import NODE
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.signals import ended_as_by_ctrl_c
from nsml.common.shell import option_words, shell_line
from nsml.spec.run_flags import FLAGS, Unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.sessions.run_request import RunOptions
    from nsml.v1.resources_pb2 import EnvironmentFiles
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
"""Parameters of `run` without any options."""
_BUILD_ARG: Final = next(one for one in FLAGS if one.parameter == "build_arg")
_STOPPED: Final = "image build was interrupted"


@command(
    "build",
    examples=[
        "nsml image build",
        "nsml image build ~/code/train -f docker/train.Dockerfile --build-arg PYTHON=3.12",
        "nsml image build --node 'gpu-*'",
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
@click.option(
    "--node",
    "nodes",
    multiple=True,
    type=NODE,
    metavar="NODE",
    help="On this node, or nodes that fit a glob, without a session; repeatable.",
)
@click.option("-t", "--tag", metavar="NAME", hidden=True)
@pass_app
def build(
    app: App,
    *,
    folder: Path,
    dockerfile: str,
    build_arg: tuple[str, ...],
    refresh: bool,
    pod: str | None,
    nodes: tuple[str, ...],
    tag: str | None,
) -> int:
    """Build a Dockerfile on a node, as nsml run --dockerfile in that folder would.

    It shows the build, which is the preparation of a session without GPUs that does nothing, and prints the
    id of the image. Sessions with the same Dockerfile and files find it on that node; others find the
    steps. With --node it is built on these nodes, without a session; the files may have 3 MiB then.
    Ctrl-C stops the build.
    """
    from cli.sessions.logs import LogReader, LogReaders, code_of_end, end_words, follow_to_end
    from cli.sessions.preflight import check_first
    from cli.sessions.run import options_of, submitted
    from nsml.common.text import visible

    if tag is not None:
        raise CommandError(
            "images that nodes build have no names",
            code=ExitCode.USAGE,
            why="another node would have another image under the name, or ask a registry for it",
            advice="nsml run --dockerfile Dockerfile    which finds what was built, on any node\n"
            "nsml run --image REGISTRY/NAME    for an image that you have pushed",
        )
    if nodes and pod:
        raise CommandError("--node and --pod exclude each other", code=ExitCode.USAGE)
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
    if nodes:
        return _on_nodes(app, options, nodes)
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


def _on_nodes(app: App, options: RunOptions, words: Sequence[str]) -> int:
    """Build on the named nodes, sending the folder's files with the order."""
    from functools import partial

    from cli.cluster.environment_builds import built_on, code_of, write_answers
    from cli.cluster.node_targets import names_of, nodes_words

    files = _files(app, options)
    chosen = app.call(lambda client: names_of(client, words))
    app.say(f"building on {nodes_words(chosen)}")
    answers = app.call(partial(built_on, app=app, files=files, nodes=chosen))
    write_answers(app, answers)
    return code_of(answers)


def _files(app: App, options: RunOptions) -> EnvironmentFiles:
    """Return the build context: the files that `nsml run` would send. Raises CommandError."""
    from cli.cluster.environment_builds import MOST_FILES_BYTES
    from cli.sessions.code_checks import Code, check_dockerfile
    from nsml.content.ignore import rules_for
    from nsml.content.listing import list_folder
    from nsml.v1.resources_pb2 import EnvironmentFiles

    folder = Path.cwd()
    code = Code(folder, list_folder(folder, ignore=rules_for(folder)))
    check_dockerfile(app, code, options)
    files = EnvironmentFiles(
        dockerfile=options.spec.dockerfile,
        build_arguments=options.spec.build_arguments,
        refresh=options.spec.refresh_environment,
    )
    size = sum(one.size for one in code.files.values())
    for path, one in code.files.items() if size <= MOST_FILES_BYTES else ():
        content = code.read(path)
        if content is not None:
            files.context.add(path=path, content=content, executable=bool(one.mode & 0o100))
    if size > MOST_FILES_BYTES or files.ByteSize() > MOST_FILES_BYTES:
        raise CommandError(
            f"the files of the folder have over {MOST_FILES_BYTES >> 20} MiB",
            code=ExitCode.USAGE,
            why="--node sends them with the order",
            advice="nsml image build    without --node; .nsmlignore leaves out files",
        )
    return files


def _pair(text: str) -> tuple[str, str]:
    try:
        name, value = _BUILD_ARG.kind.read(text)
    except Unreadable as error:
        raise CommandError(
            str(error), code=ExitCode.USAGE, why=error.why, advice=error.advice
        ) from None
    return name, value


def _stop(app: App, session: Session) -> None:
    """Stop the build; if that fails, print how."""
    from nsml.client.errors import ClientError

    with suppress(KeyboardInterrupt):
        try:
            app.call(lambda client: client.sessions.stop(session.id, reason=_STOPPED))
        except (ClientError, CommandError) as error:
            app.say(f"not stopped: {error}; nsml stop {session.name}")
        else:
            app.say(f"stopped the build in session {session.name}")
