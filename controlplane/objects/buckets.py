"""The way to a bucket, whichever service has it.

Credentials are looked for as the tools of each cloud do: the environment, then a file, then what the
machine or container is given by its cloud. They are in no setting and in no log.
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
    """A bucket as obstore has it, and what to try where its service denies us."""

    backend: Backend
    advice: Advice


def open_bucket(url: str, service: BucketService, environment: Mapping[str, str]) -> OpenBucket:
    """The bucket and prefix of a URL; nothing is asked of the service yet.

    Raises:
        ValueError: it is no such URL, plain text to another machine, or there is no such file.
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
