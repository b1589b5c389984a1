"""The data folder of a platform, or of a joined node, on this machine.

DATA/
    local.json          choices of `nsml up` or `nsml join`, kept for the next one
    lock                held while up, down or join work here
    controlplane.toml   settings, written at each start
    controlplane.pid    its process
    controlplane.log
    controlplane/       its data; ready.json, admin.token, node.token
    agent.toml  agent.pid  agent.log
    agent.site.toml     the administrator's own settings: read by the agent, never written
    agent/              the agent's data; ready.json, replicas/
    trust/              key and certificates of a node connected to other machines' control planes
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.exits import CommandError, ExitCode
from cli.local import processes
from nsml.client.contexts import Context, write_private
from nsml.client.trust import SERVER_NAME
from nsml.spec.reserved_names import is_reserved_for_platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cli.local.processes import Program

CONTROL_PLANE = "controlplane"
AGENT = "agent"
TITLES = {CONTROL_PLANE: "control plane", AGENT: "agent"}
DEFAULT_PORT = 18553
CONTEXT_NAME = "local"

_FORGE = re.compile(r"[^a-z0-9_.-]+|\.+(?=\.|\Z)")

NO_HTTP = "none"
"""Instead of an address: HTTP is disabled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The setup of a data folder.

    Attributes:
        coordination: "embedded", "etcd" (a child of the control plane), or URLs of an etcd cluster
            separated by commas; "auto" before the first start, and "" on a joined node.
        etcd_ca, etcd_cert, etcd_key: PEM files for an etcd cluster with TLS; empty: none.
        etcd_user, etcd_password_file: for an etcd cluster with users; empty: none.
        history: URL of a PostgreSQL database, without a password; empty: SQLite in the folder.
        objects: URL of a bucket or of a mounted folder; empty: in the folder.
        s3_endpoint: URL of a bucket's service; empty: AWS's, or the environment's.
        platform_key: file that opens a shared platform's keys; empty: in the folder.
        port: on the loopback, for users of this machine.
        listen: HOST:PORT with TLS for other machines; agents dial the next port, tunnels use the third after it. Empty:
            none.
        http: HOST:PORT for browsers, health and metrics; "none": disabled; empty: not chosen yet.
        ssh: HOST:PORT of the jump host; empty: there is none.
        server: a joined node only: HOST:PORT of the platform.
        agents: a joined node only: HOST:PORT of its listener for agents, once joined.
        node: name of this machine as a node.
        simulate_gpus: 0 for the machine's own GPUs.
        isolation: the agent's isolation of sessions; "auto": as far as the machine allows.
        has_agent: whether this machine runs sessions.
        admin: name of the first administrator.
    """

    coordination: str = "auto"
    etcd_ca: str = ""
    etcd_cert: str = ""
    etcd_key: str = ""
    etcd_user: str = ""
    etcd_password_file: str = ""
    history: str = ""
    objects: str = ""
    s3_endpoint: str = ""
    platform_key: str = ""
    port: int = DEFAULT_PORT
    listen: str = ""
    http: str = ""
    ssh: str = ""
    server: str = ""
    agents: str = ""
    node: str = ""
    simulate_gpus: int = 0
    isolation: str = "auto"
    has_agent: bool = True
    admin: str = ""

    @property
    def is_shared(self) -> bool:
        """Whether other control planes may serve the same platform."""
        return bool("://" in self.coordination and self.history and self.objects)

    @property
    def http_address(self) -> str:
        """HOST:PORT of the HTTP server; empty: disabled."""
        return "" if self.http == NO_HTTP else self.http

    @property
    def is_joined(self) -> bool:
        """Whether the control plane is elsewhere."""
        return bool(self.server)


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The paths and running programs of a data folder."""

    path: Path

    @property
    def choices_file(self) -> Path:
        """The record of the folder's setup."""
        return self.path / "local.json"

    @property
    def trust(self) -> Path:
        """Key and certificates of a node connected to other machines' control planes."""
        return self.path / "trust"

    @property
    def admin_token(self) -> Path:
        """Token of an administrator, kept valid by the control plane at each of its starts."""
        return self.path / CONTROL_PLANE / "admin.token"

    @property
    def authority(self) -> Path:
        """Certificate of the platform's authority: others identify it by its digest."""
        return self.path / CONTROL_PLANE / "ca.pem"

    @property
    def node_token(self) -> Path:
        """Token of this machine's agent for its node."""
        return self.path / CONTROL_PLANE / "node.token"

    def settings(self, name: str) -> Path:
        """The settings file of a program."""
        return self.path / f"{name}.toml"

    def site_settings(self, name: str) -> Path:
        """The administrator's own settings file of a program, which may not exist."""
        return self.path / f"{name}.site.toml"

    def write_settings(self, name: str, settings: Mapping[str, object]) -> Path:
        """Rewrite the settings file of a program, with a note on the place for own settings."""
        file, site = self.settings(name), self.site_settings(name).name
        head = f"# nsml overwrites this file: put your own settings into {site}, beside it.\n"
        write_private(file, head + toml(settings))
        return file

    def ready(self, name: str) -> Path:
        """The file written by a program when it serves, or has registered."""
        return self.path / name / "ready.json"

    def starting(self, name: str) -> Path:
        """The file written by a program while its start waits for something else."""
        return self.path / name / "starting.json"

    def running(self, name: str) -> Program | None:
        """The program's process, if it is alive."""
        return processes.recorded(self.path / f"{name}.pid")

    def said(self, name: str) -> Mapping[str, Any]:
        """Return the contents of the running program's ready.json; empty if it is not ready."""
        return self._own(name, self.ready(name))

    def awaits(self, name: str) -> Mapping[str, Any]:
        """Return what the running program's start waits for; empty if for nothing."""
        return self._own(name, self.starting(name))

    def _own(self, name: str, file: Path) -> Mapping[str, Any]:
        program, said = self.running(name), processes.read_json(file)
        return said if program is not None and said.get("pid") == program.pid else {}

    def choices(self) -> Choices | None:
        """Return the setup; None for a fresh folder.

        Raises:
            CommandError: the record is damaged, or of a later version.
        """
        try:
            record = json.loads(self.choices_file.read_text(encoding="utf-8"))
            known = {field.name for field in fields(Choices)}
            if record.pop("version") != 1 or not record.keys() <= known:
                raise ValueError("written by another version of nsml")  # noqa: TRY301
            return Choices(**record)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CommandError(
                f"cannot understand {self.choices_file}",
                why=str(error),
                advice="nsml up --data ANOTHER_FOLDER",
            ) from error

    def keep(self, choices: Choices) -> None:
        """Record the setup."""
        text = json.dumps({"version": 1, **asdict(choices)}, indent=1)
        write_private(self.choices_file, text + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other `up`, `down` and `join` out; creates the folder, private to its owner.

        Raises:
            CommandError: another one is running, or the folder cannot be used.
        """
        import fcntl

        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CommandError(
                f"cannot use the data folder {self.path}",
                why=error.strerror or str(error),
                advice="--data FOLDER, or set NSML_DATA",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise CommandError(
                f"another nsml up, down or join is at work in {self.path}",
                code=ExitCode.CONFLICT,
                advice="wait until it has ended",
            ) from error
        finally:
            os.close(descriptor)

    def context(self) -> Context | None:
        """Return the administrator's context for the control plane; None if it is not ready.

        It uses the socket among the private files: while the control plane is down anybody can
        take the port on the loopback, and would be sent the token.
        """
        said = self.said(CONTROL_PLANE)
        if "address" not in said:
            return None
        context = Context(
            name=CONTEXT_NAME, server=str(said["address"]), token_file=str(self.admin_token)
        )
        if not said.get("socket"):
            return context
        context = context._replace(server=f"unix:{said['socket']}")
        choices = self.choices()
        if choices is None or not choices.is_shared or not self.authority.exists():
            # Without other control planes it is not needed, and nsml 0.1 would ask the socket for TLS.
            return context
        # The authority proves the platform's other control planes, once it has reported them.
        return context._replace(ca=str(self.authority), server_name=SERVER_NAME)


def data_folder(given: Path | None, environ: Mapping[str, str]) -> DataFolder:
    """The data folder to use: --data, else NSML_DATA, else the user's own.

    Raises:
        CommandError: this machine cannot run a platform.
    """
    platform: str = sys.platform
    if not platform.startswith("linux"):
        raise CommandError(
            "control plane and agent run on Linux",
            why=f"this machine runs {platform}",
            advice="nsml login HOST   use a platform that runs elsewhere",
        )
    if given is not None:
        return DataFolder(given.absolute())
    if environ.get("NSML_DATA"):
        return DataFolder(Path(environ["NSML_DATA"]).absolute())
    from platformdirs import user_data_dir

    return DataFolder(Path(user_data_dir("nsml", appauthor=False)) / "default")


def user_name() -> str:
    """Return the login user as a name of the platform: 1 to 32 of a-z 0-9 _ - with dots between, beginning with a letter."""
    import getpass

    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        login = ""
    name = _FORGE.sub("-", login.lower()).strip("-_.").lstrip("0123456789-_.")[:32]
    return name.rstrip(".") or "user"


def node_name() -> str:
    """Return the host's name as a node name: 1 to 63 of a-z 0-9 -, as in DNS."""
    host = socket.gethostname().partition(".")[0].lower()
    name = re.sub(r"[^a-z0-9]+", "-", host).strip("-")[:63].strip("-") or "node"
    return f"host-{name}"[:63].strip("-") if is_reserved_for_platform(name, of_node=True) else name


def toml(settings: Mapping[str, object]) -> str:
    """Return settings as a TOML document: strings, paths, numbers, booleans and lists of strings."""
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in settings.items())


def _toml_value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list():
            return "[" + ", ".join(map(_toml_value, value)) + "]"
    # a JSON string is a TOML basic string
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
