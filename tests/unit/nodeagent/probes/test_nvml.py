"""The probe of NVIDIA devices against a library that answers, fails and hangs as it is told."""

from __future__ import annotations

import threading
from pathlib import Path

import pynvml
import pytest

from nodeagent.probes.interface import Device, DeviceProcess
from nodeagent.probes.nvml import UNUSABLE_AFTER_XID, NvmlProbe
from tests.nvml.library import FakeDriver, loaded

GPU0 = (
    "gpu uuid=GPU-0 name=Fake-A memory=4000 used=10 minor=0 util=50 power=70000 temp=41 clock=1410"
)
GPU1 = "gpu uuid=GPU-1 name=Fake-A memory=4000 minor=1"
MIG = "mig gpu=0 uuid=MIG-0 name=Fake-A-MIG-1g memory=1000 used=7 gi=1 ci=0"
MIG1 = "mig gpu=0 uuid=MIG-1 name=Fake-A-MIG-2g memory=2000 gi=2 ci=0"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return loaded(tmp_path, monkeypatch)


@pytest.fixture
def probe(driver: FakeDriver) -> NvmlProbe:
    return NvmlProbe(driver.proc)


def troubles(probe: NvmlProbe) -> dict[str, str]:
    return {device.uuid: device.trouble for device in probe.devices().devices}


def test_what_the_driver_tells(driver: FakeDriver, probe: NvmlProbe) -> None:
    driver.say(GPU0 + " corrected=3 throttle=4", GPU1, "process gpu=0 pid=7 memory=5")
    found = probe.devices()
    assert found.reason == ""
    assert found.devices[0] == Device(
        index=0, uuid="GPU-0", model="Fake-A", memory_bytes=4000, minor=0, simulated=False
    )
    assert [device.minor for device in found.devices] == [0, 1]
    first, second = probe.sample()
    assert first.utilization_percent == 50
    assert first.memory_used_bytes == 10
    assert first.power_watts == 70
    assert first.temperature_celsius == 41
    assert first.clock_mhz == first.memory_clock_mhz == 1410
    assert (first.ecc_corrected, first.ecc_uncorrected) == (3, 0)
    assert first.throttled == "power cap"
    assert first.processes == (DeviceProcess(pid=7, memory_bytes=5),)
    assert second.processes == ()
    assert second.throttled == ""


@pytest.mark.parametrize(
    ("lines", "driver_version", "cuda_version"),
    [
        (["driver version=550.54.14 cuda=12040"], "550.54.14", "12.4"),
        (
            [
                "driver version=470.1 cuda=11040",
                "deny function=nvmlSystemGetCudaDriverVersion_v2 error=3",
            ],
            "470.1",
            "",
        ),
        ([], "", ""),
    ],
)
def test_each_device_has_the_versions_of_its_driver(
    driver: FakeDriver,
    probe: NvmlProbe,
    lines: list[str],
    driver_version: str,
    cuda_version: str,
) -> None:
    driver.say(GPU0 + " mig=1", GPU1, MIG, *lines)
    found = probe.devices().devices
    assert [one.uuid for one in found] == ["MIG-0", "GPU-1"]
    assert {one.driver_version for one in found} == {driver_version}
    assert {one.cuda_version for one in found} == {cuda_version}


@pytest.mark.parametrize(
    ("lines", "used"),
    [
        pytest.param([], 10, id="without what the driver reserves"),
        pytest.param(
            ["deny function=nvmlDeviceGetMemoryInfo_v2 error=3"], 500, id="an older driver"
        ),
        pytest.param(
            [
                "deny function=nvmlDeviceGetMemoryInfo_v2 error=3",
                "deny function=nvmlDeviceGetMemoryInfo error=3",
            ],
            None,
            id="unknown",
        ),
    ],
)
def test_used_memory_is_what_nvidia_smi_shows(
    driver: FakeDriver, probe: NvmlProbe, lines: list[str], used: int | None
) -> None:
    driver.say(GPU0 + " reserved=490", *lines)
    (sample,) = probe.sample()
    assert sample.memory_used_bytes == used


