"""Settings common to all object services: endpoints, timeouts, rereading of credentials.

The timeouts detect a service that is gone in about ten seconds: the request then fails, and is
retried later.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nsml.common.hosts import is_loopback
from nsml.common.private_files import read_private
from nsml.common.private_folders import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Backend

URLS: Final = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
PREFIXES: Final = ("s3://", "gs://", "az://", "file:///")

_CONNECT_S: Final = 3
_SILENT_S: Final = 10
"""Read timeout: the service is gone after it. Sending a part of 5 MiB must fit into it, too."""
_LONGEST_S: Final = 300
_RETRIES: Final = 3
_RETRY_WITHIN_S: Final = 8

_FILE_READ_AGAIN_S: Final = 300
"""Reread interval: a new key in a credentials file is used after at most this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketService:
    """The service of a bucket; unset attributes come from the environment.

    Attributes:
        endpoint: its URL; "" for the cloud's own, unless the environment names one.
        region: of S3; "" for the environment's, else us-east-1.
        account: of Azure; "" for the environment's, or that of the credentials.
        ca: PEM of a private CA, trusted beside the system's.
        credentials: file in the format of the cloud's tools; None: the environment's, else theirs in the home folder.
    """

    endpoint: str = ""
    region: str = ""
    account: str = ""
    ca: bytes | None = None
    credentials: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice to show when a service denies access.

    Attributes:
        key: credentials are missing, wrong, or lack permissions.
        bucket: there is no such bucket.
        tls: its certificate does not verify, or is missing.
        region: the bucket is in another region.
    """

    key: str
    bucket: str
    tls: str
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The specifics of one kind of service.

    Attributes:
        open: opens a bucket, with a key prefix or None; ValueError if the configuration is invalid.
        elsewhere: where to give credentials and a port instead of in the URL.
        advice: shown when it denies access.
    """

    open: Callable[[str, str | None, BucketService, Mapping[str, str]], Backend]
    elsewhere: str
    advice: Advice


def check_endpoint(endpoint: str, tls: str) -> None:
    """Accept endpoints that are encrypted or on this machine.

    Raises:
        ValueError: any other endpoint; the message includes the advice `tls`.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("the endpoint of an object store is https://HOST:PORT")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError(
            f"the object store at {parts.hostname} is another machine and not encrypted: use https "
            f"({tls})"
        )


def client_options(service: BucketService, endpoint: str) -> ClientConfig:
    """Return the connection settings of a checked endpoint."""
    found: ClientConfig = {
        "allow_http": urlsplit(endpoint).scheme == "http",
        "connect_timeout": dt.timedelta(seconds=_CONNECT_S),
        "read_timeout": dt.timedelta(seconds=_SILENT_S),
        "timeout": dt.timedelta(seconds=_LONGEST_S),
    }
    if service.ca is not None:
        found["root_certificate"] = service.ca
    return found


def retries() -> RetryConfig:
    """Return the retry policy of requests."""
    return {
        "max_retries": _RETRIES,
        "retry_timeout": dt.timedelta(seconds=_RETRY_WITHIN_S),
        "backoff": {"max_backoff": dt.timedelta(seconds=2)},
    }


def read_credentials(file: Path) -> bytes:
    """Read a file with secrets; ValueError if it is unreadable, or readable by others."""
    try:
        return read_private(str(file))
    except OSError as error:
        raise ValueError(f"cannot read the credentials: {words_of(error)}") from error


def read_again_at() -> dt.datetime:
    """Return when to reread a credentials file read now."""
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_FILE_READ_AGAIN_S)


def first_of(environment: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the first nonempty of these variables; "" if none is."""
    return next((environment[name] for name in names if environment.get(name)), "")
