"""`nsml-controlplane --check` says all that is wrong, and changes nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from controlplane.access.authority import CERTIFICATE_LIFE, make_authority
from controlplane.startup.checking import check
from controlplane.startup.config import Settings, SettingsError, read_settings
from nsml.common.clock import SystemClock


class Past(SystemClock):
    def time(self) -> float:
        return super().time() - 2 * CERTIFICATE_LIFE.total_seconds()


def settings(folder: Path, **given: object) -> Settings:
    plain = {"data": folder / "data", "coordination": "embedded", "address": "127.0.0.1:0"}
    return msgspec.convert(plain | given, Settings, dec_hook=lambda kind, value: kind(value))


async def grades(folder: Path, **given: object) -> dict[str, str]:
    found = await check(settings(folder, **given), SystemClock())
    return {one.subject: f"{one.grade} {one.found}" for one in found}


async def test_sound_settings_change_nothing(tmp_path: Path) -> None:
    found = await grades(tmp_path)
    assert {one.split()[0] for one in found.values()} == {"ok"}
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - no event loop minds this


async def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    authority = make_authority(Past())
    late = authority.issue_server(["etcd"])
    ended = tmp_path / "ended.pem"
    ended.write_bytes(late.chain)
    readable = tmp_path / "etcd.key"
    readable.write_bytes(late.key)
    readable.chmod(0o644)
    found = await grades(
        tmp_path,
        coordination="https://127.0.0.1:1",
        etcd_ca=tmp_path / "missing.pem",
        etcd_certificate=ended,
        etcd_key=readable,
        history="postgresql://nsml@127.0.0.1:1/nsml",
        objects=f"file://{tmp_path}/absent",
        listen="192.0.2.1:18553",
    )
    wrong = {name: one for name, one in found.items() if one.startswith("bad")}
    assert set(wrong) == {
        "etcd_ca",
        "etcd_certificate",
        "etcd_key",
        "coordination",
        "history",
        "objects",
        "listen",
    }, found
    assert "ended 90d ago" in wrong["etcd_certificate"]
    assert "others may read it" in wrong["etcd_key"]
    assert "refused" in wrong["history"].lower()


async def test_a_token_that_would_open_no_metrics_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short")
    token.chmod(0o600)
    found = await grades(tmp_path, metrics_token_file=token)
    assert found["metrics_token_file"] == f"bad {token} has no token of 16 bytes or more"
    token.write_text("x" * 16)
    assert (await grades(tmp_path, metrics_token_file=token))["metrics_token_file"] == f"ok {token}"


async def test_a_taken_port_is_named_unless_it_is_our_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = await grades(tmp_path, address=address)
        assert found["address"].startswith(f"bad cannot listen on {address}")


@pytest.mark.parametrize("limit", ["what=1h", "high=1x", "high=1", "high=0s"])
def test_all_values_out_of_range_are_named_together(tmp_path: Path, limit: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'data = "d"\nheartbeat_s = 0\nlease_s = 99\ntime_limits = ["{limit}"]\n')
    with pytest.raises(SettingsError) as refused:
        read_settings(file, {})
    for name in ("heartbeat_s", "lease_s", "time_limits"):
        assert f"{name}: " in str(refused.value)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('data = "d"\naddress = "127.0.0.1:0"\ncoordination = "embedded"\n', 0, "ok    data"),
        (
            'data = "d"\naddress = "127.0.0.1:0"\nobjects = "file:///proc/nowhere/x"\n',
            1,
            "bad   objects",
        ),
        ('data = "d"\nlease_s = 99\n', 2, "lease_s: between 0.5 and 60"),
    ],
)
def test_the_exit_status_says_whether_it_would_start(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "controlplane.main", "--check", "--config", str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
    assert not (tmp_path / "d").exists()
