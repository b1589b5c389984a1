"""OpenSSH's access to sessions: host names, options, and the known_hosts file."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.exits import CommandError, ExitCode
from nsml.client import contexts
from nsml.spec import ssh_hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.app import App
    from nsml.v1.ssh_keys_pb2 import GetJumpHostResponse

_SAFE_ADDRESS: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\]-]{0,260}:[0-9]{1,5}")
_SAFE_KEY: Final = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{1,200}={0,2}")
"""They become lines in files read by ssh."""
_USUAL_PORT: Final = "22"
_MOST_KEYS: Final = 500
_UNSAFE: Final = re.compile(r'["\n\r\\]|\$\{')


def replica_at(host: str) -> tuple[str, int]:
    """Return the session and rank of a host name."""
    try:
        return ssh_hosts.replica_at(host)
    except ValueError as error:
        raise CommandError(str(error), code=ExitCode.USAGE, why=ssh_hosts.RULE) from error


def options(app: App, host: str) -> list[tuple[str, str]]:
    """Return the ssh options of a host, as in its configuration: the first value of each counts.

    The proxy writes the host key to the file before ssh checks it.
    """
    proxy = [str(Path(sys.executable).parent / "nsml")]
    if app.flags.context:
        proxy += ["--context", app.flags.context]
    command = shlex.join([*proxy, "ssh-proxy"]).replace("%", "%%")
    return [
        # ssh passes it to a shell
        ("ProxyCommand", f"{command} -- {host}"),
        ("UserKnownHostsFile", _quoted(str(_known_hosts(app)).replace("%", "%%"))),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        ("HostKeyAlgorithms", "ssh-ed25519"),
        ("VerifyHostKeyDNS", "no"),
        ("UpdateHostKeys", "no"),
        ("CheckHostIP", "no"),
        ("CanonicalizeHostname", "no"),
        ("ForwardAgent", "no"),
        ("ForwardX11", "no"),
    ]


def _quoted(text: str) -> str:
    if _UNSAFE.search(text):
        raise CommandError(
            f"the file {text!r} cannot be named to ssh",
            advice="set NSML_CONFIG_DIR to a folder with a simpler name",
        )
    return f'"{text}"'


def block(app: App) -> str:
    """Return the block of ssh's configuration for all sessions."""
    lines = [f"    {name} {value}" for name, value in options(app, "'%n'")]
    # %n is within quotes, and a name with a quote would break out. A host that matches no block leads nowhere.
    return "\n".join(['Host *.nsml "!*\'*"', *lines, ""])


def jump_block(found: GetJumpHostResponse) -> str:
    """Return the configuration for a machine without nsml: two parts, each for its own file."""
    addresses = (found.address, *found.other_addresses)
    is_safe = all(map(_SAFE_ADDRESS.fullmatch, addresses)) and all(
        map(_SAFE_KEY.fullmatch, (found.host_key, found.authority))
    )
    if not is_safe:
        raise CommandError("the platform's jump host cannot be understood")
    known = ",".join(map(_known_name, addresses))
    others = "".join(f"    # or: ProxyJump {one}\n" for one in found.other_addresses)
    return f"""\
# ~/.ssh/config
Host *.nsml
    ProxyJump {found.address}
{others}    HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com
    CanonicalizeHostname no
    ForwardAgent no
    ForwardX11 no

# ~/.ssh/known_hosts: the jump host, and the platform that vouches for each session
{known} {found.host_key}
@cert-authority *.nsml {found.authority}
"""


def _known_name(address: str) -> str:
    """Return the address in known_hosts format."""
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    return bare if port == _USUAL_PORT else f"[{bare}]:{port}"


def _known_hosts(app: App) -> Path:
    return Path(contexts.config_folder(app.environ)).absolute() / "ssh_known_hosts"


def note_host_key(app: App, host: str, key: str) -> None:
    """Store a host's key, the only one accepted by ssh."""
    file = _known_hosts(app)
    # ssh looks it up in lower case
    name = host.lower()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(file.with_name(f"{file.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = _lines(file)
        line = f"{name} {key}"
        if line in lines:
            return
        others = [one for one in lines if one.split(" ", 1)[0] != name]
        contexts.write_private(file, "\n".join([*others[-_MOST_KEYS:], line, ""]))
    finally:
        os.close(lock)


def _lines(file: Path) -> Sequence[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()


def configuration(app: App) -> Path:
    """Return the path of our file, to be included by ssh's own."""
    return Path(contexts.config_folder(app.environ)).absolute() / "ssh_config"


def include_line(app: App) -> str:
    """Return the line to include it in ssh's own configuration."""
    return f"Include {_quoted(str(configuration(app)))}"
