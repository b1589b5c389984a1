"""env build: environments of a code folder, built on nodes before a session needs them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import NODE
from cli.cluster.node_targets import AT_ONCE, names_of, nodes_words
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list

if TYPE_CHECKING:
    from asyncio import Semaphore
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.resources_pb2 import EnvironmentFiles
    from nsml.view.environments import BuildOnNode

_POLL_EVERY_S, _MOST_POLLS_PER_S = 0.5, 32
_NODES_AT_ONCE = 160
"""Each is polled every 5 s: agents cancel builds not polled for 20 s."""
_UNREACHABLE_FOR_S = 60.0
"""Time after which an unreachable node's build counts as failed."""
_CANCELLED_WITHIN_S = 5.0
"""Timeout of cancellations, in seconds; later, agents notice the missing polls."""
MOST_FILES_BYTES = 3 << 20
_ANY_SIZE = 1 << 60


@command(
    "build",
    reads=True,
    examples=[
        "nsml env build",
        "nsml env build ../project --node 'gpu-*'",
        "nsml env build --all-nodes --lock requirements.lock",
    ],
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    type=NODE,
    metavar="NODE",
    help="On this node, or nodes that fit a glob; repeatable.",
)
@click.option("--all-nodes", is_flag=True, help="On all connected nodes.")
@click.option(
    "-e",
    "--entry",
    default="main.py",
    metavar="FILE",
    help="The program, whose script block counts (PEP 723). Default: main.py.",
)
@click.option("--refresh", is_flag=True, help="Build again what was built earlier.")
@click.option(
    "--lock",
    "lock_file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Write the packages with versions and hashes to FILE; - prints them.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the nodes that would be asked, and do nothing."
)
@pass_app
def build(
    app: App,
    *,
    folder: Path,
    nodes: tuple[str, ...],
    all_nodes: bool,
    entry: str,
    refresh: bool,
    lock_file: Path | None,
    dry_run: bool,
) -> int:
    """Build the environment of a code folder on nodes.

    So sessions need not wait for it. Nodes read the files with packages as for nsml run of the FOLDER, and build what a session of
    yours would have there. Other files are not sent. Without --node and --all-nodes it is built on
    the only node. Ctrl-C ends the builds. Exit code 9: some nodes have it,
    others do not.
    """
    files = _files(app, folder, entry)
    files.refresh = refresh
    chosen = app.call(partial(_nodes, words=nodes, are_all=all_nodes))
    if dry_run:
        app.say(f"would build on {nodes_words(chosen)}")
        for one in chosen:
            app.write(one)
        app.say("nothing was done (--dry-run)")
        return ExitCode.OK
    app.say(f"building on {nodes_words(chosen)}")
    answers = app.call(partial(built_on, app=app, files=files, nodes=chosen))
    is_printed = lock_file == Path("-")
    # for programs, responses include the lock
    if lock_file is not None and (app.is_for_people or not is_printed):
        _write_lock(app, answers, lock_file)
    if not (is_printed and app.is_for_people):
        write_answers(app, answers)
    return code_of(answers)


def code_of(answers: Sequence[BuildOnNode]) -> ExitCode:
    """Return the exit code: all, some or no nodes have built it."""
    done = sum(one.is_done for one in answers)
    if done == len(answers):
        return ExitCode.OK
    return ExitCode.PARTLY if done else ExitCode.FAILED


