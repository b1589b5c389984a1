"""The node agent: registers, makes the node run what it should, and sends the output of replicas.

`Agent` consists of replaceable parts, so that it also runs in one thread on a
virtual clock and network; `nodeagent/wiring.py` has the real parts, `run` runs them.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import NoReturn

import structlog

from nodeagent.collect.ingest import Collection, Ingest
from nodeagent.collect.log_metrics import LogRequest
from nodeagent.collect.pace import Pace
from nodeagent.collect.streams import Cursor, StreamId
from nodeagent.config import Settings, SettingsError
from nodeagent.dependencies import Dependencies
from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId, write_atomically
from nodeagent.journal import JournalError, JournalLocked
from nodeagent.link.channels import Link
from nodeagent.link.control import Control, WrongPlatform
from nodeagent.link.exec_service import Expressions
from nodeagent.link.file_service import Files
from nodeagent.link.outbox import Outbox, replica_of
from nodeagent.link.process_service import ProcessList
from nodeagent.link.program_service import NodePrograms, Programs
from nodeagent.link.renewal import keep_renewed
from nodeagent.link.services import Services
from nodeagent.link.ssh_service import SshServers
from nodeagent.link.stack_service import PythonStacks
from nodeagent.link.tunnels import Tunnels
from nodeagent.machine.addresses import is_port_free
from nodeagent.machine.devices import DeviceWatch
from nodeagent.peers.exchange import Exchange
from nodeagent.reconcile import Replicas
from nodeagent.repair_orders import RepairOrders
from nodeagent.replica.assignments import BUNDLE, CHUNKS, DATASET, used_things
from nodeagent.replica.environment_locks import AgreeHook, LockHook
from nodeagent.replica.orders import ProgramOrders
from nodeagent.replica.preparation_steps import (
    CodeHook,
    DataHook,
    Hook,
    PortHook,
    ResumeHook,
    StreamHook,
)
from nodeagent.replica.program_changes import Wanted, wanted_of
from nodeagent.replica.progress import Progress
from nodeagent.replica.requests import Loads, RequestServer
from nodeagent.replica.runner import Defaults, RunnerContext
from nodeagent.runtimes.interface import DeviceGrant, Isolation
from nodeagent.runtimes.visits import Visits
from nodeagent.storage.bucket import Bucket
from nodeagent.storage.cached_content import Stock
from nodeagent.storage.checkpoints import OnlyResult, Uploads
from nodeagent.storage.datasets import Trees
from nodeagent.storage.eviction import Store, most_data
from nodeagent.storage.in_place import InPlaceFolders
from nodeagent.storage.other_sources import OtherSources
from nodeagent.storage.pod_trees import PodTrees
from nodeagent.storage.reservations import Room
from nodeagent.streaming.chunk_cache import ChunkCache
from nodeagent.streaming.endpoints import Endpoints
from nsml._version import VERSION
from nsml.client.connect import check_own_listener
from nsml.client.contexts import is_local
from nsml.client.rpc import Rpc
from nsml.common.concurrency import TaskGroup
from nsml.common.python_gc import collect_seldom
from nsml.spec import agent_services
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources

SPOOL_VERSION = 1
_ALREADY_RUNS = 3
_START_AGAIN = -1
_CONTACT_EVERY_S = 1.0
_RELIEVE_EVERY_S = 15.0
_LISTED_EVERY_S = 15.0
_RETRY_S = (0.2, 1.0)
_REQUESTS_PER_S = 10.0
"""Requests of one replica's program, each a call of the control plane; and connections for them."""
_NO_NODE_SHELL = (
    "node_shell is off in its agent's settings; the machine's owner can set node_shell = true"
)
_LOOK_AGAIN_S = (5.0, 600.0)
"""First and longest pause; each check may start a container."""
_PROCESSES, _PROCESSES_PER_CORE = 4096, 128
"""Libraries start a thread for each core in each process."""

_OF_SOCKETS = (pb.AGENT_ABILITY_DIRECT, pb.AGENT_ABILITY_RELAY, pb.AGENT_ABILITY_CHANGES)
_ISOLATION = {
    Isolation.NONE: resources.ISOLATION_NONE,
    Isolation.USER: resources.ISOLATION_USER,
    Isolation.NAMESPACE: resources.ISOLATION_NAMESPACE,
    Isolation.CONTAINER: resources.ISOLATION_CONTAINER,
}

