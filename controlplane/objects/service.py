"""Which service has a bucket, and what holds for all of them: addresses, limits of time, keys that are read again.

Times are bounded so that a service that is gone is noticed in about ten seconds: whoever waits for
it is told, and tries again later.
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
"""Nothing was read for so long: the service is gone. A part of 5 MiB is sent within it, too."""
_LONGEST_S: Final = 300
_RETRIES: Final = 3
_RETRY_WITHIN_S: Final = 8

_FILE_READ_AGAIN_S: Final = 300
"""How long a new key in a credentials file takes at most until it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketService:
    """The service of a bucket; what is not said is taken from the environment.

    Attributes:
        endpoint: its URL; "" for the cloud's own, unless the environment names one.
        region: of S3; "" for the environment's, else us-east-1.
        account: of Azure; "" for the environment's, or that of the credentials.
        ca: PEM of a private authority that its certificate is checked with, beside the system's.
        credentials: file as the cloud's own tools have it; None: the environment's, else theirs in the home folder.
    """

    endpoint: str = ""
    region: str = ""
    account: str = ""
    ca: bytes | None = None
    credentials: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to try where a service denies us.

    Attributes:
        key: credentials are missing, wrong, or may not do what is needed.
        bucket: there is no such bucket.
        tls: its certificate does not verify, or it has none.
        region: the bucket is in another region.
    """

    key: str
    bucket: str
    tls: str
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """What is peculiar to one kind of service.

    Attributes:
        open: opens a bucket, with a prefix of its keys or None; ValueError where it cannot be used as it stands.
        elsewhere: where credentials and a port belong, if not into the URL.
        advice: what to try where it denies us.
    """

    open: Callable[[str, str | None, BucketService, Mapping[str, str]], Backend]
    elsewhere: str
    advice: Advice


def check_endpoint(endpoint: str, tls: str) -> None:
    """Return when what is sent there is encrypted, or stays on this machine.

    Raises:
        ValueError: it does not; the message has `tls`, which says what to try.
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
    """How connections to an endpoint, which was checked, are made."""
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
    """How often, and for how long, a request is repeated."""
    return {
        "max_retries": _RETRIES,
        "retry_timeout": dt.timedelta(seconds=_RETRY_WITHIN_S),
        "backoff": {"max_backoff": dt.timedelta(seconds=2)},
    }


def read_credentials(file: Path) -> bytes:
    """The content of a file with secrets; ValueError where it cannot be read, or others may read it."""
    try:
        return read_private(str(file))
    except OSError as error:
        raise ValueError(f"cannot read the credentials: {words_of(error)}") from error


def read_again_at() -> dt.datetime:
    """When a credentials file that was read now is read again."""
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_FILE_READ_AGAIN_S)


def first_of(environment: Mapping[str, str], names: Iterable[str]) -> str:
    """The first of these variables that is set; "" where none is."""
    return next((environment[name] for name in names if environment.get(name)), "")
