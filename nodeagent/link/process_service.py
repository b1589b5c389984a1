"""The service agent.processes: the processes of a replica, measured over half a second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.probes.process_list import listed, look, why_unseen
from nodeagent.probes.processes import enclosure_of
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nodeagent.folders import ReplicaId
    from nodeagent.link.services import RunningReplica, Stream
    from nodeagent.probes.process_list import ListedProcess
    from nsml.common.clock import Clock

    OnDevices = Mapping[int, Sequence[tuple[int, int | None]]]

_LOOKS_FOR_S = 0.5


class ProcessList:
    """Serves `agent.processes`.

    Args:
        boot_id: of this boot.
        clock: measures the half second.
        visitors: returns the users connected to a replica.
        on_devices: by node pid, the devices that a process computes on: index, and bytes if known.
    """

    def __init__(
        self,
        *,
        boot_id: str,
        clock: Clock,
        visitors: Callable[[ReplicaId], Iterable[pb.Visitor]],
        on_devices: Callable[[], OnDevices],
    ) -> None:
        self._boot_id = boot_id
        self._clock = clock
        self._visitors = visitors
        self._on_devices = on_devices

    async def serve(self, replica: RunningReplica, stream: Stream) -> None:
        """Send the list."""
        await stream.write((await self._found(replica)).SerializeToString())

    async def _found(self, replica: RunningReplica) -> pb.ReplicaProcesses:
        enclosure = await asyncio.to_thread(enclosure_of, replica.folder, self._boot_id)
        if enclosure is None:
            return pb.ReplicaProcesses(unseen=why_unseen(enclosure))
        before = await asyncio.to_thread(look, enclosure)
        await self._clock.sleep(_LOOKS_FOR_S)
        after = await asyncio.to_thread(look, enclosure)
        if before is None or after is None:
            return pb.ReplicaProcesses(unseen=why_unseen(enclosure))
        shown = await asyncio.to_thread(listed, before, after)
        on_devices = self._on_devices()
        return pb.ReplicaProcesses(
            processes=[_message(one, on_devices.get(one.node_pid, ())) for one in shown],
            left_out=max(after.count - len(shown), 0),
            visitors=self._visitors(replica.id),
        )


def _message(
    process: ListedProcess, devices: Sequence[tuple[int, int | None]]
) -> pb.ReplicaProcess:
    message = pb.ReplicaProcess(
        pid=process.pid,
        node_pid=process.node_pid,
        cpu_cores=process.cpu_cores,
        memory_bytes=process.memory_bytes,
        command=process.command,
        is_cut=process.is_cut,
        devices=[
            pb.ProcessDevice(index=index, memory_bytes=memory_bytes)
            for index, memory_bytes in devices
        ],
    )
    message.cpu_time.FromNanoseconds(round(process.cpu_s * 1e9))
    message.age.FromNanoseconds(round(process.age_s * 1e9))
    return message