log = structlog.get_logger()


class Agent:
    """One agent; `run` is its life. The runtime must be open."""

    def __init__(self, settings: Settings, parts: Dependencies) -> None:
        self._settings = settings
        self._parts = parts
        self._machine = parts.machine
        self._link = Link(
            settings.servers,
            channel_factory=parts.channel_factory,
            token=parts.token,
            node=settings.node,
            learned=parts.journal.control_planes(),
            check=check_own_listener,
        )
        processes = ProcessList(
            boot_id=parts.machine.boot_id,
            clock=parts.clock,
            visitors=lambda replica: self._tunnels.visitors(replica),  # noqa: PLW0108 - they come next
            on_devices=lambda: self._devices.on_devices(),  # noqa: PLW0108 - as above
        )
        stacks = PythonStacks(boot_id=parts.machine.boot_id)
        self._visits = visits = Visits(parts.machine.boot_id)
        self._outbox = Outbox()
        self._orders = ProgramOrders(self._outbox.wake.set)
        self._tunnels = Tunnels(
            self._link,
            clock=parts.clock,
            services=Services(
                {
                    agent_services.PROCESSES: processes.serve,
                    agent_services.STACKS: stacks.serve,
                    agent_services.PROGRAM: Programs(visits).serve,
                    agent_services.FILES: Files(visits).serve,
                    agent_services.SSH: SshServers(visits).serve,
                    agent_services.EXEC: Expressions(self._orders).serve,
                },
                node_services={agent_services.NODE_PROGRAM: NodePrograms(settings.node).serve},
                off={} if settings.node_shell else {agent_services.NODE_PROGRAM: _NO_NODE_SHELL},
            ),
            has_sockets=parts.has_sockets,
        )
        self._images_changed = asyncio.Event()
        make = parts.image_orders
        self._image_orders = (
            None if make is None else make(self._outbox.wake.set, self._images_changed.set)
        )
        listing = parts.environment_orders
        self._environment_orders = None if listing is None else listing(self._outbox.wake.set)
        self._cluster_id = ""
        self._contact_at = float("-inf")
        self._is_contact_refused = False
        shared = {"rpc": self._rpc, "run": parts.run, "pause": self._pause}
        self._folders = ReplicaFolders(settings.data / "replicas")
        self._stock = Stock(self._outbox.wake.set)
        room = Room(
            settings.data,
            run=parts.run,
            run_long=parts.run_long,
            floor_bytes=parts.disk_floor_bytes,
            # if all sessions belong to one person there is nobody to share with
            share=settings.user_cache_share,
            uses=partial(used_things, self._folders),
        )
        of_trees = {
            **shared,
            "clock": parts.clock,
            "run_long": parts.run_long,
            "room": room,
            # Programs with the agent's user could write through a link into another version.
            "may_link": self._machine.isolation is not Isolation.NONE,
        }
        self._exchange = Exchange(
            parts.peers,
            listen=settings.listen_peers,
            host=parts.machine.host,
            bytes_per_s=settings.peer_bytes_per_s,
            asked=self._outbox.wake.set,
            clock=parts.clock,
        )
        self._bucket = Bucket(
            rpc=self._rpc,
            run_long=parts.run_long,
            clock=parts.clock,
            # as for the control plane itself
            allows_plaintext=all(map(is_local, settings.servers)),
            changed=self._stock.note_bucket,
        )
        others = OtherSources(self._exchange.peers, self._bucket)
        self._datasets = Trees(
            settings.data / "datasets",
            stock=self._stock,
            kind=DATASET,
            accounts=parts.accounts,
            others=others,
            **of_trees,  # type: ignore[arg-type]
        )
        self._pod: PodTrees | None = None
        shares = self._machine.isolation in {Isolation.NAMESPACE, Isolation.CONTAINER}
        if settings.shared_cache is not None and shares:
            self._pod = PodTrees(
                settings.shared_cache,
                settings.node,
                uses=partial(used_things, self._folders),
                stock=self._stock,
                others=others,
                clock=parts.clock,
                run_long=parts.run_long,
                floor_bytes=parts.disk_floor_bytes,
                **shared,  # type: ignore[arg-type]
            )
        # Code is small, often new, and quickly sent again: no session waits for a flush of it.
        self._bundles = Trees(
            settings.data / "bundles",
            boot=self._machine.boot_id,
            kind=BUNDLE,
            **of_trees,  # type: ignore[arg-type]
        )
        self._chunks = ChunkCache(
            settings.data / "streamed" / "chunks",
            most_bytes=settings.stream_cache_bytes,
            floor_bytes=parts.disk_floor_bytes,
            kind=CHUNKS,
        )
        room.add(CHUNKS, self._chunks)
        self._repair_orders = RepairOrders(
            (self._datasets.cache, self._bundles.cache),
            self._folders,
            self._chunks,
            rpc=self._rpc,
            answered=self._outbox.wake.set,
            clock=parts.clock,
            run_long=parts.run_long,
        )
        self._endpoints = Endpoints(
            settings.data / "streamed",
            self._chunks,
            others=others,
            came=self._stock.came,
            rpc=self._rpc,
            listener=self._visits.listener,
            run_long=parts.run_long,
            pause=self._pause,
            clock=parts.clock,
        )
        self._loads = Loads(self._datasets, settings.data / "staging", **shared)  # type: ignore[arg-type]
        pauses = settings.longest_backoff_s
        self._ingest = Ingest(
            self._link,
            remember=self._remember,
            clock=parts.clock,
            rng=parts.rng,
            longest_backoff_s=pauses,
        )
        self._control = Control(
            self,
            self._link,
            self._outbox,
            clock=parts.clock,
            rng=parts.rng,
            longest_backoff_s=pauses,
        )
        self._replicas = Replicas(self._place(), self._folders, parts.journal)
        self._devices = DeviceWatch(
            parts.probe,
            replicas=parts.runtime.list,
            shares=self._replicas.shares,
            before_reading=parts.load,
            changed=self._outbox.wake.set,
            clock=parts.clock,
            run_long=parts.run_long,
            interval_s=settings.sample_interval_s,
        )

    async def run(self) -> NoReturn:
        """Work until cancelled; replicas continue after that."""
        self._stock.found(await self._parts.run(self._make_folders))
        self._cluster_id = await self._parts.run(self._parts.journal.cluster_id)
        ready = self._settings.data / "ready.json"
        try:
            async with (
                self._tunnels,
                self._exchange.serving(self._datasets.cache, self._parts.run),
                self._replicas,
                self._image_orders or nullcontext(),
                self._environment_orders or nullcontext(),
                self._repair_orders,
                TaskGroup() as group,
            ):
                group.create_task(self._ingest.run())
                group.create_task(self._devices.run())
                group.create_task(self._measure())
                if self._parts.engine is not None:
                    group.create_task(self._parts.engine.run(self._outbox.wake.set))
                if self._parts.images is not None:
                    group.create_task(self._list_images(self._parts.images))
                if self._pod is not None:
                    group.create_task(self._pod.keep())
                if self._parts.relieve is not None:
                    group.create_task(self._relieve(self._parts.relieve))
                if self._parts.renew is not None:
                    renewing = keep_renewed(self._parts.renew, self._link, self._parts.clock)
                    group.create_task(renewing)
                await self._devices.known()
                await self._control.run()
        finally:
            ready.unlink(missing_ok=True)
            self._visits.close()
            self._endpoints.close()
            self._bucket.close()
            await self._link.close()

    async def outgrown(self) -> None:
        """Return once a new agent would isolate sessions better than this one.

        Checked only while nothing runs here: users would lose their tunnels, and preparations
        would begin anew.
        """
        has_grown, pause_s = self._parts.has_grown, _LOOK_AGAIN_S[0]
        while has_grown is not None:
            await self._parts.clock.sleep(pause_s)
            if not self._replicas.is_idle:
                continue
            if await has_grown() and self._replicas.is_idle:
                return
            pause_s = min(2 * pause_s, _LOOK_AGAIN_S[1])
        await asyncio.Event().wait()

    # Interface to the Control stream.

    def describe(self) -> pb.Register:
        """See control.Node."""
        machine, offer = self._machine, self.devices()
        capacity = resources.Resources(gpu_thousandths=1000 * len(offer.devices))
        capacity.MergeFrom(machine.capacity)
        return pb.Register(
            node=self._settings.node,
            boot_id=machine.boot_id,
            agent_version=VERSION,
            spool_version=SPOOL_VERSION,
            isolation=_ISOLATION[machine.isolation],
            devices=offer.devices,
            capacity=capacity,
            pod=self._settings.pod,
            host=machine.host,
            owner=self._settings.owner,
            only_owner=machine.only_owner,
            device_note=offer.device_note,
            isolation_note=machine.isolation_note,
            setting_note="; ".join(
                filter(None, [machine.setting_note, self._exchange.problem, self._pod_problem()])
            ),
            highest_term=self._replicas.highest[0],
            highest_revision=self._replicas.highest[1],
            gang_network=machine.gangs.mode,
            networks=machine.networks.networks,
            replicas=self._replicas.reports(),
            cluster_id=self._cluster_id,
            limits=machine.limits,
            shared_roots=machine.shared_roots,
            not_ready=offer.not_ready,
            engine_note=offer.engine_note,
            python_version=(
                "" if machine.isolation is Isolation.CONTAINER else platform.python_version()
            ),
            # A pod's shared file system is large, and may hang: its size is not queried here.
            data_bytes=(
                most_data(self._settings.data, self._parts.disk_floor_bytes)
                if self._pod is None
                else 0
            ),
            peer_offer=self._exchange.offer,
            abilities=[
                pb.AGENT_ABILITY_IMAGES,
                pb.AGENT_ABILITY_PORTS,
                pb.AGENT_ABILITY_SERVICES,
                pb.AGENT_ABILITY_NODE_SERVICES,
                pb.AGENT_ABILITY_SSH_ENTRANCE,
                pb.AGENT_ABILITY_INITIAL_CHECKPOINTS,
                pb.AGENT_ABILITY_DATASET_FOLDERS,
                pb.AGENT_ABILITY_PAGED_TREES,
                pb.AGENT_ABILITY_STREAMED_DATASETS,
                pb.AGENT_ABILITY_ENVIRONMENTS,
                pb.AGENT_ABILITY_OUTPUTS,
                pb.AGENT_ABILITY_REPAIRS,
                pb.AGENT_ABILITY_ENVIRONMENT_BUILDS,
                pb.AGENT_ABILITY_DOCKERFILES,
                pb.AGENT_ABILITY_SUBMISSION_STEPS,
                pb.AGENT_ABILITY_LAUNCHERS,
                *([pb.AGENT_ABILITY_CONDA] if self._parts.builds_conda else []),
                *([pb.AGENT_ABILITY_DOCKERFILE_BUILDS] if self._parts.engine else []),
                *(_OF_SOCKETS if self._parts.has_sockets else []),
            ],
        )

    def devices(self) -> pb.DevicesChanged:
        """See control.Node."""
        message, engine = self._devices.message(), self._parts.engine
        if engine is not None:
            message.not_ready, message.engine_note = engine.not_ready, engine.note
        return message

    def progress(self) -> Mapping[ReplicaId, Progress]:
        """See control.Node."""
        return self._replicas.progress()

    def changes(self) -> Mapping[ReplicaId, Sequence[pb.MemberReport]]:
        """See control.Node."""
        return self._orders.said()

    def stock(self) -> pb.StockReport:
        """See control.Node."""
        return self._stock.message

    def questions(self) -> list[pb.FindPeers]:
        """See control.Node."""
        return [
            pb.FindPeers(root=root, is_stream=is_stream)
            for root, is_stream in self._exchange.finder.take_questions()
        ]

    def found_peers(self, answer: pb.FoundPeers) -> None:
        """See control.Node."""
        self._exchange.finder.answered(answer)

    async def registered(self, answer: pb.Registered) -> None:
        """See control.Node."""
        self._exchange.finder.is_answered = answer.finds_peers
        self._bucket.is_offered = answer.locates_blobs
        if self._cluster_id not in {"", answer.cluster_id}:
            raise WrongPlatform(f"obeyed {self._cluster_id}, this is {answer.cluster_id}")
        if not self._cluster_id:
            await self._parts.run(partial(self._parts.journal.join, answer.cluster_id))
            self._cluster_id = answer.cluster_id
        if answer.starts_anew:
            log.warning("agent.starts_anew", highest=self._replicas.highest)
            await self._replicas.start_anew()
        self.contact()
        await self._parts.run(self._write_ready)

    async def learn(self, control_planes: pb.ControlPlanes) -> None:
        """See control.Node; if storing fails, they are known until the agent ends."""
        if self._link.learn(control_planes.addresses):
            learned = self._link.routes.learned
            try:
                await self._parts.run(partial(self._parts.journal.remember_control_planes, learned))
            except OSError as error:
                log.warning("control_planes.not_remembered", error=str(error))

    async def obey(self, orders: pb.Orders) -> bool:
        """See control.Node."""
        if not await self._replicas.obey(orders):
            return False
        self._orders.want(_wanted_in(orders))
        return True

    def finalized(self, replica_id: ReplicaId) -> None:
        """See control.Node."""
        self._replicas.finalized(replica_id)

    def contact(self) -> None:
        """See control.Node; recorded for every replica, at most once a second."""
        now = self._parts.clock.monotonic()
        if now < self._contact_at + _CONTACT_EVERY_S:
            return
        self._contact_at = now
        refusal: OSError | None = None
        for runner in self._replicas.running():
            try:
                self._parts.touch(runner.folder, runner.replica_id)
            except FileNotFoundError:
                pass  # not begun yet
            except OSError as error:
                # Reports of ends must continue: a failing disk ends no stream.
                refusal = error
        if refusal is not None and not self._is_contact_refused:
            log.warning("contact.not_noted", error=str(refusal))
        self._is_contact_refused = refusal is not None

    def open_tunnel(self, order: pb.OpenTunnel) -> None:
        """See control.Node."""
        self._tunnels.open(order)

    def order_image(self, order: pb.ImageOrder) -> None:
        """See control.Node; no effect if programs need no images."""
        if self._image_orders is not None:
            self._image_orders.obey(order)

    def image_reports(self) -> list[pb.ImageReport]:
        """See control.Node."""
        return [] if self._image_orders is None else self._image_orders.take_answers()

    def order_environment(self, order: pb.EnvironmentOrder) -> None:
        """See control.Node."""
        if self._environment_orders is not None:
            self._environment_orders.obey(order)

    def environment_reports(self) -> list[pb.EnvironmentReport]:
        """See control.Node."""
        orders = self._environment_orders
        return [] if orders is None else orders.take_answers()

    def order_repair(self, order: pb.RepairOrder) -> None:
        """See control.Node."""
        self._repair_orders.obey(order)

    def repair_reports(self) -> list[pb.RepairReport]:
        """See control.Node."""
        return self._repair_orders.take_answers()

    # Internals.

    def _rpc(self) -> Rpc:
        """Return calls to any control plane with the state that our orders were made from."""
        return self._link.rpc(seen=self._replicas.highest[1])

    def _pod_problem(self) -> str:
        """Return why the configured shared cache is not used."""
        if self._settings.shared_cache is None or self._pod is not None:
            return ""
        return "shared_cache: only with isolation by containers or namespaces"

    def _place(self) -> RunnerContext:
        parts = self._parts
        hooks: list[Hook] = [
            ResumeHook(self._loads.newest),
            DataHook(
                self._pod or self._datasets,
                parts.accounts,
                parts.run,
                InPlaceFolders(parts.machine.shared_roots, parts.run_long),
            ),
            CodeHook(self._bundles, parts.run_long),
            StreamHook(self._endpoints, parts.run),
            LockHook(self._rpc, self._pause),
        ]
        agree = AgreeHook(self._rpc, self._pause, parts.hooks, parts.run)
        if parts.has_sockets:
            # first: it costs nothing, and an attempt that it ends should not either
            hooks.insert(0, PortHook(self._at_ports_before, is_port_free, parts.run))
        return RunnerContext(
            runtime=parts.runtime,
            hooks=[*hooks, *parts.hooks, agree],
            outbox=self._outbox,
            isolation=self._machine.isolation,
            accounts=parts.accounts,
            gangs=self._machine.gangs,
            networks=self._machine.networks,
            mps_folder=self._settings.mps_folder,
            sdk_folder=parts.sdk_folder,
            grants=self._grants,
            uploads=self._uploads,
            collect=self._collect,
            listen=self._listen,
            reachable=self._tunnels.reachable,
            closed=self._tunnels.closed,
            streaming=self._endpoints.serving,
            folder=self._folders.of,
            clock=parts.clock,
            run=parts.run,
            run_long=parts.run_long,
            defaults=self._defaults(),
        )

    def _defaults(self) -> Defaults:
        settings, cores = self._settings, self._machine.capacity.cpu_thousandths // 1000
        return Defaults(
            shm_bytes=settings.shm_bytes,
            disk_bytes=settings.disk_bytes,
            process_count=settings.processes or max(_PROCESSES, _PROCESSES_PER_CORE * cores),
            keep_files_bytes=settings.keep_files_bytes,
            keep_files_by_default_bytes=settings.keep_files_by_default_bytes,
        )

    def _at_ports_before(self, replica_id: ReplicaId) -> list[ReplicaId]:
        return self._replicas.at_ports_before(replica_id)

    def _grants(self, uuids: Sequence[str]) -> list[DeviceGrant]:
        return self._devices.grants(uuids)

    def _uploads(
        self, replica_id: ReplicaId, folder: ReplicaFolder, only: OnlyResult | None
    ) -> Uploads:
        return Uploads(
            replica_id,
            folder,
            rpc=self._rpc,
            run=self._parts.run_long,
            pause=self._pause,
            clock=self._parts.clock,
            only=only,
        )

    @asynccontextmanager
    async def _collect(
        self,
        replica_id: ReplicaId,
        folder: ReplicaFolder,
        uploads: Uploads,
        paused: Callable[[bool], None],
        log_request: LogRequest,
    ) -> AsyncIterator[Collection]:
        cursors = await self._parts.run(partial(self._parts.journal.cursors, replica_id))
        collection = Collection(
            replica_id,
            folder,
            cursors,
            uploads=uploads,
            paused=paused,
            run=self._parts.run,
            writes=self._parts.writes,
            clock=self._parts.clock,
            pace=Pace(self._settings.log_bytes_per_s, self._parts.clock),
            log_metrics=log_request.patterns,
            process=log_request.process,
        )
        async with self._ingest.collecting(collection):
            yield collection

    @asynccontextmanager
    async def _listen(
        self, replica_id: ReplicaId, folder: ReplicaFolder, owner: str
    ) -> AsyncIterator[None]:
        """Run without requests if the socket fails."""
        async with AsyncExitStack() as stack:
            if self._parts.has_sockets:
                orders = stack.enter_context(self._orders.open_to(replica_id, folder.run))
                server = RequestServer(
                    replica_id,
                    folder,
                    self._loads,
                    owner,
                    orders=orders,
                    pace=Pace(_REQUESTS_PER_S, self._parts.clock),
                    connections=Pace(_REQUESTS_PER_S, self._parts.clock),
                    run=self._parts.run,
                )
                try:
                    await stack.enter_async_context(server.listening())
                except OSError:
                    log.exception("requests.not_listening", replica=str(replica_id))
            yield

    async def _remember(self, cursors: Mapping[StreamId, Cursor | None]) -> None:
        """Losing the newest only sends data again, which the control plane then removes."""
        try:
            await self._parts.run(partial(self._parts.journal.acknowledge, cursors))
        except OSError as error:
            log.warning("cursors.not_remembered", error=str(error))

    async def _pause(self) -> None:
        """Wait before a retry: a moment, and a connection."""
        await self._parts.clock.sleep(self._parts.rng.uniform(*_RETRY_S))
        await self._link.up.wait()

    async def _measure(self) -> NoReturn:
        sequence = 0
        while True:
            await self._parts.clock.sleep(self._settings.sample_interval_s)
            self._stock.gave(self._exchange.given_bytes, self._exchange.dropped)
            if not self._link.up.is_set():
                continue
            running = {one.replica_id: one.folder for one in self._replicas.running()}
            try:
                sample = await self._parts.run_long(partial(self._read, running))
            except Exception:
                # Readings may be missing; sessions here need the agent.
                log.exception("node.unmeasured")
                continue
            sample.devices.extend(self._devices.samples())
            # By the monotonic clock since boot: the agent's next process continues above, without stored state.
            sequence = max(sequence + 1, round(self._parts.clock.monotonic() * 1e3))
            sample.sequence, sample.boot_id = sequence, self._machine.boot_id
            sample.at.FromMicroseconds(round(self._parts.clock.time() * 1e6))
            self._ingest.offer(sample)

    def _read(self, running: Mapping[ReplicaId, ReplicaFolder]) -> pb.NodeSample:
        """Return a reading of the node and its replicas; blocking."""
        sample = self._parts.meter.sample()
        try:
            sample.replicas.extend(self._parts.measure(running))
        except Exception:
            # Their usage is then missing; the node's is not.
            log.exception("replicas.unmeasured")
        return sample

    async def _relieve(self, relieve: Callable[[Sequence[Store]], None]) -> NoReturn:
        trees = [
            Store(kind=kind, cache=one, place=self._settings.data)
            for kind, one in (
                (DATASET, self._datasets.cache),
                (BUNDLE, self._bundles.cache),
                (CHUNKS, self._chunks),
            )
        ]
        while True:
            try:
                await self._parts.run_long(partial(relieve, trees))
                self._datasets.tell_removed()
            except Exception:
                # Sessions here need the agent more than its disk needs space.
                log.exception("disk.not_relieved")
            await self._parts.clock.sleep(_RELIEVE_EVERY_S)

    async def _list_images(self, images: Callable[[], Mapping[str, int]]) -> NoReturn:
        while True:
            self._images_changed.clear()
            try:
                self._stock.has_images(await self._parts.run_long(images))
            except Exception as error:  # noqa: BLE001 - what runs here needs its agent more
                log.warning("images.not_listed", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LISTED_EVERY_S):
                    await self._images_changed.wait()

    def _make_folders(self) -> list[tuple[str, int]]:
        """Return the dataset versions cached earlier, with the bytes of each."""
        self._settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folders.create()
        for part in (self._datasets, self._bundles, self._loads, self._endpoints):
            part.create()
        return self._datasets.cache.left()

    def _write_ready(self) -> None:
        offer = self.devices()
        content = {
            "node": self._settings.node,
            "pid": os.getpid(),
            "server": self._link.address,
            "isolation": self._machine.isolation.value,
            "devices": [device.model for device in offer.devices],
            "simulated": any(device.simulated for device in offer.devices),
            "device_note": offer.device_note,
            "only_owner": self._machine.only_owner,
            "isolation_note": self._machine.isolation_note,
            "engine_note": offer.engine_note,
        }
        try:
            write_atomically(self._settings.data / "ready.json", json.dumps(content).encode())
        except OSError as error:
            # The agent works: the control plane reports the same.
            log.warning("agent.ready_not_said", error=str(error))


