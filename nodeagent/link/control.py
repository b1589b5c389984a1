"""The Control stream: registration, orders down, reports up; reconnects to the leader for ever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio
import structlog

from nodeagent.folders import ReplicaId
from nodeagent.link.channels import Backoff, Link
from nodeagent.link.outbox import Outbox, replica_message, replica_of
from nodeagent.link.reports import progress_report
from nodeagent.replica.progress import Progress
from nsml.client.errors import ClientError, NotSignedIn, Unavailable, translate
from nsml.common.clock import Clock
from nsml.common.concurrency import TaskGroup
from nsml.spec.metadata import LEADER
from nsml.v1 import agents_pb2 as pb

_HEARTBEAT_SHARE = 0.6
"""Share of the requested interval: one late heartbeat is still in time."""
_REPEAT_AFTER_S = 3.0
_STOCKED_EVERY_S = 2.0
"""Shortest interval of stock reports: each is complete."""
_REFUSED_PAUSE_S = 15.0
_REGISTERED_WITHIN_S = 10.0
"""Longer than a control plane lets an agent wait for the next leader."""
_SHORTEST_HEARTBEAT_S = 0.05
_NOT_ALONE = "NOT_ALONE"
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]

log = structlog.get_logger()


class WrongPlatform(Exception):
    """The control plane belongs to another platform than this node's."""


class Node(Protocol):
    """The node behind the stream."""

    def describe(self) -> pb.Register:
        """Return the first message of a stream."""
        ...

    def devices(self) -> pb.DevicesChanged:
        """Return the devices that it offers now."""
        ...

    def progress(self) -> Mapping[ReplicaId, Progress]:
        """Return what sessions here would lose by being moved."""
        ...

    def changes(self) -> Mapping[ReplicaId, Sequence[pb.MemberReport]]:
        """Return the reports of programs here on changes to them."""
        ...

    def stock(self) -> pb.StockReport:
        """Return its cached data for sessions."""
        ...

    def questions(self) -> list[pb.FindPeers]:
        """Return new questions, each once."""
        ...

    def found_peers(self, answer: pb.FoundPeers) -> None:
        """Process an answer to one of them."""
        ...

    async def registered(self, answer: pb.Registered) -> None:
        """The control plane accepted the node; raises WrongPlatform if it must not be obeyed."""
        ...

    async def learn(self, control_planes: pb.ControlPlanes) -> None:
        """Store the addresses of the control planes."""
        ...

    async def obey(self, orders: pb.Orders) -> bool:
        """Persist and carry out; False if they are older than orders seen before."""
        ...

    def finalized(self, replica_id: ReplicaId) -> None:
        """The control plane expects nothing more of a replica."""
        ...

    def contact(self) -> None:
        """A message of the control plane has arrived."""
        ...

    def open_tunnel(self, order: pb.OpenTunnel) -> None:
        """Dial a tunnel."""
        ...

    def order_image(self, order: pb.ImageOrder) -> None:
        """Start an order about an image; returns at once."""
        ...

    def image_reports(self) -> list[pb.ImageReport]:
        """Return new answers to such orders, each once."""
        ...

    def order_environment(self, order: pb.EnvironmentOrder) -> None:
        """Start an order about environments; returns at once."""
        ...

    def environment_reports(self) -> list[pb.EnvironmentReport]:
        """Return new answers to such orders, each once."""
        ...

    def order_repair(self, order: pb.RepairOrder) -> None:
        """Send blobs that the object store has lost; returns at once."""
        ...

    def repair_reports(self) -> list[pb.RepairReport]:
        """Return new answers to such orders, each once."""
        ...


@dataclass(slots=True)
class _Stream:
    """One open stream and its heartbeat interval."""

    call: Any
    heartbeat_s: float
    accepted: pb.OrdersAccepted | None = None
    offered: pb.DevicesChanged | None = None
    """Last report of devices. Sent once on every stream, beside the registration: the end
    of an older stream may be processed after that."""
    told: Mapping[ReplicaId, Progress] = field(default_factory=dict)
    """Last reports of progress; sent again on every stream."""
    changes: Mapping[ReplicaId, Sequence[pb.MemberReport]] = field(default_factory=dict)
    """Last reports of changes; sent again on every stream."""
    stocked: pb.StockReport = field(default_factory=pb.StockReport)
    """Last report of cached data; sent again on every stream, if there is any."""
    stocked_at: float = float("-inf")
    coming: pb.Orders = field(default_factory=pb.Orders, repr=False)
    """Orders in several messages, as received so far. They contain secrets."""


