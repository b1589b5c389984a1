"""The address of a PostgreSQL database, and whether the connection is safe."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from controlplane.history.errors import HistoryRefused
from nsml.common.hosts import is_loopback

CONNECT_S = 3
"""Timeout of one connection, TCP and login."""
_CHECKED = {"verify-ca", "verify-full"}
_VARIABLES = {
    "PGHOST": "host",
    "PGHOSTADDR": "hostaddr",
    "PGSERVICE": "service",
    "PGSSLMODE": "sslmode",
}
"""Environment variables that libpq uses if the URL does not set the parameter: those of the destination."""
_DEFAULTS = {
    "connect_timeout": str(CONNECT_S),
    "application_name": "nsml",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""A host that disappears silently is noticed within about ten seconds."""


@dataclass(frozen=True, slots=True)
class Address:
    """A checked URL. `shown` has no password; `secret` is for psycopg."""

    shown: str
    secret: str = field(repr=False)


def read_address(url: str) -> Address:
    """Parse postgresql://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?PARAMETERS], as libpq does.

    The password should come from a file (`passfile=...`, PGPASSFILE, ~/.pgpass).

    Raises:
        HistoryRefused: not such a URL, or another host without certificate verification.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise HistoryRefused(
            "the history's address is no URL of PostgreSQL",
            attempt="postgresql://USER@HOST:5432/DATABASE?sslmode=verify-full",
        )
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value}
    except psycopg.ProgrammingError:
        # Its message would quote the URL, and so the password.
        raise HistoryRefused(
            "the history's address cannot be understood",
            why="libpq refuses it; special characters of a password are written as %XX",
            attempt="postgresql://USER@HOST:5432/DATABASE?sslmode=verify-full",
        ) from None
    parts = _from_environment() | given
    shown = _shown(parts)
    _refuse_unchecked(parts, shown)
    return Address(shown, make_conninfo("", **{**_DEFAULTS, **parts}))


def _from_environment() -> dict[str, str]:
    return {
        name: value for variable, name in _VARIABLES.items() if (value := os.environ.get(variable))
    }


def _refuse_unchecked(parts: dict[str, str], shown: str) -> None:
    """Refuse unverified remote hosts: records and the password could reach an impostor."""
    if "service" in parts:
        raise HistoryRefused(
            f"the history's address {shown} names a service",
            why="where that goes cannot be seen",
            attempt="write host and parameters out",
        )
    if parts.get("sslmode") in _CHECKED:
        return
    hosts = ",".join(parts[name] for name in ("host", "hostaddr") if name in parts)
    away = [host for host in hosts.split(",") if not _is_here(host)]
    if away:
        raise HistoryRefused(
            f"the history at {shown} would be reached without checking that it is it",
            why=f"{away[0]} is another host, and sslmode is {parts.get('sslmode', 'not given')}",
            attempt="add ?sslmode=verify-full&sslrootcert=FILE (or sslrootcert=system)",
        )


def _is_here(host: str) -> bool:
    """Whether a host is this machine; "" and folders are Unix sockets."""
    return not host or host.startswith(("/", "@")) or is_loopback(host)


def _shown(parts: dict[str, str]) -> str:
    place = parts.get("host") or parts.get("hostaddr", "")
    port = f":{parts['port']}" if "port" in parts else ""
    return f"postgresql://{place}{port}/{parts.get('dbname', '')}"