def run(settings: Settings) -> NoReturn:
    """Run an agent until SIGTERM or SIGINT."""
    collect_seldom()
    outcome = asyncio.run(_serve(settings))
    if outcome == _START_AGAIN:
        # the same process, so that a supervisor of this agent need not know
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - our own command line
    sys.exit(outcome)


async def _serve(settings: Settings) -> int:
    """Run until a signal or the agent's own end, also while the parts are being opened."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with TaskGroup() as group:
        ordered = group.create_task(stopping.wait())
        living = group.create_task(_live(settings))
        await asyncio.wait({ordered, living}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.is_set():
            log.info("agent.stopping", node=settings.node)
        for task in (ordered, living):
            task.cancel()
    return 0 if living.cancelled() else living.result()


async def _live(settings: Settings) -> int:
    from nodeagent.wiring import real_parts  # noqa: PLC0415 - not for the simulation

    try:
        async with real_parts(settings) as parts:
            agent = Agent(settings, parts)
            async with TaskGroup() as group:
                working = group.create_task(agent.run())
                await agent.outgrown()
                log.info("agent.outgrown", node=settings.node)
                working.cancel()
    except JournalLocked as error:
        sys.stderr.write(f"nsml-agent: {error}\n")
        return _ALREADY_RUNS
    except (SettingsError, JournalError) as error:
        sys.stderr.write(f"nsml-agent: {error}\n")
        return 1
    return _START_AGAIN


def _wanted_in(orders: pb.Orders) -> dict[ReplicaId, Wanted]:
    """Return the wanted changes of running programs."""
    found = {}
    for one in orders.assignments:
        if one.HasField("change") or one.made:
            with suppress(ValueError):  # an invalid id: logged where orders are carried out
                found[replica_of(one.replica)] = wanted_of(one)
    return found