def _files(app: App, folder: Path, entry: str) -> EnvironmentFiles:
    """Return only the files that list the code's needs; CommandError for needs that no node installs."""
    from cli.sessions.code_checks import Code, warn_of_unread
    from nsml.common.text import visible
    from nsml.common.units import counted
    from nsml.content.errors import EmptyFolder
    from nsml.content.ignore import rules_for
    from nsml.content.listing import FolderFiles, list_folder
    from nsml.packages.requirements import RequirementsRefused, read_requirements
    from nsml.v1.resources_pb2 import EnvironmentFiles

    if not folder.is_dir():
        raise CommandError(f"there is no folder {visible(str(folder))}", code=ExitCode.USAGE)
    try:
        listed = list_folder(folder, ignore=rules_for(folder), max_bytes=_ANY_SIZE)
    except EmptyFolder:
        listed = FolderFiles(root=folder, files=(), max_bytes=0)
    code, texts = Code(folder, listed), {}

    def text(name: str) -> str | None:
        found = code.text(name)
        # a program without a script block lists no packages, and is not sent
        if found is not None and (name != entry or "# /// script" in found):
            texts[name] = found
        return found

    try:
        required = read_requirements(text, entry=entry, files=sorted(code.files), may_build=True)
    except RequirementsRefused as error:
        raise CommandError(
            error.message,
            code=ExitCode.USAGE,
            reason="REQUIREMENTS",
            why=error.why,
            advice=error.advice,
        ) from error
    for note in required.notes:
        app.say(f"note: {note}")
    warn_of_unread(app, code, [entry] if entry in code.files else [], required)
    count = counted(required.count, "package")
    source = (
        f"from {visible(required.source)} ({count})"
        if required.source
        else "no packages are listed"
    )
    app.say(f"environment: {source}")
    files = EnvironmentFiles(texts=texts, entry=entry if entry in texts else "")
    if files.ByteSize() > MOST_FILES_BYTES:
        raise CommandError(
            f"the files that list packages have over {MOST_FILES_BYTES >> 20} MiB",
            code=ExitCode.USAGE,
            advice="nsml run    which has them built, too",
        )
    return files


async def _nodes(client: Client, *, words: Sequence[str], are_all: bool) -> list[str]:
    from nsml.v1.nodes_pb2 import NODE_STATE_FENCED, NODE_STATE_SILENT

    if words and are_all:
        raise CommandError("--node and --all-nodes exclude each other", code=ExitCode.USAGE)
    if words:
        return await names_of(client, words)
    away = {NODE_STATE_SILENT, NODE_STATE_FENCED}
    found = [one.name for one in await client.nodes.every() if one.state not in away]
    if not found:
        raise CommandError("no node is connected", code=ExitCode.NOT_FOUND, advice="nsml node ls")
    if len(found) > 1 and not are_all:
        raise CommandError(
            f"there are {len(found)} nodes",
            code=ExitCode.USAGE,
            why="an environment is built on one node at a time or on all",
            advice=f"nsml env build --node {found[0]}\nnsml env build --all-nodes",
        )
    return found


async def built_on(
    client: Client, *, app: App, files: EnvironmentFiles, nodes: Sequence[str]
) -> list[BuildOnNode]:
    """Build on nodes, and print their output; Ctrl-C cancels the builds."""
    import asyncio

    from nsml.common.concurrency import each_at_once

    room = asyncio.Semaphore(AT_ONCE)
    every_s = max(_POLL_EVERY_S, min(len(nodes), _NODES_AT_ONCE) / _MOST_POLLS_PER_S)

    builds: list[_Build] = []

    async def on(node: str) -> BuildOnNode:
        build = _Build(client, app, files, node, room, is_alone=len(nodes) == 1)
        builds.append(build)
        while (answer := await build.ask()) is None:
            await client.clock.sleep(every_s)
        return answer

    try:
        return await each_at_once(nodes, on, most=_NODES_AT_ONCE)
    except asyncio.CancelledError:  # Ctrl-C, or --timeout
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCELLED_WITHIN_S):
                await each_at_once(builds, _Build.cancel, most=AT_ONCE)
        raise


