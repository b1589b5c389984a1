"""Where a bucket is, by its URL, its service and the environment; no service is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from controlplane.objects.buckets import open_bucket
from controlplane.objects.service import BucketService


@pytest.mark.parametrize(
    ("connection", "account", "endpoint"),
    [
        ("AccountName=acc;AccountKey=a2V5", "acc", "https://acc.blob.core.windows.net"),
        (
            "accountname=acc; accountkey=a2V5==;EndpointSuffix=core.chinacloudapi.cn\n",
            "acc",
            "https://acc.blob.core.chinacloudapi.cn",
        ),
        (
            "BlobEndpoint=https://acc.blob.core.windows.net/;QueueEndpoint=https://q;SharedAccessSignature=sv=2&sig=a%2Bb",
            "acc",
            "https://acc.blob.core.windows.net",
        ),
        (
            "DefaultEndpointsProtocol=http;AccountName=acc;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:1/acc;",
            "acc",
            "http://127.0.0.1:1/acc",
        ),
    ],
)
def test_a_connection_string_names_account_and_address(
    connection: str, account: str, endpoint: str
) -> None:
    environment = {
        "AZURE_STORAGE_CONNECTION_STRING": connection,
        "AZURE_STORAGE_ACCOUNT": "another",
        "AZURE_STORAGE_KEY": "another",
    }
    opened = cast("Any", open_bucket("az://c/p/q/", BucketService(), environment).backend)
    assert (opened.config["account_name"], opened.config["endpoint"]) == (account, endpoint)
    assert (opened.config["container_name"], opened.prefix) == ("c", "p/q")


@pytest.mark.parametrize(
    "connection", ["AccountName=acc;AccountKey=a2V5;DefaultEndpointsProtocol=http"]
)
def test_a_connection_string_that_would_send_keys_in_plain_text_is_refused(connection: str) -> None:
    with pytest.raises(ValueError, match="not encrypted: use https"):
        open_bucket("az://c", BucketService(), {"AZURE_STORAGE_CONNECTION_STRING": connection})


def test_a_setting_counts_before_the_environment(tmp_path: Path) -> None:
    service = BucketService(endpoint="https://blobs.lab/", account="ours")
    environment = {
        "AZURE_STORAGE_ACCOUNT": "another",
        "AZURE_CLIENT_ID": "id",
        "HOME": str(tmp_path),
    }
    azure = cast("Any", open_bucket("az://c", service, environment).backend)
    assert (azure.config["account_name"], azure.config["client_id"]) == ("ours", "id")
    google = cast("Any", open_bucket("gs://b/p", service, environment).backend)
    for opened, name in ((azure, "endpoint"), (google, "base_url")):
        assert opened.config[name] == "https://blobs.lab"
