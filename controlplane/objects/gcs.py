"""Buckets of Google Cloud Storage, through its XML interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore.store import GCSStore

from controlplane.objects.service import (
    Advice,
    Cloud,
    check_endpoint,
    client_options,
    read_credentials,
    retries,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import GCSConfig

    from controlplane.objects.service import BucketService

_ENDPOINT: Final = "https://storage.googleapis.com"


def _open(
    bucket: str, prefix: str | None, service: BucketService, environment: Mapping[str, str]
) -> GCSStore:
    endpoint = service.endpoint.rstrip("/") or _ENDPOINT
    check_endpoint(endpoint, "gcs_endpoint")
    return GCSStore(
        bucket,
        prefix=prefix,
        # Set even to the defaults: obstore would read its own variables otherwise.
        config={"base_url": endpoint, "skip_signature": False, **_keys(service, environment)},
        client_options=client_options(service, endpoint),
        retry_config=retries(),
    )


GCS: Final = Cloud(
    open=_open,
    elsewhere="GOOGLE_APPLICATION_CREDENTIALS in the environment or gcs_credentials; gcs_endpoint",
    advice=Advice(
        key="give credentials that may read, write, list and delete there (Storage Object Admin): "
        "GOOGLE_APPLICATION_CREDENTIALS or gcs_credentials, or a service account of the machine",
        bucket="make the bucket, or name another one",
        tls="name an endpoint with a certificate that verifies (gcs_endpoint)",
    ),
)


def _keys(service: BucketService, environment: Mapping[str, str]) -> GCSConfig:
    """Return the credentials file as obstore settings; empty to use the machine's identity.

    Raises:
        ValueError: the file is unreadable or has no usable credentials; the message never contains them.
    """
    if service.credentials is not None:
        file = service.credentials
    elif named := environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        file = Path(named)
    else:
        home = Path(environment.get("HOME", "/nonexistent"))
        file = home / ".config" / "gcloud" / "application_default_credentials.json"
        if not file.exists():
            return {}
    content = read_credentials(file)
    try:
        kind = json.loads(content)["type"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{file} is no credentials file of Google Cloud") from None
    if kind == "service_account":
        return {"service_account_key": content.decode()}
    if kind == "authorized_user":
        return {"application_credentials": str(file)}
    raise ValueError(
        f"{file} has credentials of another type: service_account and authorized_user can be used"
    )
