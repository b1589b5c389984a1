"""The devices that the node offers: read repeatedly, judged, and reported when they change.

One reader calls the driver, in a thread of its own, for as long as that takes; nothing else waits
for it. A driver that misses the deadline counts as not responding, and all devices are
withheld until a reading is in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import structlog

from nodeagent.machine.foreign_processes import Occupants, Replicas
from nodeagent.probes.interface import Device, DeviceProbe, Devices, DeviceSample
from nodeagent.runtimes.interface import DeviceGrant, ReplicaFacts, ReplicaState
from nsml.common.clock import Clock, Offload
from nsml.common.concurrency import TaskGroup
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources

ANSWERS_WITHIN_S = 20.0
NO_ANSWER = "the driver does not answer"
VANISHED = "the driver lists it no more"

_MOST_DEVICES = 256
_MOST_TEXT_BYTES = 200

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """One device and why it accepts no new placements; empty: it is offered."""

    device: Device
    withheld: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """All devices of the node. `note` explains why there are none, or fewer than there should be."""

    devices: Sequence[OfferedDevice] = ()
    note: str = ""


def offer_of(
    found: Devices, before: Offer, *, used_by: Mapping[str, str], held: Collection[str]
) -> Offer:
    """Return the offer after a reading.

    Args:
        found: the driver's result.
        before: the previous offer.
        used_by: by uuid, the foreign user of a device.
        held: the devices used by sessions.
    """
    listed = {device.uuid: device for device in found.devices}
    offered = [
        OfferedDevice(device=device, withheld=device.trouble or used_by.get(device.uuid, ""))
        for device in listed.values()
    ]
    missed = [
        OfferedDevice(device=one.device, withheld=VANISHED)
        for one in before.devices
        if one.device.uuid not in listed and _is_missed(one.device, listed.values(), held)
    ]
    return Offer(devices=_numbered(offered, missed)[:_MOST_DEVICES], note=found.reason)


def silent_offer(before: Offer) -> Offer:
    """Return the offer while the driver does not answer: no devices, but previous ones may return."""
    return Offer(
        devices=[OfferedDevice(device=one.device, withheld=NO_ANSWER) for one in before.devices],
        note=NO_ANSWER,
    )


def _is_missed(device: Device, listed: Collection[Device], held: Collection[str]) -> bool:
    """Whether an unlisted device should be listed.

    A change of the MIG mode, or of the instances, replaces devices of the same hardware: then none is
    missing, except those that a session still uses.
    """
    if device.uuid in held:
        return True
    hardware = device.parent_uuid or device.uuid
    return all(hardware not in {one.uuid, one.parent_uuid} for one in listed)


def _numbered(
    listed: Sequence[OfferedDevice], missed: Sequence[OfferedDevice]
) -> list[OfferedDevice]:
    """Return both in order of index: missed ones are renumbered if their index was reused."""
    taken = {one.device.index for one in listed}
    every = list(listed)
    for one in missed:
        index = one.device.index if one.device.index not in taken else max(taken) + 1
        taken.add(index)
        every.append(replace(one, device=replace(one.device, index=index)))
    return sorted(every, key=lambda one: one.device.index)


class DeviceWatch:
    """Keeps the offer of one node.

    Args:
        probe: the driver.
        replicas: lists the runtime's replicas, to distinguish their processes from others.
        shares: shares of sessions by device uuid.
        before_reading: gets the shares before each reading (for simulated devices).
        changed: called when the offer has changed.
        run_long: runs each reading in a thread of its own.
    """

    def __init__(
        self,
        probe: DeviceProbe,
        *,
        replicas: Callable[[], Awaitable[Sequence[ReplicaFacts]]],
        shares: Callable[[], Mapping[str, float]],
        before_reading: Callable[[Mapping[str, float]], object],
        changed: Callable[[], object],
        clock: Clock,
        run_long: Offload,
        interval_s: float,
        answers_within_s: float = ANSWERS_WITHIN_S,
        occupants: Occupants | None = None,
    ) -> None:
        self._probe = probe
        self._replicas = replicas
        self._shares = shares
        self._before_reading = before_reading
        self._changed = changed
        self._clock = clock
        self._run_long = run_long
        self._interval_s = interval_s
        self._answers_within_s = answers_within_s
        self._occupants = occupants or Occupants()
        self._offer = Offer()
        self._message = pb.DevicesChanged()
        self._samples: Sequence[DeviceSample] = ()
        self._looking: asyncio.Task[Mapping[str, str]] | None = None
        self._seen: Mapping[str, str] = {}
        self._known = asyncio.Event()

    @property
    def offer(self) -> Offer:
        """The current offer."""
        return self._offer

    async def known(self) -> None:
        """Return when the first reading is complete, or overdue."""
        await self._known.wait()

    def message(self) -> pb.DevicesChanged:
        """Return the offer as a message; a copy."""
        message = pb.DevicesChanged()
        message.CopyFrom(self._message)  # requested with every message of the agent
        return message

    def samples(self) -> list[resources.DeviceSample]:
        """Return the newest readings; none while the driver does not answer."""
        return [_sample_message(one) for one in self._samples]

    def on_devices(self) -> Mapping[int, Sequence[tuple[int, int | None]]]:
        """Return by node pid the devices of each process: index, and bytes if the driver reports them."""
        index_of = {one.device.uuid: one.device.index for one in self._offer.devices}
        found: dict[int, list[tuple[int, int | None]]] = {}
        for sample in self._samples:
            for process in sample.processes if sample.uuid in index_of else ():
                held = (index_of[sample.uuid], process.memory_bytes)
                found.setdefault(process.pid, []).append(held)
        return found

    def grants(self, uuids: Sequence[str]) -> list[DeviceGrant]:
        """Return the devices of these uuids; raises ValueError for a missing one."""
        known = {one.device.uuid: one.device for one in self._offer.devices}
        missing = [uuid for uuid in uuids if uuid not in known]
        if missing:
            raise ValueError(f"this node has no device {', '.join(missing)}")
        return [_grant(known[uuid]) for uuid in uuids]

    async def run(self) -> NoReturn:
        """Read until cancelled."""
        async with TaskGroup() as group:
            while True:
                self._before_reading(self._shares())
                reading = group.create_task(self._run_long(self._read))
                done, _ = await asyncio.wait({reading}, timeout=self._answers_within_s)
                if not done:
                    self._take(silent_offer(self._offer), ())
                found, samples = await reading
                if done:
                    used_by = await self._occupied(group, samples)
                    held = self._shares().keys()
                    offer = offer_of(found, self._offer, used_by=used_by, held=held)
                    self._take(offer, samples)
                # a late reading is old: the next one shows whether it is in time again
                await self._clock.sleep(self._interval_s)

    def _read(self) -> tuple[Devices, Sequence[DeviceSample]]:
        try:
            return self._probe.devices(), self._probe.sample()
        except Exception as error:
            # It must not raise, and the agent continues.
            log.exception("devices.unreadable")
            return Devices(reason=f"the driver could not be read: {error}"), ()

    async def _occupied(
        self, group: TaskGroup, samples: Sequence[DeviceSample]
    ) -> Mapping[str, str]:
        """Return foreign users of devices, as far as found in time.

        Even reading the owner of a process stuck in the kernel may hang: readings continue without.
        """
        within_s = 0.0
        if self._looking is None:
            self._looking, within_s = group.create_task(self._look(samples)), self._answers_within_s
        done, _ = await asyncio.wait({self._looking}, timeout=within_s)
        if done:
            self._seen, self._looking = self._looking.result(), None
        elif within_s:
            log.warning("devices.processes_unseen", waited_s=within_s)
        return self._seen

    async def _look(self, samples: Sequence[DeviceSample]) -> Mapping[str, str]:
        try:
            return await self._used_by(samples)
        except Exception:
            # The owners are unknown now: withhold nothing for that.
            log.exception("devices.processes_unknown")
            return {}

    async def _used_by(self, samples: Sequence[DeviceSample]) -> Mapping[str, str]:
        if not any(sample.processes for sample in samples):
            self._occupants.looked()
            return {}
        now = self._clock.monotonic()
        is_open = await self._run_long(partial(self._occupants.unknown, samples, now))
        replicas = _replicas(await self._replicas()) if is_open else Replicas()
        return await self._run_long(partial(self._occupants.strangers, samples, replicas, now))

    def _take(self, offer: Offer, samples: Sequence[DeviceSample]) -> None:
        before, self._offer, self._samples = self._offer, offer, samples
        self._known.set()
        if before == offer:
            return
        self._message = pb.DevicesChanged(
            devices=[_message(one) for one in offer.devices], device_note=offer.note
        )
        withheld = {one.device.uuid: one.withheld for one in offer.devices if one.withheld}
        log.info("devices.changed", count=len(offer.devices), withheld=withheld, note=offer.note)
        self._changed()


def _replicas(facts: Sequence[ReplicaFacts]) -> Replicas:
    return Replicas(
        marks=frozenset(str(one.replica_id) for one in facts),
        pids=frozenset(one.pid for one in facts if one.pid and one.state is ReplicaState.RUNNING),
    )


def _message(one: OfferedDevice) -> resources.Device:
    device = one.device
    return resources.Device(
        uuid=device.uuid,
        index=device.index,
        model=_short(device.model),
        memory_bytes=device.memory_bytes,
        simulated=device.simulated,
        withheld=_short(one.withheld),
        parent_uuid=device.parent_uuid,
        driver_version=_short(device.driver_version),
        cuda_version=_short(device.cuda_version),
    )


def _short(text: str) -> str:
    return text.encode()[:_MOST_TEXT_BYTES].decode(errors="ignore")


def _grant(device: Device) -> DeviceGrant:
    return DeviceGrant(
        uuid=device.uuid,
        minor=device.minor,
        simulated=device.simulated,
        nodes=device.nodes,
        memory_bytes=device.memory_bytes,
    )


def _sample_message(reading: DeviceSample) -> resources.DeviceSample:
    return resources.DeviceSample(
        uuid=reading.uuid,
        utilization_percent=reading.utilization_percent or 0.0,
        memory_used_bytes=reading.memory_used_bytes or 0,
        power_watts=reading.power_watts or 0.0,
        temperature_celsius=reading.temperature_celsius or 0.0,
        clock_mhz=reading.clock_mhz or 0,
        memory_clock_mhz=reading.memory_clock_mhz or 0,
        ecc_corrected=reading.ecc_corrected or 0,
        ecc_uncorrected=reading.ecc_uncorrected or 0,
        last_xid=reading.last_xid or 0,
        process_count=len(reading.processes),
        throttled=reading.throttled,
    )