def test_devices_come_and_go(driver: FakeDriver, probe: NvmlProbe) -> None:
    assert probe.devices().reason == "the driver knows no devices"
    driver.say(GPU0)
    assert list(troubles(probe)) == ["GPU-0"]
    driver.say(GPU0, GPU1)
    assert list(troubles(probe)) == ["GPU-0", "GPU-1"]
    driver.say(GPU1)
    assert list(troubles(probe)) == ["GPU-1"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ecc=1", "1 memory error was not corrected since the driver was loaded"),
        ("ecc=3", "3 memory errors were not corrected since the driver was loaded"),
        ("pending=1", "memory pages wait for a reset to be retired"),
        ("remap=1", "a row of its memory could not be remapped"),
        ("action=1", "the driver asks for a reset of the GPU"),
        ("action=2", "the driver asks for a reboot of the machine"),
        ("action=3", ""),
        ("corrected=9", ""),
    ],
)
def test_a_device_that_failed_says_why_and_the_others_go_on(
    driver: FakeDriver, probe: NvmlProbe, said: str, words: str
) -> None:
    driver.say(f"{GPU0} {said}", GPU1)
    assert troubles(probe) == {"GPU-0": words, "GPU-1": ""}
    driver.say(GPU0, GPU1)
    assert troubles(probe) == {"GPU-0": "", "GPU-1": ""}


def test_a_lost_gpu_is_still_listed(driver: FakeDriver, probe: NvmlProbe) -> None:
    driver.say(GPU0, GPU1)
    probe.devices()
    driver.say(GPU0 + " lost=1", GPU1)
    assert troubles(probe) == {"GPU-0": "GPU is lost", "GPU-1": ""}
    assert [sample.uuid for sample in probe.sample()] == ["GPU-1"]


def test_a_gpu_that_was_lost_from_the_start_is_told_of(
    driver: FakeDriver, probe: NvmlProbe
) -> None:
    driver.say(GPU0 + " lost=1", GPU1)
    found = probe.devices()
    assert [(device.uuid, device.index) for device in found.devices] == [("GPU-1", 1)]
    assert found.reason == "no answer from device 0: GPU is lost"


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 79, 48, 119])
def test_xids_after_which_it_is_unusable(driver: FakeDriver, probe: NvmlProbe, xid: int) -> None:
    driver.say(GPU0, GPU1)
    probe.devices()
    driver.say(GPU0, GPU1, f"xid gpu=1 code={xid}")
    trouble = troubles(probe)
    assert trouble["GPU-0"] == ""
    expected = UNUSABLE_AFTER_XID.get(xid)
    assert trouble["GPU-1"] == (f"XID {xid}: {expected}" if expected else "")
    assert [sample.last_xid for sample in probe.sample()] == [None, xid]


def test_an_error_of_a_program_does_not_hide_an_earlier_failure(
    driver: FakeDriver, probe: NvmlProbe
) -> None:
    driver.say(GPU0, "xid gpu=0 code=79", "xid gpu=0 code=31")
    assert troubles(probe)["GPU-0"].startswith("XID 79")
    assert probe.sample()[0].last_xid == 31


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMinorNumber",
        "nvmlEventSetCreate",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetWait_v2",
    ],
)
@pytest.mark.parametrize("error", [3, 4, 13, 999, 4242])
def test_each_question_may_fail_alone(
    driver: FakeDriver, probe: NvmlProbe, function: str, error: int
) -> None:
    driver.say(GPU0, GPU1, f"deny function={function} error={error}")
    assert troubles(probe) == {"GPU-0": "", "GPU-1": ""}
    assert len(probe.sample()) == 2


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_driver_that_fails_is_a_reason_until_it_answers(
    driver: FakeDriver, probe: NvmlProbe, function: str
) -> None:
    driver.say(GPU0, f"deny function={function} error=9")
    found = probe.devices()
    assert not found.devices
    assert "Driver Not Loaded" in found.reason
    assert probe.sample() == ()
    driver.say(GPU0)
    assert troubles(probe) == {"GPU-0": ""}


