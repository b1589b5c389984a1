"""The way to a bucket of S3, MinIO or another service that speaks the same.

Credentials are looked for as the AWS tools do: the environment, then a credentials file, then what
the machine or container is given by its cloud. They are in no setting and in no log.

Times are bounded so that a service that is gone is noticed in about ten seconds: whoever waits for
it is told, and tries again later.
"""

from __future__ import annotations

import configparser
import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from obstore.store import S3Store

from nsml.common.hosts import is_loopback
from nsml.common.private_files import read_private
from nsml.common.private_folders import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obstore.store import ClientConfig, RetryConfig, S3Credential

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_DEFAULT_REGION: Final = "us-east-1"

_CONNECT_S: Final = 3
_SILENT_S: Final = 10
"""Nothing was read for so long: the service is gone. A part of 5 MiB is sent within it, too."""
_LONGEST_S: Final = 300
_RETRIES: Final = 3
_RETRY_WITHIN_S: Final = 8

_FILE_READ_AGAIN_S: Final = 300
"""How long a new key in the credentials file takes at most until it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Service:
    """Which service has the bucket; what is not said is taken from the environment.

    Attributes:
        endpoint: its URL; "" for AWS, unless the environment names one.
        region: "" for the environment's, else us-east-1.
        ca: PEM of a private authority that its certificate is checked with, beside the system's.
        credentials: file of the AWS tools; None: the environment's, else theirs in the home folder.
    """

    endpoint: str = ""
    region: str = ""
    ca: bytes | None = None
    credentials: Path | None = None


def open_bucket(url: str, service: S3Service, environment: Mapping[str, str]) -> S3Store:
    """The bucket and prefix of s3://BUCKET/PREFIX; nothing is asked of the service yet.

    Raises:
        ValueError: it is no such URL, plain text to another machine, or there is no such file.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("an object store is s3://BUCKET/PREFIX or file:///FOLDER")
    if parts.username or parts.password or parts.port:
        raise ValueError(
            "credentials do not belong into the URL of a bucket, nor does a port: AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY in the environment or s3_credentials; s3_endpoint"
        )
    endpoint = service.endpoint or _first(environment, _ENDPOINT_VARIABLES)
    is_plain = _check_endpoint(endpoint) if endpoint else False
    client: ClientConfig = {
        "allow_http": is_plain,
        "connect_timeout": dt.timedelta(seconds=_CONNECT_S),
        "read_timeout": dt.timedelta(seconds=_SILENT_S),
        "timeout": dt.timedelta(seconds=_LONGEST_S),
    }
    if service.ca is not None:
        client["root_certificate"] = service.ca
    retry: RetryConfig = {
        "max_retries": _RETRIES,
        "retry_timeout": dt.timedelta(seconds=_RETRY_WITHIN_S),
        "backoff": {"max_backoff": dt.timedelta(seconds=2)},
    }
    return S3Store(
        parts.hostname,
        prefix=parts.path.strip("/") or None,
        # Said even when it is the environment's: obstore itself would prefer that to a setting.
        config={"aws_endpoint_url_s3": endpoint} if endpoint else {},
        region=service.region or _first(environment, _REGION_VARIABLES) or _DEFAULT_REGION,
        client_options=client,
        retry_config=retry,
        credential_provider=_provider(service, environment),
    )


def _check_endpoint(endpoint: str) -> bool:
    """Whether it is plain text, which only this machine may be spoken to in."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("the endpoint of an object store is https://HOST:PORT")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError(
            f"the object store at {parts.hostname} is another machine and not encrypted: use https "
            "(s3_ca names the authority of its certificate, where that is your own)"
        )
    return parts.scheme == "http"


def _provider(
    service: S3Service, environment: Mapping[str, str]
) -> Callable[[], S3Credential] | None:
    """What gives the keys; None where obstore asks the machine or container for them."""
    profile = environment.get("AWS_PROFILE", "default")
    if service.credentials is not None:
        file = service.credentials
    elif environment.get("AWS_ACCESS_KEY_ID"):
        return lambda: {
            "access_key_id": environment["AWS_ACCESS_KEY_ID"],
            "secret_access_key": environment.get("AWS_SECRET_ACCESS_KEY", ""),
            "token": environment.get("AWS_SESSION_TOKEN"),
            "expires_at": None,
        }
    elif named := environment.get("AWS_SHARED_CREDENTIALS_FILE"):
        file = Path(named)
    else:
        file = Path(environment.get("HOME", "/nonexistent")) / ".aws" / "credentials"
        if not file.exists():
            return None

    def read() -> S3Credential:
        return _read_credentials(file, profile)

    read()  # what cannot be read is said now
    return read


def _read_credentials(file: Path, profile: str) -> S3Credential:
    """The keys of one profile, to be read again before long.

    Raises:
        ValueError: the file cannot be read, or has no such keys; its content is not in the words.
    """
    found = configparser.RawConfigParser()
    try:
        found.read_string(read_private(str(file)).decode())
    except OSError as error:
        raise ValueError(f"cannot read the credentials: {words_of(error)}") from error
    except (configparser.Error, UnicodeDecodeError):
        raise ValueError(f"{file} is no credentials file as the AWS tools write it") from None
    keys = found[profile] if found.has_section(profile) else {}
    if not keys.get("aws_access_key_id") or not keys.get("aws_secret_access_key"):
        raise ValueError(
            f"{file} has no aws_access_key_id and aws_secret_access_key under [{profile}]"
        )
    return {
        "access_key_id": keys["aws_access_key_id"],
        "secret_access_key": keys["aws_secret_access_key"],
        "token": keys.get("aws_session_token"),
        "expires_at": dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_FILE_READ_AGAIN_S),
    }


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
