"""A real PostgreSQL for tests: skipped where there is none, a failure where it is required.

One cluster a test process, in a temporary folder of its own; never the machine's. It listens on the
loopback, asks for a password, and writes as a server in earnest does (fsync stays on). PostgreSQL
refuses to run as root: there it runs as the user `postgres` that its package made.

    def test_something(postgres_database: str) -> None: ...      # a URL, an empty database
    def test_faults(postgres_server: PostgresServer) -> None: ...  # kill, restart; the others' too
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from psycopg import sql

from cli.local.ports import Held
from tests.support.said import last_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

USER = "nsml"
PATIENCE_S = 60.0
"""For a server to start or stop on a busy machine."""


def find_postgres() -> Path | None:
    """The folder with `postgres` and `initdb` of the newest version there is; None without one."""
    # Debian keeps them off PATH, a folder a version.
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    places += [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    for place in places:
        if all((place / name).is_file() for name in ("initdb", "postgres")):
            return place
    return None


def require_postgres() -> Path:
    """As `find_postgres`. NSML_REQUIRE_POSTGRES=1 makes a missing one a failure."""
    found, reason = find_postgres(), "no PostgreSQL (Debian: postgresql)"
    if found is not None and os.geteuid() == 0 and _account() is None:
        found, reason = None, "PostgreSQL does not run as root, and there is no user postgres"
    if found is None:
        if os.environ.get("NSML_REQUIRE_POSTGRES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class PostgresServer:
    """A private cluster, from `initdb` to removal as a context manager; also by single steps.

    The port stays the same over restarts.

    Args:
        settings: lines of postgresql.conf.
        tls: the PEM of a certificate for 127.0.0.1 and of its key: plain text is then refused.
    """

    def __init__(
        self,
        settings: Mapping[str, str | int] | None = None,
        *,
        tls: tuple[bytes, bytes] | None = None,
    ) -> None:
        self._programs = require_postgres()
        self._settings = dict(settings or {})
        self._tls = tls
        self._account = _account() if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self.password = secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix="nsml-postgres-"))
        self.data = self.folder / "data"
        self._ports = Held()
        self.port = self._ports.free()

    def __enter__(self) -> Self:
        try:
            self.make()
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    @property
    def pid(self) -> int | None:
        """Of the postmaster, while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    def url(self, database: str = "postgres", **parameters: str) -> str:
        """What a client connects to, as a superuser and with the password in it."""
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        plain = f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"
        return f"{plain}?{query}" if query else plain

    def url_through(self, address: str, url: str) -> str:
        """Return the URL of a database of this server, through a proxy at HOST:PORT."""
        return url.replace(f"@127.0.0.1:{self.port}/", f"@{address}/")

    def make(self) -> None:
        """Make the cluster in its folder."""
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self._account is not None:
            for path in (self.folder, secret):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        self._run(
            "initdb", "--no-sync", "--pgdata", str(self.data), "--username", USER,
            "--auth", "scram-sha-256", "--pwfile", str(secret), "--encoding", "UTF8",
            "--locale", "C.UTF-8",
        )  # fmt: skip
        settings: dict[str, Any] = {
            "listen_addresses": "'127.0.0.1'",
            "port": self.port,
            "unix_socket_directories": "''",
            "max_connections": 200,
            "shared_buffers": "'32MB'",
            "log_min_messages": "warning",
            **self._settings,
        }
        if self._tls is not None:
            settings["ssl"] = "on"
            for name, pem in zip(("server.crt", "server.key"), self._tls, strict=True):
                self._write(name, pem)
            self._write("pg_hba.conf", b"hostssl all all 127.0.0.1/32 scram-sha-256\n")
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                **self._identity(),
            )
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                if self.pid is None or time.monotonic() > ends_at:
                    said = self.log()
                    raise AssertionError(
                        f"PostgreSQL does not start: {last_line(said)}\n{said}"
                    ) from None
                time.sleep(0.02)
            else:
                return

    def stop(self, *, patiently: bool = False) -> None:
        """End it in order: cut connections and write what is in memory, or wait for clients."""
        self._end(signal.SIGTERM if patiently else signal.SIGINT)

    def restart(self) -> None:
        """Stop and start, as an upgrade of the server does: every connection is lost."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """kill -9 of the postmaster and all that it started; recovery is at the next start."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP of all its processes: connections stay, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT of all its processes."""
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        """Kill it if it still runs, and remove its folder."""
        if self.pid is not None:
            self.resume()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._ports.close()

    def log(self) -> str:
        """The end of what it wrote."""
        path = self.folder / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement as the superuser; its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def database(self, **parameters: str) -> Iterator[str]:
        """The URL of a fresh, empty database, which is dropped at the end."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            # Of template1 none can be made while anything at all looks into that.
            making = sql.SQL("CREATE DATABASE {} TEMPLATE template0")
            connection.execute(making.format(sql.Identifier(name)))
        try:
            yield self.url(name, **parameters)
        finally:
            if self.pid is not None:
                with psycopg.connect(self.url(), autocommit=True) as connection:
                    dropping = sql.SQL("DROP DATABASE {} WITH (FORCE)")
                    connection.execute(dropping.format(sql.Identifier(name)))

    def _write(self, name: str, content: bytes) -> None:
        """A file of the cluster, for its owner alone."""
        path = self.data / name
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_bytes(content)
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _end(self, number: signal.Signals) -> None:
        """Send it and wait until none of its processes is left: the next start needs that."""
        if self._process is None or self.pid is None:
            return
        family = self._family()
        if number is signal.SIGKILL:
            self._signal(number)
        else:
            self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        ends_at = time.monotonic() + PATIENCE_S
        while alive := [one for one in family[1:] if _runs(one)]:
            assert time.monotonic() < ends_at, f"PostgreSQL leaves {alive}"
            time.sleep(0.01)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._family():
            # Its children come and go all the time.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _family(self) -> list[psutil.Process]:
        """The postmaster first, then its children."""
        if self.pid is None:
            return []
        postmaster = psutil.Process(self.pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            **self._identity(),
        )
        assert done.returncode == 0, (
            f"{program}: {last_line(done.stderr)}\n{done.stdout}{done.stderr}"
        )

    def _identity(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}


def by_file(url: str, folder: Path) -> str:
    """Return the URL of the same database with its password in a file in `folder`."""
    parts = urlsplit(url)
    file = folder / "pgpass"
    file.write_text(f"{parts.hostname}:{parts.port}:*:{parts.username}:{parts.password}\n")
    file.chmod(0o600)
    place = f"{parts.hostname}:{parts.port}{parts.path}"
    return f"postgresql://{parts.username}@{place}?passfile={file}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One cluster for the whole run of this process: leave it running as you found it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def _kept_database(postgres_server: PostgresServer) -> Iterator[str]:
    # As long as a login takes on a busy machine: who is tried here is not tried on that.
    with postgres_server.database(connect_timeout=str(int(PATIENCE_S))) as url:
        yield url


@pytest.fixture
def emptied_database(_kept_database: str) -> str:
    """The URL of a database that many tests use one after the other: tables stay, rows do not.

    Much quicker than a fresh one. No server that it is on may be killed.
    """
    with psycopg.connect(_kept_database) as connection:
        connection.execute("SET session_replication_role = replica")  # no trigger keeps rows
        tables = connection.execute(
            "SELECT tablename FROM pg_tables"
            " WHERE schemaname = 'public' AND tablename <> 'schema_versions'"
        ).fetchall()
        for (table,) in tables:
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
    return _kept_database


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database of one's own."""
    if postgres_server.pid is None:
        postgres_server.start()
    with postgres_server.database() as url:
        yield url


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended; who collects the orphans of this machine may do so seldom."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _version(place: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", place.parent.name))


def _account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None