def test_an_older_library_lacks_functions(
    probe: NvmlProbe, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.say(GPU0)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetRemappedRows")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMPSComputeRunningProcesses")
    assert troubles(probe) == {"GPU-0": ""}
    assert len(probe.sample()) == 1


def test_a_new_board_is_seen_by_a_library_that_counts_once(
    driver: FakeDriver, probe: NvmlProbe
) -> None:
    driver.boards("0000:01:00.0")
    driver.say("counts-once", GPU0)
    assert set(troubles(probe)) == {"GPU-0"}
    driver.say("counts-once", GPU0, GPU1)
    assert set(troubles(probe)) == {"GPU-0"}
    driver.boards("0000:01:00.0", "0000:02:00.0")
    assert set(troubles(probe)) == {"GPU-0", "GPU-1"}


def test_mig_instances_are_the_devices(driver: FakeDriver, probe: NvmlProbe) -> None:
    driver.capabilities("config 1", "gpu0/gi1/access 12", "gpu0/gi1/ci0/access 13", "nonsense x y")
    driver.say(GPU0 + " mig=1", MIG, MIG1, GPU1, "process mig=0 pid=9 memory=1")
    devices = probe.devices().devices
    assert [(d.uuid, d.index, d.parent_uuid) for d in devices] == [
        ("MIG-0", 0, "GPU-0"),
        ("MIG-1", 1, "GPU-0"),
        ("GPU-1", 2, ""),
    ]
    assert devices[0].model == "Fake-A-MIG-1g"
    assert devices[0].memory_bytes == 1000
    assert devices[0].minor == 0
    assert devices[0].nodes == (
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    )
    assert devices[1].nodes == ()
    samples = {sample.uuid: sample for sample in probe.sample()}
    assert list(samples) == ["MIG-0", "MIG-1", "GPU-1"]
    assert samples["MIG-0"].memory_used_bytes == 7
    assert samples["MIG-0"].utilization_percent is None
    assert samples["MIG-0"].temperature_celsius == 41
    assert [one.pid for one in samples["MIG-0"].processes] == [9]


def test_an_instance_fails_alone_or_with_its_gpu(driver: FakeDriver, probe: NvmlProbe) -> None:
    driver.say(GPU0 + " mig=1", MIG, MIG1, "xid gpu=0 code=95 gi=2")
    assert troubles(probe) == {"MIG-0": "", "MIG-1": "XID 95: uncontained memory error"}
    driver.say(GPU0 + " mig=1 action=1", MIG)
    assert troubles(probe) == {"MIG-0": "the driver asks for a reset of the GPU"}


def test_mig_mode_without_instances(driver: FakeDriver, probe: NvmlProbe) -> None:
    driver.say(GPU0 + " mig=1")
    assert troubles(probe) == {"GPU-0": "MIG mode is on, and it has no instances"}


def test_a_hanging_driver_answers_once_it_goes_on(driver: FakeDriver, probe: NvmlProbe) -> None:
    driver.say(GPU0, "hang")
    answer: list[dict[str, str]] = []
    asking = threading.Thread(target=lambda: answer.append(troubles(probe)), daemon=True)
    asking.start()
    asking.join(0.2)
    assert asking.is_alive()
    driver.say(GPU0)
    asking.join(60)
    assert answer == [{"GPU-0": ""}]


def test_a_device_that_was_gone_comes_back_without_its_xids(
    driver: FakeDriver, probe: NvmlProbe
) -> None:
    driver.say(GPU0, GPU1, "xid gpu=1 code=79")
    assert troubles(probe)["GPU-1"]
    driver.say(GPU0)
    probe.devices()
    driver.say(GPU0, GPU1, "xid gpu=1 code=79")
    assert troubles(probe) == {"GPU-0": "", "GPU-1": ""}
    assert [sample.last_xid for sample in probe.sample()] == [None, None]
