"""What a control plane stands on is opened as its settings say, and goes on being read."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.access.files import write_private
from controlplane.objects.service import BucketService
from controlplane.objects.shared_files import open_shared
from controlplane.startup.backends import _bucket_for_nodes, _login
from controlplane.startup.config import Settings
from controlplane.startup.ownership import StartRefused
from controlplane.store.etcd_members import Login
from controlplane.store.interface import StoreUnavailable
from nsml.common.clock import in_thread


def login(data: Path, file: Path) -> Login:
    made = _login(Settings(data=data, etcd_user="nsml", etcd_password_file=file))
    assert made is not None
    return made


@pytest.mark.parametrize("meanwhile", ["empty", "exposed", "missing"])
def test_a_password_that_is_written_anew_is_waited_for(tmp_path: Path, meanwhile: str) -> None:
    file = tmp_path / "password"
    write_private(file, b"first\n")
    known = login(tmp_path, file)
    assert known.current() == "first"
    match meanwhile:
        case "empty":
            file.write_bytes(b"")
        case "exposed":
            file.chmod(0o644)
        case "missing":
            file.unlink()
    with pytest.raises(StoreUnavailable, match="password"):
        known.current()
    with pytest.raises(StartRefused):
        login(tmp_path, file)  # at a start nobody waits
    write_private(file, b"second\n")
    assert known.current() == "second"


@pytest.mark.parametrize(
    ("key", "is_read"), [("AccountKey=a2V5", True), ("SharedAccessSignature=sv=2&sig=a%2Bb", False)]
)
async def test_nodes_read_a_bucket_only_if_urls_can_be_signed(
    tmp_path: Path, key: str, is_read: bool
) -> None:
    environment = {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=acc;{key}"}
    files = open_shared("az://c", in_thread, service=BucketService(), environment=environment)
    settings = Settings(data=tmp_path, objects="az://c", direct_reads=True)
    assert (await _bucket_for_nodes(settings, files) is not None) is is_read