class Control:
    """Keeps the node registered.

    Args:
        node: the node to register.
        link: the connection to the control planes.
        outbox: the reports to send.
        clock, rng: time and the jitter of pauses.
        longest_backoff_s: longest pause between two attempts.
    """

    def __init__(
        self,
        node: Node,
        link: Link,
        outbox: Outbox,
        *,
        clock: Clock,
        rng: random.Random,
        longest_backoff_s: float,
    ) -> None:
        self._node = node
        self._link = link
        self._outbox = outbox
        self._clock = clock
        self._backoff = Backoff(
            clock, rng, longest_s=longest_backoff_s, free=lambda: len(link.routes.addresses)
        )
        self._refusals = 0
        """Control planes that refused us, in a row."""

    async def run(self) -> NoReturn:
        """Connect, run the stream, and connect again."""
        while True:
            try:
                await self._converse()
            except WrongPlatform:
                log.exception("control.wrong_platform")
                self._link.routes.lost()
                await self._clock.sleep(_REFUSED_PAUSE_S)
            except ClientError as error:
                await self._failed(error)
            except OSError as error:
                # The disk fails: orders that cannot be persisted are not carried out.
                log.warning("control.not_noted", error=str(error))
                await self._backoff.pause()
            except Exception:
                # A defect must not end the agent, which reports the end of its sessions.
                log.exception("control.broken")
                self._link.routes.lost()
                await self._backoff.pause()

    async def _failed(self, error: ClientError) -> None:
        if error.reason == _NOT_ALONE:
            return
        link = self._link
        route = link.routes.now
        told = {"reason": error.reason, "error": error.message}
        more = {"why": error.why, "advice": error.advice}
        log.warning(
            "control.lost", **route._asdict(), **told, **{k: v for k, v in more.items() if v}
        )
        if _tells_of_leader(error):
            leader = error.metadata.get(LEADER, "")
            is_dialled = bool(leader) and link.may_dial(leader)
            link.routes.led_by(leader, self._clock.monotonic(), is_dialled=is_dialled)
            if link.routes.now != route:
                log.info("control.goes", **link.routes.now._asdict())
        else:
            link.routes.lost()
            if not isinstance(error, Unavailable):
                await self._refused(error)
        await self._backoff.pause()

    async def _refused(self, error: ClientError) -> None:
        """Try the next control plane; if all refuse, wait longer."""
        if isinstance(error, NotSignedIn):
            self._link.read_token()  # the control plane writes a new one at its start
        self._refusals += 1
        # Another agent uses this node's name: both would go on superseding each other.
        is_supplanted = error.reason == "SUPERSEDED"
        if is_supplanted or self._refusals >= len(self._link.routes.addresses):
            self._refusals = 0
            await self._clock.sleep(_REFUSED_PAUSE_S)

    async def _converse(self) -> None:
        """Run one stream from registration to its end, which is always a ClientError."""
        if not await self._link.is_connected():
            self._link.routes.avoid(self._link.address, self._clock.monotonic())
            raise Unavailable("there is no connection", reason="UNCONNECTED")
        call = self._link.open("AgentService/Control", pb.ControlRequest, pb.ControlResponse)
        try:
            stream = await self._registered(call)
            async with TaskGroup() as group:
                writer = group.create_task(self._write(stream))
                failure = await self._read_all(stream)
                writer.cancel()
            raise failure
        finally:
            self._link.up.clear()
            call.cancel()

    async def _registered(self, call: Any) -> _Stream:
        """Register; avoid a leader that answers only with failures."""
        route = self._link.routes.now
        try:
            return await self._register(call)
        except Unavailable as error:
            if not route.is_relayed and not _tells_of_leader(error):
                self._link.routes.avoid(route.address, self._clock.monotonic())
            raise

    async def _register(self, call: Any) -> _Stream:
        try:
            async with asyncio.timeout(_REGISTERED_WITHIN_S):
                await call.write(pb.ControlRequest(register=self._node.describe()))
                answer = await call.read()
        except TimeoutError as error:
            raise Unavailable("the control plane did not answer the registration") from error
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise await _failure(call, error) from error
        if answer is _EOF or answer.WhichOneof("kind") != "registered":
            raise Unavailable("the control plane did not answer the registration")
        await self._node.registered(answer.registered)
        interval_s = answer.registered.heartbeat_interval.ToNanoseconds() / 1e9
        if answer.registered.HasField("control_planes"):
            await self._learn(answer.registered.control_planes)
        self._refusals = 0
        self._outbox.repeat()
        self._link.known.set()
        self._link.up.set()
        log.info(
            "control.registered", **self._link.routes.now._asdict(), term=answer.registered.term
        )
        return _Stream(call, max(interval_s * _HEARTBEAT_SHARE, _SHORTEST_HEARTBEAT_S))

    async def _read_all(self, stream: _Stream) -> ClientError:
        try:
            while (message := await stream.call.read()) is not _EOF:
                self._node.contact()
                await self._take(stream, message)
        except grpc.RpcError as error:
            return await _failure(stream.call, error)
        except Unavailable as error:
            return error
        except OSError as error:
            # Orders that could not be persisted are not carried out: the next stream repeats them.
            return Unavailable(f"the node's disk did not take the orders: {error}")
        return Unavailable("the control plane ended the stream")

    async def _take(self, stream: _Stream, message: pb.ControlResponse) -> None:
        match message.WhichOneof("kind"):
            case "orders":
                stream.coming.MergeFrom(message.orders)
                if message.orders.more:
                    return
                orders, stream.coming = stream.coming, pb.Orders()
                orders.ClearField("more")
                _set_to_own_clock(orders, time.time())
                if await self._node.obey(orders):
                    # Not at the registration: orders that always fail would be requested without a pause.
                    self._backoff.reset()
                    stream.accepted = pb.OrdersAccepted(term=orders.term, revision=orders.revision)
                    self._outbox.wake.set()
            case "acknowledged":
                self._acknowledged(message.acknowledged)
            case "control_planes":
                await self._learn(message.control_planes)
            case _:
                self._pass_on(message)

    def _pass_on(self, message: pb.ControlResponse) -> None:
        """Process messages other than orders."""
        match message.WhichOneof("kind"):
            case "open_tunnel":
                self._node.open_tunnel(message.open_tunnel)
            case "image_order":
                self._node.order_image(message.image_order)
            case "found_peers":
                self._node.found_peers(message.found_peers)
            case "environment_order":
                self._node.order_environment(message.environment_order)
            case "repair_order":
                self._node.order_repair(message.repair_order)
            case kind:
                log.warning("control.unknown_message", kind=kind)

    async def _learn(self, control_planes: pb.ControlPlanes) -> None:
        """Raises Unavailable to restart this stream, over a connection that notices a dead peer sooner."""
        was_alone = self._link.is_alone
        await self._node.learn(control_planes)
        if was_alone and not self._link.is_alone:
            raise Unavailable("there are other control planes", reason=_NOT_ALONE)

    def _acknowledged(self, message: pb.ReportsAcknowledged) -> None:
        for report in message.reports:
            try:
                replica_id = replica_of(report.replica)
            except ValueError as error:
                log.warning("control.unknown_replica", error=str(error))
                continue
            self._outbox.acknowledge(replica_id, report.phase)
            if report.phase == pb.REPLICA_PHASE_FINALIZED:
                self._node.finalized(replica_id)

    async def _write(self, stream: _Stream) -> None:
        """Send news at once, and at least a heartbeat in each interval."""
        repeat_at = self._clock.monotonic() + _REPEAT_AFTER_S
        try:
            while True:
                if self._clock.monotonic() >= repeat_at:
                    self._outbox.repeat()
                    repeat_at = self._clock.monotonic() + _REPEAT_AFTER_S
                for message in self._due(stream):
                    await stream.call.write(message)
                await self._wait(stream)
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the reader gets the reason

    def _due(self, stream: _Stream) -> list[pb.ControlRequest]:
        # Before the report of an end: later reports of an ended replica are ignored.
        messages = [pb.ControlRequest(stock=report) for report in self._stock(stream)]
        messages += [pb.ControlRequest(progress=report) for report in self._progress(stream)]
        messages += [pb.ControlRequest(change=report) for report in self._changes(stream)]
        # Also before that of a failed start: so that nothing is placed here again at once.
        devices = self._node.devices()
        if devices != stream.offered:
            messages.append(pb.ControlRequest(devices_changed=devices))
            stream.offered = devices
        messages += [pb.ControlRequest(image_report=one) for one in self._node.image_reports()]
        messages += [pb.ControlRequest(find_peers=one) for one in self._node.questions()]
        messages += [
            pb.ControlRequest(environment_report=one) for one in self._node.environment_reports()
        ]
        messages += [pb.ControlRequest(repair_report=one) for one in self._node.repair_reports()]
        messages += [pb.ControlRequest(report=report) for report in self._outbox.take()]
        if stream.accepted is not None:
            messages.append(pb.ControlRequest(orders_accepted=stream.accepted))
            stream.accepted = None
        return messages

    def _stock(self, stream: _Stream) -> list[pb.StockReport]:
        stock, now = self._node.stock(), self._clock.monotonic()
        if stock == stream.stocked or now < stream.stocked_at + _STOCKED_EVERY_S:
            return []
        stream.stocked, stream.stocked_at = stock, now
        return [stock]

    def _changes(self, stream: _Stream) -> list[pb.ChangeReport]:
        before, stream.changes = stream.changes, self._node.changes()
        return [
            pb.ChangeReport(replica=replica_message(replica_id), members=members)
            for replica_id, members in stream.changes.items()
            if before.get(replica_id) != members
        ]

    def _progress(self, stream: _Stream) -> list[pb.ProgressReport]:
        told, stream.told = stream.told, self._node.progress()
        return [
            progress_report(replica_id, progress, now=self._clock.monotonic())
            for replica_id, progress in stream.told.items()
            if told.get(replica_id) != progress
        ]

    async def _wait(self, stream: _Stream) -> None:
        self._link.warm()
        try:
            async with asyncio.timeout(stream.heartbeat_s):
                await self._outbox.wake.wait()
        except TimeoutError:
            await stream.call.write(_heartbeat(self._clock.time()))
            self._node.contact()


