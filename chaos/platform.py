"""A whole platform of its own in one folder: etcd, PostgreSQL, control planes, agents, on their hosts."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import pwd
import secrets
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.certificates import ServerFiles, make_certificates
from chaos.clocks import Clocks
from chaos.disks import Disk, Disks
from chaos.hosts import CLIENT, Hosts
from chaos.processes import AGENT, CONTROL_PLANE, DATABASE, ETCD, MARK, Program
from chaos.reaper import Reaper, end_all
from cli.exits import CommandError
from cli.local.data_folder import toml
from cli.local.processes import program, read_json
from nsml.client.contexts import Context, write_private
from nsml.client.trust import SERVER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MEMBERS: Final = 3
PORT: Final = 18600
OBJECTS: Final = "objects"
"""The kind of the disk that control planes keep files on: objects, and their history where that is SQLite."""
_ETCD_PORT, _PEER_PORT, _DATABASE_PORT = 2379, 2380, 5432
_READY_WITHIN_S = 90.0
_POLL_S = 0.05
ADMIN: Final = "chaos"
_DISK_BYTES: Final = {AGENT: 64 << 20, DATABASE: 512 << 20, OBJECTS: 256 << 20}
"""Of the disks of each kind: memory, as far as it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many of what."""

    control_planes: int
    agents: int
    gpus: int = 2
    lease_s: float = 2.0
    silent_after_s: float = 6.0


@dataclass
class ChaosPlatform:
    """Makes, starts and ends the parts.

    Attributes:
        database: the folder of PostgreSQL's programs; None: history in SQLite.
        disks: what programs, objects and history lie on.
        agent_environment: further settings of the agents, as variables.
        clocks: of control planes and agents.
    """

    folder: Path
    hosts: Hosts
    shape: Shape
    environ: Mapping[str, str]
    etcd_binary: str
    database: Path | None
    say: Callable[[str], None]
    disks: Disks = field(default_factory=lambda: Disks(why_none="nobody asked for any"))
    agent_environment: Mapping[str, str] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=Clocks)
    parts: dict[str, Program] = field(default_factory=dict)
    _reaper: Reaper | None = field(default=None, repr=False)
    _password: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def of_kind(self, kind: str) -> list[Program]:
        """The parts of one kind, by number."""
        return [part for part in self.parts.values() if part.kind == kind]

    @property
    def etcd_urls(self) -> str:
        """The members, as settings take them."""
        members = (f"etcd{number}" for number in range(1, MEMBERS + 1))
        return ",".join(f"https://{self.hosts.address(name)}:{_ETCD_PORT}" for name in members)

    @property
    def etcd_authority(self) -> Path:
        """Who signed their certificate."""
        return self.folder / "servers-ca.pem"

    async def start(self) -> None:
        """Start everything, in the order in which one needs the other; it ends with this process.

        Raises:
            CommandError: something does not get ready; its last words are told.
        """
        self._reaper = Reaper(self.folder)
        now = dt.datetime.now(tz=dt.UTC)
        names = [*(f"etcd{number}" for number in range(1, MEMBERS + 1)), "database"]
        files = make_certificates(
            self.folder, [self.hosts.address(name) for name in names], now=now
        )
        self.say(f"starting {MEMBERS} etcd members")
        for number in range(1, MEMBERS + 1):
            self._add_member(number, files)
        if self.database is not None:
            self.say("starting PostgreSQL")
            await asyncio.to_thread(self._add_database, self.database, files)
        for part in self.parts.values():
            part.start()
        await self._until_members_answer(files)
        if self.database is not None:
            await self._until(self._has_database, self.parts["database"])
        self.say(f"starting {self.shape.control_planes} control planes")
        # Alone, a control plane has history and objects in its own folder.
        self._lay_disk("cp1" if self.database is None else OBJECTS, OBJECTS)
        for number in range(1, self.shape.control_planes + 1):
            self._add_control_plane(number)
            part = self.parts[f"cp{number}"]
            if number > 1:
                self._hand_over_key(number)
            part.start()
            await self._until(lambda part=part: self.is_ready(part), part)  # type: ignore[misc]
        self.say(f"starting {self.shape.agents} agents")
        numbers = range(1, self.shape.agents + 1)
        for number in numbers:
            self._lay_disk(f"node{number}", AGENT)
        await asyncio.gather(*(asyncio.to_thread(self._join, number) for number in numbers))
        for number in numbers:
            self._add_agent(number)
            self.parts[f"node{number}"].start()
        for part in self.of_kind(AGENT):
            await self._until(lambda part=part: self.is_ready(part), part)  # type: ignore[misc]

    def end(self) -> None:
        """Kill everything, also what a killed agent has left running."""
        for part in reversed(self.parts.values()):
            part.end()
        end_all(self.folder)
        self.disks.close()
        if self._reaper is not None:
            self._reaper.dismiss()

    def contexts(self) -> list[Context]:
        """How clients reach the platform as the administrator, each asking another one first."""
        first = self.folder / "cp1"
        parts = self.of_kind(CONTROL_PLANE)
        servers = [f"{self.hosts.address(part.host)}:{PORT}" for part in parts]
        return [
            Context(
                name=part.name,
                server=servers[number],
                ca=str(first / "ca.pem"),
                server_name=SERVER_NAME,
                token_file=str(first / "admin.token"),
                others=(*servers[number + 1 :], *servers[:number]),
            )
            for number, part in enumerate(parts)
        ]

    def is_ready(self, part: Program) -> bool:
        """Whether a control plane serves, or an agent has registered."""
        folder = self.folder / part.name
        said = read_json(
            folder / "agent/ready.json" if part.kind == AGENT else folder / "ready.json"
        )
        return part.process is not None and said.get("pid") == part.process.pid

    def store_history(self) -> list[dict[str, Any]]:
        """Every change of the store.

        Raises:
            CommandError: it cannot be read.
        """
        command = [sys.executable, "-m", "controlplane.eventlog", self.etcd_urls]
        command += ["--ca", str(self.etcd_authority)]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CommandError("the store's history cannot be read", why=done.stderr.strip())
        return [json.loads(line) for line in done.stdout.splitlines()]

    # Parts

    def _lay_disk(self, name: str, kind: str) -> None:
        """Let a folder of this name be a disk of its own."""
        place = self.folder / name
        place.mkdir(mode=0o700, exist_ok=True)
        disk = Disk(part=name, kind=kind, place=place, size_bytes=_DISK_BYTES[kind])
        try:
            self.disks.put(disk)
        except OSError as error:
            raise CommandError(f"no disk can be mounted at {place}", why=str(error)) from error

    def _add(self, name: str, kind: str, command: Sequence[str], **more: Any) -> Program:
        part = Program(
            name=name,
            kind=kind,
            host=name,
            command=command,
            enter=self.hosts.enter(name),
            folder=self.folder,
            environment=more.pop("environment", self._environment()),
            **more,
        )
        self.parts[name] = part
        return part

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith(("NSML_CONTROLPLANE_", "NSML_AGENT_"))
        }
        return kept | {MARK: str(self.folder)}

    def _add_member(self, number: int, files: ServerFiles) -> None:
        name = f"etcd{number}"
        address = self.hosts.address(name)
        peers = ",".join(
            f"etcd{other}=http://{self.hosts.address(f'etcd{other}')}:{_PEER_PORT}"
            for other in range(1, MEMBERS + 1)
        )
        settings = {
            "name": name,
            "data-dir": self.folder / name,
            "listen-client-urls": f"https://{address}:{_ETCD_PORT}",
            "advertise-client-urls": f"https://{address}:{_ETCD_PORT}",
            "listen-peer-urls": f"http://{address}:{_PEER_PORT}",
            "initial-advertise-peer-urls": f"http://{address}:{_PEER_PORT}",
            "initial-cluster": peers,
            "cert-file": files.certificate,
            "key-file": files.key,
            "heartbeat-interval": 50,
            "election-timeout": 300,
            "logger": "zap",
            "log-level": "warn",
            "log-outputs": "stderr",
        }
        options = [f"--{option}={value}" for option, value in settings.items()]
        self._add(name, ETCD, [self.etcd_binary, *options])

    def _add_database(self, programs: Path, files: ServerFiles) -> None:
        """PostgreSQL refuses to run as root: then it is its own user, in a folder of that one's."""
        by: list[str] = []
        data = self.folder / "database"
        self._lay_disk("database", DATABASE)
        key, password = data / "server.key", data / "password"
        write_private(password, self._password + "\n")
        shutil.copy(files.key, key)
        key.chmod(0o600)
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            for path in (data, key, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
            by = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        cluster = data / "cluster"
        made = subprocess.run(
            [
                *by,
                str(programs / "initdb"),
                *("-D", str(cluster), "-U", ADMIN, "-A", "scram-sha-256", "-E", "UTF8"),
                *("--locale=C", "--pwfile", str(password)),
            ],
            cwd=data.parent,
            capture_output=True,
            check=False,
            text=True,
        )
        if made.returncode != 0:
            raise CommandError(
                "PostgreSQL cannot be made",
                why=made.stderr.strip(),
                advice=f"TMPDIR=/tmp, or another folder that {'postgres' if by else 'you'} may enter",
            )
        address = self.hosts.address("database")
        settings = {
            "listen_addresses": address,
            "port": _DATABASE_PORT,
            "unix_socket_directories": "",
            "ssl": "on",
            "ssl_cert_file": files.certificate,
            "ssl_key_file": key,
            "max_connections": 100,
            "min_wal_size": "32MB",
            "max_wal_size": "64MB",
        }
        rules = cluster / "pg_hba.conf"
        rules.write_text("hostssl all all 0.0.0.0/0 scram-sha-256\n", encoding="utf-8")
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*by, str(programs / "postgres"), "-D", str(cluster), *options]
        self._add("database", DATABASE, command)

    def history_url(self) -> str:
        """Its URL; the password is in a file for us alone."""
        where = f"{self.hosts.address('database')}:{_DATABASE_PORT}"
        words = self.folder / "database.password"
        write_private(words, f"{where}:postgres:{ADMIN}:{self._password}\n")
        checked = f"sslmode=verify-full&sslrootcert={self.etcd_authority}&passfile={words}"
        return f"postgresql://{ADMIN}@{where}/postgres?{checked}"

    def _has_database(self) -> bool:
        return "ready to accept connections" in self.parts["database"].log.read_text()

    def _add_control_plane(self, number: int) -> None:
        name = f"cp{number}"
        address = self.hosts.address(name)
        settings: dict[str, object] = {
            "data": self.folder / name,
            "coordination": self.etcd_urls,
            "etcd_ca": self.etcd_authority,
            "address": "",
            "socket": "",
            "listen": f"{address}:{PORT}",
            "listen_agents": f"{address}:{PORT + 1}",
            "hosts": [address],
            "admin": ADMIN,
            "member": name,
            "lease_s": self.shape.lease_s,
            "heartbeat_s": 1.0,
            "silent_after_s": self.shape.silent_after_s,
        }
        if self.database is not None:
            objects = self.folder / OBJECTS
            settings |= {"history": self.history_url(), "objects": f"file://{objects}"}
        file = self.folder / f"{name}.toml"
        write_private(file, toml(settings))
        command = [*program("controlplane"), "--config", str(file)]
        environment = self._environment() | self.clocks.environment(name)
        self._add(name, CONTROL_PLANE, command, environment=environment)

    def _hand_over_key(self, number: int) -> None:
        """What an administrator does once for each further control plane: copy the platform's key."""
        data = self.folder / f"cp{number}"
        data.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(self.folder / "cp1/platform.key", data / "platform.key")

    def _join(self, number: int) -> None:
        """Trade a join token for a certificate, on the node's host; starts nothing."""
        from nsml.client.connect import connect

        name = f"node{number}"
        context = self.contexts()[0]

        async def invitation() -> str:
            async with connect(context) as client:
                return (await client.accounts.create_join_token()).token

        command = [sys.executable, "-m", "cli.main", "join", context.server, "--token-stdin"]
        command += ["--name", name, "--simulate-gpus", str(self.shape.gpus), "--isolation", "none"]
        command += ["--data", str(self.folder / name), "--systemd", "-q"]
        done = subprocess.run(
            [*self.hosts.enter(name), *command],
            env=self._environment(),
            input=asyncio.run(invitation()),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CommandError(f"{name} cannot join", why=(done.stdout + done.stderr).strip())

    def _add_agent(self, number: int) -> None:
        name = f"node{number}"
        settings = self.folder / name / "agent.toml"
        more = {
            "NSML_AGENT_OWNER": ADMIN,
            "NSML_AGENT_ENGINE_SOCKET": str(self.folder / "no-engine.sock"),
            # A full disk ends no session: what it reports meanwhile is to be accounted for.
            "NSML_AGENT_DISK_FLOOR_BYTES": "0",
            # So many that only devices are scarce, and nothing of the machine's groups is touched.
            "NSML_AGENT_CPUS": "64",
            "NSML_AGENT_MEMORY_BYTES": str(64 << 30),
            "NSML_AGENT_CONTROL_GROUPS": "false",
            **self.agent_environment,
        }
        command = [*program("agent"), "--config", str(settings)]
        environment = self._environment() | more | self.clocks.environment(name)
        self._add(name, AGENT, command, environment=environment)

    # Readiness

    async def _until(self, is_so: Callable[[], bool], part: Program) -> None:
        ends_at = time.monotonic() + _READY_WITHIN_S
        while not is_so():
            if not part.is_running or time.monotonic() > ends_at:
                raise CommandError(f"{part.name} did not start", why=part.last_words())
            await asyncio.sleep(_POLL_S)

    async def _until_members_answer(self, files: ServerFiles) -> None:
        trusted = ssl.create_default_context(cafile=str(files.authority))
        for part in self.of_kind(ETCD):
            url = f"https://{self.hosts.address(part.host)}:{_ETCD_PORT}/health"

            def is_sound(url: str = url) -> bool:
                try:
                    with urllib.request.urlopen(url, timeout=2, context=trusted) as answer:  # noqa: S310
                        return bool(json.load(answer)["health"] == "true")
                except (OSError, ValueError):
                    return False

            await self._until(is_sound, part)


def host_names(shape: Shape) -> list[str]:
    """The hosts that a platform of this shape needs, the client's included."""
    return [
        CLIENT,
        *(f"etcd{number}" for number in range(1, MEMBERS + 1)),
        "database",
        *(f"cp{number}" for number in range(1, shape.control_planes + 1)),
        *(f"node{number}" for number in range(1, shape.agents + 1)),
    ]


def find_database() -> Path | None:
    """The folder of PostgreSQL's programs; None where it is not installed, or has no user to run as."""
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return None
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    on_path = shutil.which("initdb")
    chosen = [path.parent for path in found if (path.parent / "postgres").exists()]
    if chosen:
        return chosen[-1]
    return None if on_path is None else Path(on_path).parent


def _version(initdb: Path) -> int:
    name = initdb.parts[-3]
    return int(name) if name.isdecimal() else 0
