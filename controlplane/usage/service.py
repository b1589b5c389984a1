"""TelemetryService: samples of machines and devices over time."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

from controlplane.access.current import require_user
from controlplane.domain.errors import InvalidRequest, NotFound
from controlplane.domain.names import check_node
from controlplane.history.telemetry_rollup import (
    CLUSTER,
    CLUSTER_FIGURES,
    DEVICE_FIGURES,
    NODE_FIGURES,
    REPLICA_FIGURES,
    coarser,
    replica_key,
)
from controlplane.wire.chunking import beside
from controlplane.wire.errors import Context, answering
from controlplane.wire.times import time_of, timestamp
from nsml.v1 import telemetry_pb2 as pb
from nsml.v1 import telemetry_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.core.core import Core
    from controlplane.domain.values import Device, Session
    from controlplane.history.telemetry_rollup import Cells
    from controlplane.usage.usage import Held, Ran, Usages

WIDTH: Final = 120
MOST_WIDTH: Final = 1000
MOST_SERIES: Final = 256
MOST_NUMBERS: Final = 200_000
"""Maximum numbers in one answer: with many devices each gets fewer cells."""
HOUR_S: Final = 3600.0
_NUMBERS_A_CELL: Final = 1 + 3 * len(DEVICE_FIGURES)


class TelemetryServicer(telemetry_pb2_grpc.TelemetryServiceServicer):
    """Samples over time."""

    def __init__(self, core: Core, usages: Usages) -> None:
        self._core = core
        self._usages = usages

    @answering
    async def ReadTelemetry(  # noqa: N802 - named by the contract
        self, request: pb.ReadTelemetryRequest, _: Context
    ) -> pb.ReadTelemetryResponse:
        """Return a span of a session's devices, a node, or all."""
        who = require_user()
        if request.WhichOneof("of") == "session":
            session = await self._core.references.find_output(who, request.session)
            async with self._core.reading.turn(who.user.name):
                return await self._of_session(request, session)
        if request.WhichOneof("of") == "node":
            if self._core.state.nodes.get(check_node(request.node)) is None:
                raise NotFound(f"there is no node {request.node}", attempt="nsml node ls")
            async with self._core.reading.turn(who.user.name):
                return await self._of_node(request, request.node)
        if not request.cluster:
            raise InvalidRequest("of a session, a node, or the platform?")
        async with self._core.reading.turn(who.user.name):
            return await self._of_node(request, CLUSTER)

    async def _of_node(
        self, request: pb.ReadTelemetryRequest, node: str
    ) -> pb.ReadTelemetryResponse:
        since, until = self._span(request)
        width = _width(request, 1)
        cells = await self._core.history.telemetry.read(node, since=since, until=until, width=width)
        # The number of its devices is known only now.
        if (most := _width(request, len(cells.columns))) < width:
            cells = coarser(cells, since, until, (until - since) / most)
        keys = sorted(cells.columns)
        names = CLUSTER_FIGURES if node == CLUSTER else NODE_FIGURES
        shown = "" if node == CLUSTER else node
        series = await beside(
            lambda: [
                _series(cells, key, DEVICE_FIGURES if key else names, node=shown) for key in keys
            ],
            of=len(keys) * width,
        )
        for one in series:
            one.simulated = self._is_simulated(node, one.device_uuid)
        return pb.ReadTelemetryResponse(
            since=timestamp(since), until=timestamp(until), series=series
        )

    async def _of_session(
        self, request: pb.ReadTelemetryRequest, session: Session
    ) -> pb.ReadTelemetryResponse:
        held, ran = self._usages.held(session), self._usages.ran(session)
        begin = min((*(one.since for one in held), *(one.since for one in ran)), default=0.0)
        end = max((*(one.until for one in held), *(one.until for one in ran)), default=0.0)
        since, until = self._span(request, begin, end)
        told = [one for one in held if one.until > since and one.since < until]
        shown = told[-MOST_SERIES:]
        there = [one for one in ran if one.until > since and one.since < until]
        width = _width(request, len(shown) + len(there[-MOST_SERIES:]))
        answer = pb.ReadTelemetryResponse(
            since=timestamp(since),
            until=timestamp(until),
            left_out=len(told) - len(shown),
            left_out_replicas=max(len(there) - MOST_SERIES, 0),
        )
        groups: dict[tuple[str, int], list[Held]] = {}
        for one in shown:
            groups.setdefault((one.device.node, one.attempt), []).append(one)
        for (node, attempt), members in groups.items():
            # If others held the devices before and after: only this session's time.
            first, last = max(since, members[0].since), min(until, members[0].until)
            share = max(1, math.ceil(width * (last - first) / (until - since)))
            uuids = [one.device.uuid for one in members]
            cells = await self._core.history.telemetry.read(
                node,
                since=first,
                until=last,
                width=share,
                keys=uuids,
            )
            made = await beside(partial(_device_series, cells, uuids, node), of=len(uuids) * share)
            for one, series in zip(members, made, strict=True):
                device = self._device(node, one.device.uuid)
                if device is not None:
                    series.device_index = device.index
                series.simulated = device.simulated if device else session.is_simulated
                series.thousandths, series.attempt = one.device.thousandths, attempt
                answer.series.append(series)
        for replica in there[-MOST_SERIES:]:
            first, last = max(since, replica.since), min(until, replica.until)
            share = max(1, math.ceil(width * (last - first) / (until - since)))
            answer.series.append(await self._of_replica(session, replica, first, last, share))
        return answer

    async def _of_replica(
        self, session: Session, ran: Ran, since: float, until: float, width: int
    ) -> pb.TelemetrySeries:
        which = session.id, ran.attempt, ran.rank
        cells = await self._core.history.telemetry.read_replica(
            ran.node, *which, since=since, until=until, width=width
        )
        series = await beside(
            partial(_series, cells, replica_key(*which), REPLICA_FIGURES, node=ran.node), of=width
        )
        series.device_uuid = ""
        series.attempt, series.rank = ran.attempt, ran.rank
        return series

    def _device(self, node: str, uuid: str) -> Device | None:
        """Return a device; None if the node does not have it any more."""
        stored = self._core.state.nodes.get(node)
        devices = stored.value.devices if stored else ()
        return next((one for one in devices if one.uuid == uuid), None)

    def _is_simulated(self, node: str, uuid: str) -> bool:
        """Return whether a device is simulated; for "" whether any of the node's is, or of all."""
        if uuid:
            device = self._device(node, uuid)
            return device is not None and device.simulated
        nodes = (
            self._core.state.nodes.values()
            if node == CLUSTER
            else [self._core.state.nodes.get(node)]
        )
        return any(one.simulated for stored in nodes if stored for one in stored.value.devices)

    def _span(
        self, request: pb.ReadTelemetryRequest, begin: float = 0.0, end: float = 0.0
    ) -> tuple[float, float]:
        """Return the requested span; for a session, without the time before `begin`."""
        until = (
            time_of(request.until) if request.HasField("until") else end or self._core.clock.time()
        )
        since = time_of(request.since) if request.HasField("since") else begin or until - HOUR_S
        if since < begin < until:
            since = begin  # before it ran there is nothing to draw
        if since >= until:
            if not request.HasField("since") and not request.HasField("until"):
                return until - 1.0, until
            raise InvalidRequest("the span ends before it begins")
        return since, until


def _width(request: pb.ReadTelemetryRequest, devices: int) -> int:
    asked = min(request.width or WIDTH, MOST_WIDTH)
    return max(min(asked, MOST_NUMBERS // (_NUMBERS_A_CELL * max(devices, 1))), 1)


def _device_series(cells: Cells, uuids: Sequence[str], node: str) -> list[pb.TelemetrySeries]:
    return [_series(cells, uuid, DEVICE_FIGURES, node=node) for uuid in uuids]


def _series(cells: Cells, key: str, names: Sequence[str], *, node: str) -> pb.TelemetrySeries:
    series = pb.TelemetrySeries(node=node, device_uuid=key)
    column = cells.columns.get(key)
    if column is None:
        return series
    there = [at for at, count in enumerate(column.counts) if count > 0]
    series.at.extend(cells.starts[at] + cells.lengths[at] / 2 for at in there)
    for name, figure in zip(names, column.figures, strict=False):
        series.figures.append(
            pb.Figure(
                name=name,
                least=[figure.least[at] for at in there],
                most=[figure.most[at] for at in there],
                mean=[figure.total[at] / column.counts[at] for at in there],
            )
        )
    return series
