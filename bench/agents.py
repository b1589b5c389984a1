"""Many agents in one process, for measuring the control plane: each a node of its own that runs nothing.

    python -m bench.agents

Each has joined with a key and a certificate of its own, and speaks the Control stream over a connection of
its own with mutual TLS: it registers eight devices, says something in time, takes orders and says that it
obeys them, acknowledges what a control plane asks, and comes back with all that it has when its stream
breaks. With `"readings_every_s"` it sends a reading of all its devices that often over an Ingest stream, too. What a
real agent does beside that (programs, records) is left out.

It is told what to do by lines of JSON on standard input, first of all `{"server": "HOST:PORT", "token":
"SECRET.DIGEST", "count": 1000, "does": "nothing", "readings_every_s": 0}`; then `{"connect": true}`, and `{"offer": false}` to have
them withhold their devices for a while. Of what they are ordered to run they say nothing, that it starts
(`"does": "starts"`), or that it has ended at once (`"ends"`). It says, a line each, with seconds of the machine's
monotonic clock: `{"joined": 1000}`, `{"connected": 1000, "at": 3.2}`, once a second `{"readings": 5000}` of all that were sent, `{"ordered": [["SESSION", 7.5], ...]}`, the
same with `ended` for those whose end was acknowledged, and `{"broken": "..."}` for a stream that broke.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nsml._version import VERSION
from nsml.client.calls import Accounts
from nsml.client.contexts import split_server
from nsml.client.rpc import Rpc
from nsml.client.trust import CHANNEL_OPTIONS, fetch_trusted_authority, parse_join_token
from nsml.common.concurrency import TaskGroup
from nsml.v1 import accounts_pb2, agents_pb2, resources_pb2, sessions_pb2

if TYPE_CHECKING:
    from asyncio.subprocess import Process

DEVICES: Final = 8
CORES: Final = 64
MEMORY_BYTES: Final = 512 << 30
JOINED_AT_ONCE: Final = 16
HEARTBEAT_SHARE: Final = 0.6
"""Of the interval that the control plane names, as the agent has it."""
REGISTERED_WITHIN_S: Final = 10.0
BACK_AFTER_S: Final = 0.5
_OPTIONS: Final = (
    *CHANNEL_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),
    # As the agent has them.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
_STEPS: Final = {
    "nothing": (),
    "starts": (agents_pb2.REPLICA_PHASE_PREPARING, agents_pb2.REPLICA_PHASE_RUNNING),
    "ends": (
        agents_pb2.REPLICA_PHASE_RUNNING,
        agents_pb2.REPLICA_PHASE_EXITED,
        agents_pb2.REPLICA_PHASE_FINALIZED,
    ),
}
"""What each kind of agent reports of a replica that it is ordered to run."""

Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """With which an agent speaks for its node, PEM; and where."""

    key: bytes
    certificate: bytes
    authority: bytes
    address: str


async def join(server: str, token: str, nodes: Iterable[str]) -> dict[str, Papers]:
    """Have a key signed for each node."""
    invited = parse_join_token(token)
    host, port = split_server(server)
    fetched = await asyncio.to_thread(fetch_trusted_authority, host, port, invited.authority_digest)
    places = asyncio.Semaphore(JOINED_AT_ONCE)
    credentials = grpc.ssl_channel_credentials(fetched.pem)
    async with grpc.aio.secure_channel(server, credentials, CHANNEL_OPTIONS) as channel:
        accounts = Accounts(Rpc(channel))

        async def papers(node: str) -> Papers:
            key = ec.generate_private_key(ec.SECP256R1())
            wish = accounts_pb2.JoinNodeRequest(
                secret=invited.secret, node=node, signing_request=_signing_request(key, node)
            )
            async with places:
                answer = await accounts.join_node(wish)
            private = key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            return Papers(
                key=private,
                certificate=answer.certificate,
                authority=fetched.pem,
                address=answer.agent_address,
            )

        names = list(nodes)
        return dict(zip(names, await asyncio.gather(*map(papers, names)), strict=True))


def _signing_request(key: ec.EllipticCurvePrivateKey, node: str) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@dataclass(eq=False)
class Agent:
    """One node's side of the Control stream.

    Args:
        steps: what it reports of a replica that it is ordered to run.
        ordered: told of each replica when it is ordered first.
        ended: told of each when its end is acknowledged.
        registered: told once, at the first registration.
        broken: told why a stream ended.
        readings_every_s: how often it sends a reading; 0: never.
        sent: told of each reading that was sent.
    """

    node: str
    papers: Papers
    steps: tuple[agents_pb2.ReplicaPhase, ...]
    ordered: Callable[[str], None]
    ended: Callable[[str], None]
    registered: Callable[[], None]
    broken: Callable[[str], None]
    is_withheld: bool = False
    readings_every_s: float = 0.0
    sent: Callable[[], None] = lambda: None
    _call: Any = None
    _sequence: int = 0
    _cluster_id: str = ""
    _highest: tuple[int, int] = (0, 0)
    _has: dict[Key, agents_pb2.ReplicaReport] = field(default_factory=dict)
    _pending: dict[Key, agents_pb2.ReplicaReport] = field(default_factory=dict)
    """Reports that are not acknowledged: of each replica the newest."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something is written: gRPC takes one message at a time."""
    _coming: agents_pb2.Orders = field(default_factory=agents_pb2.Orders)

    async def run(self) -> None:
        """Connect, obey, and connect again; until cancelled."""
        papers = self.papers
        credentials = grpc.ssl_channel_credentials(papers.authority, papers.key, papers.certificate)
        async with grpc.aio.secure_channel(papers.address, credentials, _OPTIONS) as channel:
            control: Any = channel.stream_stream(
                "/nsml.v1.AgentService/Control",
                request_serializer=agents_pb2.ControlRequest.SerializeToString,
                response_deserializer=agents_pb2.ControlResponse.FromString,
            )
            ingest: Any = channel.stream_stream(
                "/nsml.v1.AgentService/Ingest",
                request_serializer=agents_pb2.IngestRequest.SerializeToString,
                response_deserializer=agents_pb2.IngestResponse.FromString,
            )
            while True:
                try:
                    async with TaskGroup() as group:
                        call: Any = control()
                        async with asyncio.timeout(REGISTERED_WITHIN_S):
                            heartbeat_s = await self._register(call)
                        self._call = call
                        await self.offer(is_withheld=self.is_withheld)
                        going = [group.create_task(self._beat(call, heartbeat_s))]
                        if self.readings_every_s:
                            going.append(group.create_task(self._read_devices(ingest())))
                        while (message := await call.read()) is not _EOF:
                            await self._take(call, message)
                        for one in going:
                            one.cancel()
                    why = "it ended"
                except* Exception as errors:  # noqa: BLE001 - as the agent has it: nothing ends it
                    why = _why(errors.exceptions[0])
                if self._call is not None:
                    self.broken(f"{self.node}: {why}")
                self._call = None
                await asyncio.sleep(BACK_AFTER_S)

    async def offer(self, *, is_withheld: bool) -> None:
        """Offer the devices, or withhold them, from now on."""
        self.is_withheld = is_withheld
        if self._call is not None:
            changed = agents_pb2.DevicesChanged(devices=self._devices())
            with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the next stream says it
                await self._say(self._call, agents_pb2.ControlRequest(devices_changed=changed))

    def _devices(self) -> list[resources_pb2.Device]:
        return [
            resources_pb2.Device(
                uuid=f"GPU-{self.node}-{index}",
                index=index,
                model="simulated",
                memory_bytes=80 << 30,
                simulated=True,
                withheld="not yet offered" if self.is_withheld else "",
            )
            for index in range(DEVICES)
        ]

    async def _register(self, call: Any) -> float:
        """Seconds between two words that we may let pass."""
        register = agents_pb2.Register(
            node=self.node,
            boot_id=f"boot-{self.node}",
            agent_version=VERSION,
            spool_version=1,
            isolation=resources_pb2.ISOLATION_CONTAINER,
            devices=self._devices(),
            capacity=resources_pb2.Resources(
                gpu_thousandths=DEVICES * 1000,
                cpu_thousandths=CORES * 1000,
                memory_bytes=MEMORY_BYTES,
            ),
            host=self.node,
            cluster_id=self._cluster_id,
            highest_term=self._highest[0],
            highest_revision=self._highest[1],
            replicas=self._has.values(),
        )
        await self._say(call, agents_pb2.ControlRequest(register=register))
        answer = await call.read()
        if answer is _EOF:
            await call.read()  # raises why
            raise asyncio.InvalidStateError
        if not self._cluster_id:
            self.registered()
        self._cluster_id = answer.registered.cluster_id
        interval: float = answer.registered.heartbeat_interval.ToNanoseconds() / 1e9
        for report in self._pending.values():
            await self._say(call, agents_pb2.ControlRequest(report=report))
        return interval * HEARTBEAT_SHARE

    async def _beat(self, call: Any, every_s: float) -> None:
        beat = agents_pb2.ControlRequest(heartbeat=agents_pb2.Heartbeat())
        await asyncio.sleep(every_s * random.random())  # not all at one moment
        while True:
            await self._say(call, beat)
            await asyncio.sleep(every_s)

    async def _read_devices(self, call: Any) -> None:
        """Send what the devices do, as a probe would tell it, at a steady pace."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self.readings_every_s * random.random()
        while True:
            await asyncio.sleep(due - loop.time())
            await call.write(agents_pb2.IngestRequest(sample=self._reading()))
            self.sent()
            # What is late is not made up for by two at once.
            due = max(due + self.readings_every_s, loop.time() + self.readings_every_s / 2)

    def _reading(self) -> agents_pb2.NodeSample:
        self._sequence += 1
        reading = agents_pb2.NodeSample(
            sequence=self._sequence,
            boot_id=f"boot-{self.node}",
            devices=[
                resources_pb2.DeviceSample(
                    uuid=f"GPU-{self.node}-{index}",
                    utilization_percent=random.randint(0, 100),
                    memory_used_bytes=random.randint(0, 80 << 10) << 20,
                    power_watts=random.randint(100_000, 700_000) / 1000,
                    temperature_celsius=random.randint(30, 85),
                    clock_mhz=1980,
                    memory_clock_mhz=2619,
                    process_count=1,
                )
                for index in range(DEVICES)
            ],
            cpu_percent=random.random() * 100,
            memory_used_bytes=random.randint(0, MEMORY_BYTES),
        )
        reading.at.GetCurrentTime()
        return reading

    async def _take(self, call: Any, message: agents_pb2.ControlResponse) -> None:
        match message.WhichOneof("kind"):
            case "orders":
                self._coming.MergeFrom(message.orders)
                if not message.orders.more:
                    orders, self._coming = self._coming, agents_pb2.Orders()
                    await self._obey(call, orders)
            case "acknowledged":
                for report in message.acknowledged.reports:
                    key = _key(report.replica)
                    pending = self._pending.get(key)
                    if pending is not None and pending.phase == report.phase:
                        del self._pending[key]
                        if report.phase == agents_pb2.REPLICA_PHASE_FINALIZED:
                            self._has.pop(key, None)
                            self.ended(key[0])

    async def _obey(self, call: Any, orders: agents_pb2.Orders) -> None:
        if (orders.term, orders.revision) < self._highest:
            return
        self._highest = (orders.term, orders.revision)
        wanted = {_key(one.replica): one for one in orders.assignments}
        reports = []
        for key, assignment in wanted.items():
            if key not in self._has and not assignment.HasField("stop"):
                self.ordered(key[0])
                reports += [_report(assignment.replica, phase) for phase in self.steps]
                self._has[key] = _report(assignment.replica, agents_pb2.REPLICA_PHASE_PREPARING)
            elif assignment.HasField("stop"):
                reports += self._gone(assignment.replica)
        for key in self._has.keys() - wanted.keys() - self._pending.keys():
            del self._has[key]
        # Noted before anything is said: the stream may break at any word, and the next one says it.
        for report in reports:
            key = _key(report.replica)
            self._pending[key] = self._has[key] = report
        accepted = agents_pb2.OrdersAccepted(term=orders.term, revision=orders.revision)
        await self._say(call, agents_pb2.ControlRequest(orders_accepted=accepted))
        for report in reports:
            await self._say(call, agents_pb2.ControlRequest(report=report))

    async def _say(self, call: Any, message: agents_pb2.ControlRequest) -> None:
        async with self._turn:
            await call.write(message)

    def _gone(self, replica: agents_pb2.ReplicaId) -> list[agents_pb2.ReplicaReport]:
        """Of one that is to be stopped, unless that was said before."""
        known = self._has.get(_key(replica))
        if known is not None and known.phase >= agents_pb2.REPLICA_PHASE_EXITED:
            return []
        return [
            _report(replica, phase, sessions_pb2.CAUSE_STOP_REQUESTED)
            for phase in _STEPS["ends"][1:]
        ]


def _key(replica: agents_pb2.ReplicaId) -> Key:
    return (replica.session_id, replica.attempt, replica.rank)


def _report(
    replica: agents_pb2.ReplicaId,
    phase: agents_pb2.ReplicaPhase,
    cause: sessions_pb2.Cause = sessions_pb2.CAUSE_COMPLETED,
) -> agents_pb2.ReplicaReport:
    report = agents_pb2.ReplicaReport(replica=replica, phase=phase)
    report.at.GetCurrentTime()
    if phase >= agents_pb2.REPLICA_PHASE_EXITED:
        ended = agents_pb2.ReplicaExit(cause=cause)
        ended.started_at.CopyFrom(report.at)
        ended.ended_at.CopyFrom(report.at)
        report.exit.CopyFrom(ended)
    return report


def _why(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
    return details or repr(error)


class _Said:
    """What is told, a few lines at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._news: dict[str, list[tuple[str, float]]] = {}
        self._connected = 0
        self._sent = 0

    def ordered(self, session: str) -> None:
        self._note("ordered", session)

    def ended(self, session: str) -> None:
        self._note("ended", session)

    def _note(self, what: str, session: str) -> None:
        if not self._news:
            asyncio.get_running_loop().call_soon(self._flush)
        self._news.setdefault(what, []).append((session, time.monotonic()))

    def _flush(self) -> None:
        news, self._news = self._news, {}
        _say(**news)

    def connected(self) -> None:
        self._connected += 1
        if self._connected == self._count:
            _say(connected=self._connected, at=time.monotonic())

    def sent(self) -> None:
        self._sent += 1

    async def tell_readings(self) -> NoReturn:
        """How many were sent, once a second."""
        while True:
            await asyncio.sleep(1.0)
            _say(readings=self._sent)

    @staticmethod
    def broken(why: str) -> None:
        _say(broken=why)