class _Build:
    """A build on one node; it continues while its progress is polled."""

    def __init__(
        self,
        client: Client,
        app: App,
        files: EnvironmentFiles,
        node: str,
        room: Semaphore,
        *,
        is_alone: bool,
    ) -> None:
        self._client = client
        self._app = app
        self._files = files
        self._node = node
        self._room = room
        self._prefix = "" if is_alone else f"{node}: "
        self._build_id = ""
        self._has_ended = False
        self._known = 0
        self._rest = b""
        self._waits = ""
        self._answered_at = client.clock.monotonic()

    async def ask(self) -> BuildOnNode | None:
        """Poll once: the result, or None while it runs; prints new output."""
        from nsml.client.errors import ClientError, NotSignedIn, Unavailable
        from nsml.v1 import resources_pb2 as pb
        from nsml.view.environments import BuildOnNode, build_word

        now, calls = self._client.clock.monotonic(), self._client.environments
        try:
            async with self._room:
                if self._build_id:
                    found = await calls.build_state(self._node, self._build_id, self._known)
                else:
                    found = await calls.build(self._node, self._files)
        except NotSignedIn:
            raise
        except ClientError as error:
            is_late = now > self._answered_at + _UNREACHABLE_FOR_S
            if isinstance(error, Unavailable) and self._build_id and not is_late:
                return None  # another control plane, or the agent, will be back
            why = ": ".join(filter(None, [str(error), error.why]))
            return BuildOnNode(node=self._node, why=why)
        self._answered_at = now
        if found.state == pb.ENVIRONMENT_BUILD_STATE_UNKNOWN:
            # to an agent that was restarted: begun again
            self._build_id, self._known, self._rest = "", 0, b""
            return None
        self._build_id = found.build_id
        self._show(found.log)
        self._known = found.log_offset + len(found.log)
        if found.state == pb.ENVIRONMENT_BUILD_STATE_RUNNING:
            if found.words not in {"", self._waits}:
                self._say(found.words)
            self._waits = found.words
            return None
        self._has_ended = True
        self._show(b"\n" if self._rest else b"")
        answer = BuildOnNode(node=self._node, build=found)
        self._say(build_word(answer))
        return answer

    async def cancel(self) -> None:
        """Cancel the build, if it runs."""
        from nsml.client.errors import ClientError

        if self._build_id and not self._has_ended:
            with suppress(ClientError):
                await self._client.environments.build_state(
                    self._node, self._build_id, self._known, cancel=True
                )

    def _show(self, log: bytes) -> None:
        *lines, self._rest = (self._rest + log).split(b"\n")
        for line in lines:
            self._say(line.decode(errors="replace"))

    def _say(self, text: str) -> None:
        from nsml.common.text import visible

        self._app.say(f"{self._prefix}{visible(text)}")


def _write_lock(app: App, answers: Sequence[BuildOnNode], place: Path) -> None:
    """Write the lock of the first node with one; report nodes with another."""
    from nsml.common.text import visible
    from nsml.packages.locks import LockRefused, differences, read_lock

    having = [one for one in answers if one.lock]
    if not having:
        raise CommandError(
            "there is no lock to write",
            code=ExitCode.FAILED,
            why="no node has built packages with a lock",
        )
    first = having[0]
    try:
        read_lock(first.lock)
        others = {
            one.node: differences(one.lock, first.lock) for one in having if one.lock != first.lock
        }
    except LockRefused as error:
        raise CommandError("a lock cannot be read", code=ExitCode.FAILED, why=str(error)) from error
    # conda locks have lines without a package, needed by conda
    lines = [visible(line) for line in first.lock.split("\n")[:-1]]
    for node, words in others.items():
        app.say(f"warning: {node} has other packages than {first.node}: {words}")
    if place == Path("-"):
        for line in lines:
            app.write(line)
        return
    try:
        place.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{place} cannot be written", code=ExitCode.FAILED, why=error.strerror or str(error)
        ) from error
    app.say(f"lock: {place}")


def write_answers(app: App, answers: Sequence[BuildOnNode]) -> None:
    """Print a row for each node."""
    from nsml.view.environments import BUILD_COLUMNS, BuildOnNode, build_record

    write_list(
        app,
        answers,
        columns=BUILD_COLUMNS,
        record=build_record,
        name="node",
        blank=BuildOnNode(node=""),
    )
