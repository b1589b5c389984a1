"""What a node offers while its devices come, go, fail and recover."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.machine.devices import (
    NO_ANSWER,
    VANISHED,
    DeviceWatch,
    Offer,
    offer_of,
    silent_offer,
)
from nodeagent.machine.foreign_processes import Occupants
from nodeagent.probes.interface import Device, DeviceProcess, Devices, DeviceSample
from nodeagent.runtimes.interface import ReplicaFacts
from nsml.common.clock import SystemClock, in_own_thread
from tests.support.fake_probe import FakeProbe, fake_device

ZERO, ONE = fake_device(0), fake_device(1)


def part(index: int, parent: Device = ZERO) -> Device:
    return replace(parent, uuid=f"MIG-{index}", index=index, parent_uuid=parent.uuid)


def said(offer: Offer) -> dict[str, str]:
    return {one.device.uuid: one.withheld for one in offer.devices}


def offered(
    *devices: Device,
    before: Offer | None = None,
    used_by: Mapping[str, str] | None = None,
    held: Collection[str] = (),
) -> Offer:
    found = Devices(devices=devices, reason="")
    return offer_of(found, before or Offer(), used_by=used_by or {}, held=held)


def test_each_device_says_its_own() -> None:
    broken = replace(ZERO, trouble="it failed")
    assert said(offered(broken, ONE, used_by={ONE.uuid: "used by process 7"})) == {
        ZERO.uuid: "it failed",
        ONE.uuid: "used by process 7",
    }


def test_what_vanished_is_withheld_until_it_is_back() -> None:
    gone = offered(ONE, before=offered(ZERO, ONE))
    assert said(gone) == {ZERO.uuid: VANISHED, ONE.uuid: ""}
    assert said(offered(ZERO, ONE, before=gone)) == {ZERO.uuid: "", ONE.uuid: ""}


def test_instances_take_the_place_of_their_device() -> None:
    cut = offered(part(0), part(1), ONE, before=offered(ZERO, ONE))
    assert said(cut) == {"MIG-0": "", "MIG-1": "", ONE.uuid: ""}
    assert said(offered(ZERO, ONE, before=cut)) == {ZERO.uuid: "", ONE.uuid: ""}


def test_a_destroyed_instance_that_a_session_holds_is_still_told_of() -> None:
    cut = offered(part(0), part(1))
    assert said(offered(ZERO, before=cut, held={"MIG-1"})) == {ZERO.uuid: "", "MIG-1": VANISHED}
    assert said(offered(part(0), before=cut)) == {"MIG-0": ""}


def test_a_gpu_with_instances_may_vanish() -> None:
    cut = offered(part(0), ONE)
    assert said(offered(ONE, before=cut)) == {"MIG-0": VANISHED, ONE.uuid: ""}


def test_of_a_silent_driver_everything_is_withheld() -> None:
    silent = silent_offer(offered(ZERO, ONE))
    assert said(silent) == {ZERO.uuid: NO_ANSWER, ONE.uuid: NO_ANSWER}
    assert silent.note == NO_ANSWER
    assert said(offered(ZERO, ONE, before=silent)) == {ZERO.uuid: "", ONE.uuid: ""}


_READINGS = st.lists(st.lists(st.sampled_from(["", "failed", "gone", "cut"]), max_size=3))


@given(readings=_READINGS, held=st.frozensets(st.sampled_from([f"G{i}" for i in range(3)])))
def test_offers_never_name_a_device_twice_or_forget_what_failed(
    readings: list[list[str]], held: frozenset[str]
) -> None:
    offer = Offer()
    for states in readings:
        found: list[Device] = []
        for number, state in enumerate(states):
            whole = replace(ZERO, uuid=f"G{number}")
            if state == "cut":
                found += [
                    replace(whole, uuid=f"MIG-{number}-{i}", parent_uuid=whole.uuid) for i in (0, 1)
                ]
            elif state != "gone":
                found.append(replace(whole, trouble=state))
        found = [replace(device, index=index) for index, device in enumerate(found)]
        offer = offer_of(Devices(devices=found), offer, used_by={}, held=held)
        uuids = [one.device.uuid for one in offer.devices]
        assert len(set(uuids)) == len(uuids)
        indexes = [one.device.index for one in offer.devices]
        assert indexes == sorted(set(indexes))
        well = {one.uuid for one in found if not one.trouble}
        assert {one.device.uuid for one in offer.devices if not one.withheld} == well


@dataclass
class Watched:
    """A watch over a fake driver, with real threads."""

    probe: FakeProbe
    replicas: list[ReplicaFacts] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    changes: int = 0
    occupants: Occupants | None = None
    answers_within_s: float = 60.0

    def __post_init__(self) -> None:
        self.watch = DeviceWatch(
            self.probe,
            replicas=self._list,
            shares=lambda: self.shares,
            before_reading=lambda _: None,
            changed=self._changed,
            clock=SystemClock(),
            run_long=in_own_thread,
            interval_s=0.001,
            answers_within_s=self.answers_within_s,
            occupants=self.occupants,
        )

    async def _list(self) -> Sequence[ReplicaFacts]:
        return self.replicas

    def _changed(self) -> None:
        self.changes += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watch.run())
        try:
            await self.watch.known()
            yield
            assert not task.done()
        finally:
            self.probe.answers.set()
            task.cancel()
            await asyncio.wait({task})

    async def until(self, condition: Callable[[dict[str, str]], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition(said(self.watch.offer)):  # noqa: ASYNC110 - readings count, too
                await asyncio.sleep(0.002)


@pytest.fixture
def watched() -> Watched:
    return Watched(FakeProbe([ZERO, ONE]))


@pytest.fixture
def hasty() -> Watched:
    """One that soon takes a driver that does not answer for one that hangs."""
    return Watched(FakeProbe([ZERO, ONE]), answers_within_s=0.2)


async def test_changes_are_told_once(watched: Watched) -> None:
    async with watched.running():
        assert said(watched.watch.offer) == {ZERO.uuid: "", ONE.uuid: ""}
        assert watched.changes == 1
        watched.probe.silent.add(ONE.uuid)
        await watched.until(lambda offer: offer[ONE.uuid] == "no answer")
        after = watched.probe.readings + 3
        await watched.until(lambda _: watched.probe.readings > after)
        assert watched.changes == 2
        assert [one.uuid for one in watched.watch.samples()] == [ZERO.uuid]


async def test_a_hung_driver_is_told_of_and_may_recover(hasty: Watched) -> None:
    async with hasty.running():
        hasty.probe.answers.clear()
        await hasty.until(lambda offer: set(offer.values()) == {NO_ANSWER})
        assert hasty.watch.message().device_note == NO_ANSWER
        assert hasty.watch.samples() == []
        hasty.probe.answers.set()
        await hasty.until(lambda offer: set(offer.values()) == {""})


async def test_a_driver_that_hangs_from_the_start_holds_nothing_up(hasty: Watched) -> None:
    hasty.probe.answers.clear()
    async with asyncio.timeout(60), hasty.running():
        assert hasty.watch.message().device_note == NO_ANSWER
        hasty.probe.answers.set()
        await hasty.until(lambda offer: set(offer) == {ZERO.uuid, ONE.uuid})


async def test_a_probe_that_raises_ends_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Devices:
        raise ZeroDivisionError("a defect")

    async with watched.running():
        with monkeypatch.context() as patch:
            patch.setattr(watched.probe, "devices", broken)
            await watched.until(lambda offer: set(offer.values()) == {VANISHED})
            assert "a defect" in watched.watch.message().device_note
        await watched.until(lambda offer: set(offer.values()) == {""})


async def test_a_device_of_a_stranger_is_withheld_while_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    stat = tmp_path / "7" / "stat"
    stat.write_text("7 (train) S 1 " + "0 " * 30)
    probe = FakeProbe([ZERO, ONE])
    probe.samples[ONE.uuid] = _used_by(ONE, 7)
    watched = Watched(probe, occupants=Occupants(tmp_path))
    async with watched.running():
        withheld = said(watched.watch.offer)
        assert withheld[ZERO.uuid] == ""
        assert withheld[ONE.uuid].startswith("used by process 7 (train of ")
        assert watched.watch.samples()[1].process_count == 1
        assert watched.watch.on_devices() == {7: [(1, None)]}
        stat.unlink()
        await watched.until(lambda offer: offer[ONE.uuid] == "")


async def test_devices_are_granted_by_uuid(watched: Watched) -> None:
    watched.probe.put(replace(part(3), nodes=("/dev/nvidia-caps/nvidia-cap3",), minor=0), ONE)
    async with watched.running():
        (grant,) = watched.watch.grants(["MIG-3"])
        assert grant.uuid == "MIG-3"
        assert grant.nodes == ("/dev/nvidia-caps/nvidia-cap3",)
        with pytest.raises(ValueError, match="no device GPU-none"):
            watched.watch.grants([ONE.uuid, "GPU-none"])


async def test_words_of_a_driver_are_cut_to_what_a_message_holds(watched: Watched) -> None:
    watched.probe.put(replace(ZERO, trouble="ä" * 5000, model="m" * 5000))
    async with watched.running():
        (device,) = watched.watch.message().devices
        assert len(device.withheld.encode()) <= 200
        assert len(device.model) == 200


async def test_replicas_that_cannot_be_listed_are_held_against_nobody(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.probe.samples[ONE.uuid] = _used_by(ONE, os.getpid())

    async def broken() -> Sequence[ReplicaFacts]:
        raise OSError("no more files")

    monkeypatch.setattr(watched.watch, "_replicas", broken)
    async with watched.running():
        assert set(said(watched.watch.offer).values()) == {""}


async def test_processes_that_cannot_be_looked_at_hold_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(FakeProbe([ZERO, ONE]), answers_within_s=1.0)
    watched.probe.samples[ONE.uuid] = _used_by(ONE, os.getpid())
    looked = asyncio.Event()

    async def hangs() -> Sequence[ReplicaFacts]:
        await looked.wait()
        return []

    monkeypatch.setattr(watched.watch, "_replicas", hangs)
    async with asyncio.timeout(60), watched.running():
        assert set(said(watched.watch.offer).values()) == {""}
        watched.probe.silent.add(ZERO.uuid)
        await watched.until(lambda offer: offer[ZERO.uuid] == "no answer")
        looked.set()
        await watched.until(lambda offer: "of no session" in offer[ONE.uuid])


def _used_by(device: Device, pid: int) -> DeviceSample:
    return DeviceSample(
        uuid=device.uuid,
        utilization_percent=1.0,
        memory_used_bytes=1,
        power_watts=None,
        temperature_celsius=None,
        processes=(DeviceProcess(pid=pid, memory_bytes=None),),
    )
