"""Buckets of S3, MinIO or another S3-compatible service."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore.store import S3Store

from controlplane.objects.service import (
    Advice,
    Cloud,
    check_endpoint,
    client_options,
    first_of,
    read_again_at,
    read_credentials,
    retries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obstore.store import S3Credential

    from controlplane.objects.service import BucketService

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_DEFAULT_REGION: Final = "us-east-1"


def _open(
    bucket: str, prefix: str | None, service: BucketService, environment: Mapping[str, str]
) -> S3Store:
    endpoint = service.endpoint or first_of(environment, _ENDPOINT_VARIABLES)
    if endpoint:
        check_endpoint(
            endpoint, "s3_ca names the authority of its certificate, where that is your own"
        )
    return S3Store(
        bucket,
        prefix=prefix,
        # Set even from the environment: obstore would prefer its variable to our setting.
        config={"aws_endpoint_url_s3": endpoint} if endpoint else {},
        region=service.region or first_of(environment, _REGION_VARIABLES) or _DEFAULT_REGION,
        client_options=client_options(service, endpoint),
        retry_config=retries(),
        credential_provider=_provider(service, environment),
    )


S3: Final = Cloud(
    open=_open,
    elsewhere="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment or s3_credentials; s3_endpoint",
    advice=Advice(
        key="give a key that may read, write, list and delete there: AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or a credentials file",
        bucket="make the bucket, or name another one",
        tls="name the authority of its certificate (s3_ca), and a host that the certificate has (s3_endpoint)",
        region="name the region of the bucket (s3_region, AWS_REGION)",
    ),
)


def _provider(
    service: BucketService, environment: Mapping[str, str]
) -> Callable[[], S3Credential] | None:
    """Return a provider of keys; None to let obstore use the machine's or container's identity."""
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

    read()  # fail now if the file cannot be read
    return read


def _read_credentials(file: Path, profile: str) -> S3Credential:
    """Read the keys of one profile, with a time to reread them.

    Raises:
        ValueError: the file is unreadable or has no such keys; the message never has its content.
    """
    found = configparser.RawConfigParser()
    content = read_credentials(file)
    try:
        found.read_string(content.decode())
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
        "expires_at": read_again_at(),
    }
