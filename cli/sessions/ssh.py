"""ssh: OpenSSH into running sessions, and with it scp, sftp, rsync, port forwarding, and editors that use it."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cli.app import App
from cli.arguments import session_argument
from cli.exits import CommandError, ExitCode
from cli.group import WrappingCommand, command, pass_app
from cli.sessions import ssh_files
from cli.sessions.byte_streams import ByteInput, ByteOutput, widen
from cli.sessions.replicas import replica_of
from cli.sessions.targets import not_ended
from nsml.client import contexts
from nsml.spec.ssh_hosts import host_of

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.client.ssh import SshServer

_PROGRAM: Final = "ssh"
_MUCH: Final = 128 << 10
_LITTLE: Final = 4 << 10
_PAUSE_S: Final = 0.005
"""Pause after small client messages during a large download: ssh acknowledges every 100 KB, and each message
costs as much on the way as a piece of the download. ssh's window is 2 MB, so nothing waits for it.
"""


@command(
    "ssh",
    cls=WrappingCommand,
    examples=[
        "nsml ssh @last",
        "nsml ssh 12:1 -- nvidia-smi",
        "nsml ssh @last -N -L 8888:localhost:8888",
    ],
)
@session_argument(metavar="SESSION[:RANK]")
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="[SSH OPTION...] [-- COMMAND...]"
)
@pass_app
def ssh(app: App, *, session: str, words: tuple[str, ...]) -> None:
    """Connect to a running session with ssh.

    It runs the ssh of this machine (OpenSSH), which checks the session's host key; what follows
    the session is passed on to it. Programs start next to the session's program, as with nsml sh;
    forwarded ports (-L, -D) are those of the session. Nothing has to be installed in the session.

    For scp, rsync and editors, see nsml ssh-config. The exit code is that of ssh.
    """
    program = shutil.which(_PROGRAM, path=app.environ.get("PATH"))
    if program is None:
        raise CommandError(
            "there is no ssh on this machine",
            why="nsml ssh runs OpenSSH's",
            advice="install openssh-client; or nsml sh, which needs nothing",
        )
    reference, rank = replica_of(session)

    async def find(client: Client) -> str:
        return (await not_ended(client, reference)).id

    host = host_of(app.call(find), rank)
    given = [f"-o{name}={value}" for name, value in ssh_files.options(app, host)]
    app.stdout.flush()
    app.stderr.flush()
    os.execve(program, [_PROGRAM, *given, host, *words], dict(app.environ))  # noqa: S606


@command(
    "ssh-proxy",
    examples=["nsml ssh-proxy 12.nsml", "nsml ssh-proxy 1.12.nsml"],
)
@click.argument("host", metavar="SESSION.nsml")
@pass_app
def ssh_proxy(app: App, *, host: str) -> None:
    """Connect stdin and stdout to the ssh server of a session.

    ssh runs it as its ProxyCommand: see nsml ssh-config. HOST is SESSION.nsml, or
    RANK.SESSION.nsml; last.nsml is @last. Before anything else, it writes the session's host key,
    which the platform vouches for, to the file that ssh checks it against.
    """
    reference, rank = ssh_files.replica_at(host)

    async def join(client: Client) -> None:
        from nsml.common.c_memory import keep_freed_memory

        keep_freed_memory()
        async with client.sessions.open_ssh(reference, rank=rank) as server:
            await asyncio.to_thread(ssh_files.note_host_key, app, host, server.host_key)
            await _joined(app, server)

    app.call(join, waits=False)


async def _joined(app: App, server: SshServer) -> None:
    """Run until the server or ssh has ended."""
    widen(app.stdin.fileno(), app.stdout.fileno())
    source, output = ByteInput(app.stdin.fileno()), ByteOutput()

    much_came = False

    async def give() -> None:
        from nsml.client.errors import ClientError

        nonlocal much_came
        with suppress(ClientError):  # the reader gets it, too
            while data := await source.read():
                await server.write(data)
                if much_came and len(data) < _LITTLE:
                    much_came = False
                    await asyncio.sleep(_PAUSE_S)
            await server.end()

    giving = asyncio.create_task(give())
    try:
        while data := await server.read():
            much_came = much_came or len(data) >= _MUCH
            await output.write(app.stdout.fileno(), data)
    finally:
        source.close()
        giving.cancel()


@command(
    "ssh-config",
    examples=["nsml ssh-config", "nsml ssh-config --install", "nsml ssh-config --jump"],
)
@click.option("--install", "installs", is_flag=True, help="Include it in ~/.ssh/config.")
@click.option("--jump", "jumps", is_flag=True, help="For a machine without nsml: a jump host.")
@pass_app
def ssh_config(app: App, *, installs: bool, jumps: bool) -> None:
    """Print the configuration of ssh for sessions.

    With it, SESSION.nsml is a host for ssh, scp, sftp, rsync, and for editors that use ssh:
    12.nsml, last.nsml for @last, 1.12.nsml for replica (rank) 1 of session 12. In scp and rsync
    use a number or an id (nsml getid): they take a name with a slash for a file.

    --install writes it to a file of its own, and a line that includes it at the top of
    ~/.ssh/config, after asking.

    --jump prints lines for ~/.ssh/config and ~/.ssh/known_hosts of a machine without nsml, if the
    platform has a jump host (nsml up --ssh). There a public key says who you are: nsml key add.
    """
    if jumps:
        if installs:
            raise click.UsageError("--jump is for another machine: --install cannot write there")
        found = app.call(lambda client: client.ssh_keys.jump_host())
        app.stdout.write(ssh_files.jump_block(found))
        return
    text = ssh_files.block(app)
    if not installs:
        app.stdout.write(text)
        return
    home = app.environ.get("HOME") or str(Path("~").expanduser())
    theirs = (Path(home) / ".ssh" / "config").resolve()
    line = ssh_files.include_line(app)
    before = theirs.read_text(encoding="utf-8") if theirs.exists() else ""
    is_new = line not in before.splitlines()
    if is_new and not app.agrees(f"Add this line to {theirs}?\n  {line}\n", flag="--yes"):
        raise CommandError("nothing was changed", code=ExitCode.USAGE)
    contexts.write_private(ssh_files.configuration(app), text)
    if is_new:
        contexts.write_private(theirs, f"{line}\n\n{before}" if before else f"{line}\n")
    app.say("installed: ssh 12.nsml, scp model.pt last.nsml:")
