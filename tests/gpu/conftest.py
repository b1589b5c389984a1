"""The real driver, or the reason why there is none."""

from __future__ import annotations

import pytest

from nodeagent.probes.interface import Device
from nodeagent.probes.nvml import NvmlProbe


@pytest.fixture
def probe() -> NvmlProbe:
    found = NvmlProbe()
    devices = found.devices()
    if not devices.devices:
        pytest.skip(f"needs an NVIDIA GPU: {devices.reason}")
    return found


@pytest.fixture
def device(probe: NvmlProbe) -> Device:
    """One that is well."""
    well = [one for one in probe.devices().devices if not one.trouble]
    if not well:
        pytest.skip("needs a GPU that is well")
    return well[0]
