"""Containers of Azure Blob Storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from obstore.store import AzureStore

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
    import datetime as dt
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from obstore.store import AzureConfig, AzureCredential

    from controlplane.objects.service import BucketService

_ACCOUNT_VARIABLES: Final = ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
_KEY_VARIABLES: Final = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
_SAS_VARIABLES: Final = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_CONNECTION_STRING: Final = "AZURE_STORAGE_CONNECTION_STRING"
_IDENTITY: Final = {
    "AZURE_CLIENT_ID": "client_id",
    "AZURE_CLIENT_SECRET": "client_secret",
    "AZURE_TENANT_ID": "tenant_id",
    "AZURE_AUTHORITY_HOST": "authority_host",
    "AZURE_FEDERATED_TOKEN_FILE": "federated_token_file",
    "IDENTITY_ENDPOINT": "msi_endpoint",
}
"""Variables of Azure's own libraries, with their obstore settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Access:
    """Access settings of a connection string or the environment; "" where unset."""

    account: str = ""
    endpoint: str = ""
    key: str = ""
    sas: str = ""


def _open(
    container: str, prefix: str | None, service: BucketService, environment: Mapping[str, str]
) -> AzureStore:
    access = _access(service, environment)
    account = service.account or access.account
    if not account:
        raise ValueError(
            "the storage account is not known: azure_account, AZURE_STORAGE_ACCOUNT or a connection string"
        )
    own = f"https://{account}.blob.core.windows.net"
    endpoint = service.endpoint.rstrip("/") or access.endpoint or own
    check_endpoint(endpoint, "azure_endpoint")
    config: dict[str, str | bool] = {
        "account_name": account,
        # Set even to the defaults: obstore would read its own variables otherwise.
        "endpoint": endpoint,
        "use_emulator": False,
        "skip_signature": False,
    }
    has_keys = bool(access.key or access.sas)
    if not has_keys:
        known = {ours: environment.get(name) for name, ours in _IDENTITY.items()}
        config |= {ours: value for ours, value in known.items() if value}
    return AzureStore(
        container,
        prefix=prefix,
        config=cast("AzureConfig", config),
        client_options=client_options(service, endpoint),
        retry_config=retries(),
        credential_provider=_provider(service, access) if has_keys else None,
    )


AZURE: Final = Cloud(
    open=_open,
    elsewhere="AZURE_STORAGE_CONNECTION_STRING in the environment or azure_credentials; azure_endpoint",
    advice=Advice(
        key="give credentials that may read, write, list and delete there (Storage Blob Data "
        "Contributor): azure_credentials, AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, or an identity",
        bucket="make the container, or name another one",
        tls="name an endpoint with a certificate that verifies (azure_endpoint)",
    ),
)


def _access(service: BucketService, environment: Mapping[str, str]) -> _Access:
    if service.credentials is not None:
        return _read(service.credentials)
    if connection := environment.get(_CONNECTION_STRING):
        return _parsed(connection, _CONNECTION_STRING)
    return _Access(
        account=first_of(environment, _ACCOUNT_VARIABLES),
        key=first_of(environment, _KEY_VARIABLES),
        sas=first_of(environment, _SAS_VARIABLES),
    )


def _read(file: Path) -> _Access:
    content = read_credentials(file)
    try:
        return _parsed(content.decode(), str(file))
    except UnicodeDecodeError:
        raise ValueError(f"{file} is no connection string") from None


def _parsed(connection: str, where: str) -> _Access:
    """Parse a connection string as the Azure portal shows it.

    Raises:
        ValueError: it is invalid or has no key; the message never contains it.
    """
    parts = [part.partition("=") for part in connection.strip().split(";") if part.strip()]
    found = {name.strip().lower(): value.strip() for name, _, value in parts}
    key, sas = found.get("accountkey", ""), found.get("sharedaccesssignature", "")
    if not key and not sas:
        raise ValueError(
            f"{where} is no connection string with AccountKey or SharedAccessSignature"
        )
    account, endpoint = found.get("accountname", ""), found.get("blobendpoint", "").rstrip("/")
    if account and not endpoint:
        suffix = found.get("endpointsuffix", "core.windows.net")
        endpoint = f"{found.get('defaultendpointsprotocol', 'https')}://{account}.blob.{suffix}"
    # A string with a shared access signature names the account in its endpoint only.
    account = account or (urlsplit(endpoint).hostname or "").partition(".")[0]
    return _Access(account=account, endpoint=endpoint, key=key, sas=sas)


def _provider(service: BucketService, access: _Access) -> Callable[[], AzureCredential]:
    """Return a provider of the key or signature; a credentials file is reread periodically."""
    file = service.credentials
    if file is None:
        return lambda: _credential(access, None)
    return lambda: _credential(_read(file), read_again_at())


def _credential(access: _Access, until: dt.datetime | None) -> AzureCredential:
    if access.key:
        return {"access_key": access.key, "expires_at": until}
    return {"sas_token": access.sas.removeprefix("?"), "expires_at": until}