def _heartbeat(now: float) -> pb.ControlRequest:
    beat = pb.Heartbeat()
    beat.sent_at.FromNanoseconds(round(now * 1e9))
    return pb.ControlRequest(heartbeat=beat)


def _tells_of_leader(error: ClientError) -> bool:
    """Whether the error names the leader, or says that its sender is not the leader."""
    return LEADER in error.metadata or error.reason == "NOT_LEADER"


async def _failure(call: Any, error: Exception) -> ClientError:
    """Return the error of a broken stream; with the leader's address, if sent, in metadata."""
    if not isinstance(error, grpc.aio.AioRpcError):  # a write to a finished call: get the reason
        try:
            await call.read()
        except grpc.aio.AioRpcError as reason:
            error = reason
        else:
            return Unavailable("the stream broke")
    failure = translate(error)
    trailing: Any = error.trailing_metadata()
    failure.metadata.update({key: value for key, value in trailing or () if key == LEADER})
    return failure


def _set_to_own_clock(orders: pb.Orders, now: float) -> None:
    """Convert times in assignments to this machine's wall clock, which files and images use: it may be off."""
    if not orders.HasField("sent_at"):
        return
    ahead_ns = round(now * 1e9) - orders.sent_at.ToNanoseconds()
    for assignment in orders.assignments:
        if assignment.HasField("built_after"):
            assignment.built_after.FromNanoseconds(
                max(assignment.built_after.ToNanoseconds() + ahead_ns, 0)
            )
    orders.ClearField("sent_at")
