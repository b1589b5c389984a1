"""Secrets in files that others may read are refused wherever they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controlplane.access.files import read_private as read_own
from controlplane.objects.s3 import _read_credentials
from controlplane.startup.backends import _tls
from controlplane.startup.config import Settings
from nodeagent.wiring import _token
from nsml.client.contexts import Context, ContextError
from nsml.client.trust import TrustError, make_key, signing_request
from nsml.common.private_files import Exposed, read_private
from nsml.common.private_folders import words_of
from nsml.common.settings import SettingsError

TOKEN = "nsml_" + "a" * 43


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o604, 0o602, 0o666, 0o622])
def test_what_others_may_read_is_refused(secret: Path, mode: int) -> None:
    assert read_private(str(secret)) == TOKEN.encode()
    secret.chmod(mode)
    with pytest.raises(Exposed, match="chmod 600"):
        read_private(str(secret))
    with pytest.raises(Exposed, match="chmod 600"):
        read_own(secret)


def test_a_client_refuses_an_exposed_token(secret: Path) -> None:
    context = Context(name="lab", server="gpu.lab:1", token_file=str(secret))
    assert context.token() == TOKEN
    secret.chmod(0o644)
    with pytest.raises(ContextError, match="may be read by others") as refused:
        context.token()
    assert f"chmod 600 {secret}" in refused.value.advice


def test_an_agent_refuses_an_exposed_token(secret: Path) -> None:
    assert _token(secret) == TOKEN
    secret.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        _token(secret)


def test_a_node_refuses_an_exposed_key(tmp_path: Path) -> None:
    key = tmp_path / "node.key"
    make_key(key)
    assert b"CERTIFICATE REQUEST" in signing_request(key, "a")
    key.chmod(0o644)
    with pytest.raises(TrustError) as refused:
        signing_request(key, "a")
    assert "chmod 600" in refused.value.why


def test_a_control_plane_refuses_exposed_keys_of_others(tmp_path: Path, secret: Path) -> None:
    settings = Settings(
        data=tmp_path, etcd_ca=secret, etcd_certificate=secret, etcd_key=secret, coordination="etcd"
    )
    assert _tls(settings)
    keys = tmp_path / "aws"
    keys.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    keys.chmod(0o600)
    assert _read_credentials(keys, "default")["access_key_id"] == "a"
    keys.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        _read_credentials(keys, "default")
    secret.chmod(0o644)
    with pytest.raises(Exposed, match="chmod 600"):
        _tls(settings)


def test_pipes_are_whoever_gave_them(secret: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"hush")
    os.close(writing)
    try:
        assert read_private(f"/proc/self/fd/{reading}") == b"hush"
    finally:
        os.close(reading)


def test_a_file_of_another_account_is_refused_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "key"
    secret.write_text("x")
    monkeypatch.setattr("os.geteuid", lambda: 2_000_000_000)
    monkeypatch.setattr("os.access", lambda place, _mode: place != secret)
    refusal = PermissionError(13, "Permission denied", str(secret))
    assert words_of(refusal).startswith(f"{secret}: Permission denied; it belongs to ")
    assert words_of(refusal).endswith("and this program runs as uid 2000000000")
