"""Opening buckets of any supported service.

Credentials are looked up as each cloud's tools do: the environment, then a file, then the identity
of the machine or container. They are in no setting and in no log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from obstore.exceptions import BaseError

from controlplane.objects.azure import AZURE
from controlplane.objects.denials import reason
from controlplane.objects.gcs import GCS
from controlplane.objects.s3 import S3
from controlplane.objects.service import URLS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ObjectStore as Backend

    from controlplane.objects.service import Advice, BucketService

_CLOUDS: Final = {"s3": S3, "gs": GCS, "az": AZURE}


class OpenBucket(NamedTuple):
    """An obstore bucket, and the advice to show when its service denies access."""

    backend: Backend
    advice: Advice


def open_bucket(url: str, service: BucketService, environment: Mapping[str, str]) -> OpenBucket:
    """Open the bucket and prefix of a URL, without a request to the service.

    Raises:
        ValueError: the URL is invalid, unencrypted to another machine, or a credentials file is missing.
    """
    parts = urlsplit(url)
    cloud = _CLOUDS.get(parts.scheme)
    if cloud is None or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"an object store is {URLS}")
    if parts.username or parts.password or parts.port:
        raise ValueError(
            f"credentials do not belong into the URL of a bucket, nor does a port: {cloud.elsewhere}"
        )
    prefix = parts.path.strip("/") or None
    try:
        return OpenBucket(cloud.open(parts.hostname, prefix, service, environment), cloud.advice)
    except BaseError as error:
        raise ValueError(f"{url} cannot be opened: {reason(str(error))}") from None