def _say(**said: Any) -> None:
    print(json.dumps(said), flush=True)


async def _run() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    told = json.loads(await lines.readline())
    names = [f"n{number:04}" for number in range(told["count"])]
    papers = await join(told["server"], told["token"], names)
    _say(joined=len(papers))
    said = _Said(len(names))
    agents = [
        Agent(
            node=name,
            papers=papers[name],
            steps=_STEPS[told["does"]],
            ordered=said.ordered,
            ended=said.ended,
            registered=said.connected,
            broken=said.broken,
            readings_every_s=told["readings_every_s"],
            sent=said.sent,
        )
        for name in names
    ]
    async with TaskGroup() as group:
        running: list[asyncio.Task[None]] = []
        if told["readings_every_s"]:
            running.append(group.create_task(said.tell_readings()))
        while line := await lines.readline():
            told = json.loads(line)
            if told.get("connect"):
                running += [group.create_task(one.run()) for one in agents]
            if "offer" in told:
                await asyncio.gather(*(one.offer(is_withheld=not told["offer"]) for one in agents))
        for one in running:
            one.cancel()


class AgentProcess:
    """That process, and what it has told.

    Attributes:
        ordered: when each session was ordered first, monotonic seconds.
        ended: when the end of each was acknowledged.
        broken: why streams ended.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._told = asyncio.Condition()
        self._facts: dict[str, float] = {}
        self._is_over = False
        self._reading = asyncio.create_task(self._read(), name="agents")
        self.ordered: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.broken: list[str] = []

    @classmethod
    @asynccontextmanager
    async def of(
        cls, *, server: str, token: str, count: int, does: str, readings_every_s: float = 0.0
    ) -> AsyncIterator[Self]:
        """They have joined, and are not connected, at the beginning of an `async with`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.agents"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=16 << 20,
        )
        agents = cls(process)
        try:
            await agents._tell(
                server=server,
                token=token,
                count=count,
                does=does,
                readings_every_s=readings_every_s,
            )
            await agents._until("joined")
            yield agents
        finally:
            agents._reading.cancel()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def connect(self) -> float:
        """Connect all; seconds until the last had registered."""
        began = time.monotonic()
        await self._tell(connect=True)
        await self._until("connected")
        return self._facts["at"] - began

    @property
    def readings(self) -> int:
        """How many were sent, as of a second ago at most."""
        return int(self._facts.get("readings", 0))

    async def offer(self, *, is_withheld: bool) -> None:
        """Have them offer all devices, or withhold them."""
        await self._tell(offer=not is_withheld)

    async def have_orders(self, sessions: set[str]) -> float:
        """When the last of these was ordered, once all were."""
        return await self._all_in(self.ordered, sessions)

    async def have_ended(self, sessions: set[str]) -> float:
        """When the end of the last of these was acknowledged, once all were."""
        return await self._all_in(self.ended, sessions)

    async def _all_in(self, found: dict[str, float], sessions: set[str]) -> float:
        async with self._told:
            await self._told.wait_for(lambda: sessions <= found.keys() or self._is_over)
        self._check()
        return max(found[one] for one in sessions)

    async def _tell(self, **said: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said).encode() + b"\n")
        await self._process.stdin.drain()

    async def _until(self, fact: str) -> None:
        async with self._told:
            await self._told.wait_for(lambda: fact in self._facts or self._is_over)
        self._check()

    def _check(self) -> None:
        if self._is_over:
            raise SystemExit("the agents' process ended")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            async with self._told:
                for session, at in said.pop("ordered", ()):
                    self.ordered.setdefault(session, at)
                for session, at in said.pop("ended", ()):
                    self.ended.setdefault(session, at)
                if "broken" in said:
                    self.broken.append(said.pop("broken"))
                self._facts.update(said)
                self._told.notify_all()
        async with self._told:
            self._is_over = True
            self._told.notify_all()


if __name__ == "__main__":
    asyncio.run(_run())
