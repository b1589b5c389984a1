"""One suite for every device probe, and what each of them adds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nodeagent.probes.host import HostProbe
from nodeagent.probes.nvml import NvmlProbe
from nodeagent.probes.simulated import SimulatedLoad, SimulatedProbe
from nsml.common.clock import SystemClock
from tests.nvml.library import loaded
from tests.support.fake_probe import FakeProbe, fake_device

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.probes.interface import DeviceProbe


class StillClock(SystemClock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(params=["nvml", "mig", "simulated", "simulated, cut", "fake"])
def probe(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DeviceProbe:
    """The real driver has its turn in tests/gpu."""
    made: DeviceProbe
    match request.param:
        case "nvml":
            driver = loaded(tmp_path, monkeypatch)
            driver.say("gpu uuid=GPU-0 used=10", "gpu uuid=GPU-1 ecc=1")
            made = NvmlProbe(driver.proc)
        case "mig":
            driver = loaded(tmp_path, monkeypatch)
            driver.say("gpu uuid=GPU-0 mig=1", "mig gpu=0 uuid=MIG-0", "gpu uuid=GPU-1")
            made = NvmlProbe(driver.proc)
        case "simulated":
            clock = SystemClock()
            load = SimulatedLoad(share=0.5, since=clock.monotonic())
            made = SimulatedProbe("node", 4, clock, lambda: {made.devices().devices[1].uuid: load})
        case "simulated, cut":
            events = tmp_path / "events"
            events.write_text("0 cut 2\n1 failed it is hot\n")
            made = SimulatedProbe("node", 3, SystemClock(), events=events)
        case _:
            made = FakeProbe([fake_device(0), fake_device(1)])
    return made


def test_devices_are_whole_distinct_and_in_order(probe: DeviceProbe) -> None:
    devices = probe.devices().devices
    assert devices
    assert [device.index for device in devices] == sorted({device.index for device in devices})
    assert len({device.uuid for device in devices}) == len(devices)
    for device in devices:
        assert device.uuid
        assert device.model
        assert device.memory_bytes > 0
        assert device.simulated == device.uuid.startswith("SIM-")


def test_devices_are_the_same_again(probe: DeviceProbe) -> None:
    assert probe.devices() == probe.devices()


def test_samples_are_of_the_devices_and_in_range(probe: DeviceProbe) -> None:
    devices = {device.uuid: device for device in probe.devices().devices}
    samples = probe.sample()
    assert [sample.uuid for sample in samples] == list(devices)
    for sample in samples:
        total = devices[sample.uuid].memory_bytes
        assert sample.memory_used_bytes is None or 0 <= sample.memory_used_bytes <= total
        assert sample.utilization_percent is None or 0 <= sample.utilization_percent <= 100
        assert sample.power_watts is None or sample.power_watts >= 0
        assert sample.temperature_celsius is None or -50 < sample.temperature_celsius < 200


def test_nvml_never_raises() -> None:
    probe = NvmlProbe()
    found = probe.devices()
    assert found.devices or found.reason
    assert len(probe.sample()) <= len(found.devices)


def test_simulated_devices_depend_on_node_and_index_alone() -> None:
    clock = SystemClock()
    first = SimulatedProbe("one", 8, clock).devices().devices
    assert first == SimulatedProbe("one", 8, StillClock()).devices().devices
    assert first[:2] == SimulatedProbe("one", 2, clock).devices().devices
    other = SimulatedProbe("two", 8, clock).devices().devices
    assert not {device.uuid for device in first} & {device.uuid for device in other}
    assert all(device.simulated for device in first)


def test_simulated_devices_fail_as_a_file_says(tmp_path: Path) -> None:
    events = tmp_path / "events"
    probe = SimulatedProbe("node", 3, SystemClock(), events=events)
    whole = probe.devices().devices
    events.write_text("0 failed  the fan stands still\n1 gone\n2 cut 2\nnonsense\n7 gone\n")
    failed, *parts = probe.devices().devices
    assert failed == replace(whole[0], trouble="the fan stands still")
    assert [(one.parent_uuid, one.memory_bytes) for one in parts] == [
        (whole[2].uuid, whole[2].memory_bytes // 2)
    ] * 2
    assert len({one.uuid for one in (failed, *parts)}) == 3
    for harmless in ("0 cut 0\n1 cut 99\n2 cut x\n", "0\n1 explode\n\n", "-1 gone\n"):
        events.write_text(harmless)
        assert probe.devices().devices == whole
    events.write_bytes(b"0 gone \xff")
    assert probe.devices().devices == whole
    events.write_text("0 gone\n1 gone\n2 gone\n")
    assert probe.devices().reason == "every simulated device is gone"
    events.unlink()
    assert probe.devices().devices == whole


def test_simulated_telemetry_follows_the_load() -> None:
    clock = StillClock()
    loads: dict[str, SimulatedLoad] = {}
    probe = SimulatedProbe("node", 1, clock, lambda: loads)
    uuid = probe.devices().devices[0].uuid
    (idle,) = probe.sample()
    assert idle.utilization_percent == 0
    loads[uuid] = SimulatedLoad(share=1.0, since=clock.now)
    clock.now += 600
    (busy,) = probe.sample()
    assert busy == probe.sample()[0]
    loads[uuid] = replace(loads[uuid], share=0.25)
    (partly,) = probe.sample()
    for name in ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius"):
        assert getattr(idle, name) < getattr(partly, name) < getattr(busy, name), name


def test_a_silent_device_is_missing_from_the_samples() -> None:
    probe = FakeProbe([fake_device(0), fake_device(1)])
    probe.silent.add("GPU-fake-0")
    assert [sample.uuid for sample in probe.sample()] == ["GPU-fake-1"]


def test_the_host() -> None:
    probe = HostProbe()
    facts = probe.facts()
    assert facts == probe.facts()
    assert facts.cpus >= 1
    assert len(facts.boot_id) == 36
    sample = probe.sample()
    assert 0 < sample.memory_used_bytes < facts.memory_bytes
    assert 0 <= sample.cpu_percent <= 100
