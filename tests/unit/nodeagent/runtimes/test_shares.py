"""What a program is told of its part of each GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.runtimes import launch
from nodeagent.runtimes.interface import (
    DeviceGrant,
    Isolation,
    Mount,
    ReplicaSpec,
    StartRefused,
)
from nodeagent.runtimes.launch import all_mounts, layout_of, whole_environment
from nodeagent.runtimes.shares import MPS, is_kept_by_mps, mps_mount

GPU = DeviceGrant(uuid="GPU-0", minor=0, memory_bytes=8 << 30)
OTHER = DeviceGrant(uuid="GPU-1", minor=1, memory_bytes=6 << 30)
REPLICA = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)


def spec(*devices: DeviceGrant, share: float = 1.0) -> ReplicaSpec:
    return ReplicaSpec(replica_id=REPLICA, argv=["true"], devices=devices, device_share=share)


def environment(one: ReplicaSpec) -> dict[str, str]:
    return whole_environment(one, layout_of(one, ReplicaFolder(Path("/r"))), {})


@pytest.mark.parametrize(
    ("devices", "share", "told"),
    [
        ([], 1.0, (None, None)),
        ([GPU], 1.0, ("1", str(8 << 30))),
        ([GPU, OTHER], 1.0, ("1", str(6 << 30))),
        ([GPU], 0.5, ("0.5", str(4 << 30))),
        ([GPU], 0.001, ("0.001", str((8 << 30) // 1000))),
        ([replace(GPU, memory_bytes=0)], 0.5, ("0.5", None)),
    ],
)
def test_the_share_is_told(
    devices: Sequence[DeviceGrant], share: float, told: tuple[str | None, str | None]
) -> None:
    env = environment(spec(*devices, share=share))
    assert (env.get("NSML_GPU_SHARE"), env.get("NSML_GPU_MEMORY_BYTES")) == told
    assert not any(name.startswith("CUDA_MPS") for name in env)


@pytest.mark.parametrize(
    ("isolation", "pipes"),
    [
        (Isolation.NAMESPACE, MPS),
        (Isolation.CONTAINER, MPS),
        (Isolation.USER, "/host/pipes"),
        (Isolation.NONE, "/host/pipes"),
    ],
)
def test_clients_of_mps_are_kept_to_their_share(isolation: Isolation, pipes: str) -> None:
    mount = Mount(source=Path("/host/pipes"), target=MPS)
    one = replace(spec(GPU, share=0.25), isolation=isolation, mps_pipes=mount)
    env = environment(one)
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == pipes
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
    assert mount in all_mounts(one)


def test_whom_mps_keeps() -> None:
    instance = replace(GPU, uuid="MIG-1")
    simulated = replace(GPU, uuid="SIM-1", simulated=True)
    assert is_kept_by_mps(spec(GPU, share=0.5))
    assert not is_kept_by_mps(spec(GPU))
    assert not is_kept_by_mps(spec(instance, share=0.5))
    assert not is_kept_by_mps(spec(simulated, share=0.5))
    assert not is_kept_by_mps(spec(share=0.5))


def test_mps_is_there_while_its_daemon_runs(tmp_path: Path) -> None:
    pid = tmp_path / "nvidia-cuda-mps-control.pid"
    with pytest.raises(StartRefused, match="does not run at"):
        mps_mount(tmp_path)
    pid.write_text(f"{os.getpid()}\n")
    with pytest.raises(StartRefused, match="does not run at"):
        mps_mount(tmp_path)
    (tmp_path / "control").touch()
    assert mps_mount(tmp_path) == Mount(source=tmp_path, target=MPS)
    for wrong in ("", "none", "999999999"):
        pid.write_text(wrong)
        with pytest.raises(StartRefused, match="take mps_folder out"):
            mps_mount(tmp_path)


def test_instances_bring_their_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caps = tmp_path / "nvidia-caps"
    caps.mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-caps/nvidia-cap12"):
        (tmp_path / name).touch()
    real = launch.Path
    monkeypatch.setattr(
        launch,
        "Path",
        lambda *parts: real(tmp_path, *parts[1:]) if parts[0] == "/dev" else real(*parts),
    )
    cap = "/dev/nvidia-caps/nvidia-cap12"
    grants = [
        DeviceGrant(uuid="MIG-1", minor=0, nodes=(cap, "/dev/nvidia-caps/nvidia-cap13")),
        DeviceGrant(uuid="MIG-2", minor=0, nodes=(cap,)),
    ]
    entries = launch._device_entries(spec(*grants))
    shown = [entry["target"] for entry in entries if "nvidia" in entry["target"]]
    assert shown == ["/dev/nvidiactl", "/dev/nvidia0", cap]
