"""Health, readiness and metrics, over HTTP as a scraper has it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from controlplane.access.authority import SERVER_NAME
from controlplane.access.failed_attempts import MOST_FAILURES
from controlplane.access.listeners import CannotListen, Identity, ListenRefused, take_port
from controlplane.content.feature import collector
from controlplane.domain.conditions import ConditionName
from controlplane.domain.identity import Role
from controlplane.gateway.rpcs import BUCKETS_S
from controlplane.history.values import DeviceSample, NodeSample
from controlplane.startup import prometheus_metrics
from controlplane.startup.web import Web
from nsml.content.digests import digest_of
from nsml.v1 import resources_pb2, sessions_pb2
from tests.unit.controlplane.rig import Rig, platform, until

TOKEN = "a-token-of-the-scraper"


@dataclass
class Answer:
    status: int
    text: str
    kind: str


@dataclass
class Site:
    """A control plane with an HTTP listener; `metrics` maps a sample's name and labels to its value."""

    rig: Rig
    web: Web
    url: str
    tls: ssl.SSLContext | None = None

    async def get(self, path: str, token: str = "", **headers: str) -> Answer:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return await asyncio.to_thread(self._get, path, headers)

    def _get(self, path: str, headers: dict[str, str]) -> Answer:
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.tls) as answer:
                kind = answer.headers["content-type"]
                return Answer(answer.status, answer.read().decode(), kind)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode(), error.headers["content-type"])

    async def metrics(self, token: str) -> dict[str, float]:
        answer = await self.get("/metrics", token)
        assert answer.status == 200, answer
        return {
            named(sample.name, **sample.labels): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


def named(sample: str, **labels: str) -> str:
    return sample + "".join(f" {key}={labels[key]}" for key in sorted(labels))


@contextlib.asynccontextmanager
async def site(folder: Path, *, with_tls: bool = False) -> AsyncIterator[Site]:
    token_file = folder / "scraper.token"
    token_file.write_text(f"{TOKEN}\n")
    token_file.chmod(0o600)
    async with platform() as rig:
        address, taken = take_port("127.0.0.1:0")
        identity = Identity(rig.on.authority, ["localhost"]) if with_tls else None
        web = Web(rig.plane, taken, identity=identity, token_file=token_file)
        serving = asyncio.create_task(web.serve())
        try:
            yield Site(rig, web, f"{'https' if with_tls else 'http'}://{address}")
        finally:
            web.stop()
            await serving


async def administrator(rig: Rig, name: str = "boss", role: Role = Role.ADMIN) -> str:
    stubs = await rig.user(name, role=role)
    return stubs.metadata[0][1].removeprefix("Bearer ")


async def test_a_scrape_tells_of_queue_sessions_devices_and_nodes(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        rig = one.rig
        kim = await rig.user("kim")
        agent = await (await rig.agent("a", gpus=2)).connect()
        runs = await kim.submit()
        waits = await kim.submit(
            resources=resources_pb2.Resources(gpu_thousandths=2000),
            priority=sessions_pb2.PRIORITY_HIGH,
        )
        (assignment,) = await agent.assignments(1)
        await agent.report(assignment.replica, "RUNNING")
        await kim.reaches(runs.name, "RUNNING")
        readings = [
            DeviceSample(uuid="SIM-a-0", utilization_percent=95, power_watts=300, throttled="heat"),
            DeviceSample(uuid="SIM-a-1", utilization_percent=40, memory_used_bytes=5),
        ]
        now = time.time()
        sample = NodeSample(
            node="a", boot_id="b", sequence=1, at=now, devices=tuple(readings), cpu_percent=25
        )
        await rig.on.history.telemetry.record([sample])

        found = await one.metrics(TOKEN)

        assert found["nsml_sessions state=RUNNING"] == 1
        assert found["nsml_sessions state=QUEUED"] == 1
        assert found["nsml_sessions state=FAILED"] == 0
        assert found["nsml_queue_sessions priority=high"] == 1
        assert found["nsml_queue_gpus priority=high"] == 2
        assert 0 < found["nsml_queue_oldest_seconds"] < 60
        assert found["nsml_gpus model=S"] == found["nsml_gpus_ready model=S"] == 2
        assert found["nsml_gpus_allocated model=S"] == 1
        assert found["nsml_gpus_running"] == 2
        assert found["nsml_gpus_busy"] == 1
        assert found["nsml_gpus_power_watts"] == 300
        assert found["nsml_nodes state=READY"] == 1
        assert found["nsml_nodes state=SILENT"] == 0
        assert found["nsml_node_cpu_ratio node=a"] == 0.25
        device = {"node": "a", "gpu": "0", "uuid": "SIM-a-0"}
        assert found[named("nsml_gpu_utilization_ratio", **device)] == 0.95
        assert found[named("nsml_gpu_throttled", **device)] == 1
        assert found[named("nsml_gpu_allocated_ratio", **device)] in {0, 1}
        assert found[named("nsml_gpu_info", model="S", **device)] == 1
        assert found["nsml_placements_total"] == 1
        assert 0 < found["nsml_commits_total"] <= found["nsml_decisions_total"]
        assert found["nsml_leads"] == found["nsml_controlplanes"] == 1
        assert found["nsml_leader_term"] >= 1
        # Nothing that grows with what users do.
        page = (await one.get("/metrics", TOKEN)).text
        assert not re.search(r"\bkim\b", page)  # ids are random, and have any letters in them
        assert runs.name not in page
        assert waits.id not in page


async def test_devices_and_models_beyond_the_bounds_count_in_sums_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_metrics, "MOST_DEVICES", 3)
    monkeypatch.setattr(prometheus_metrics, "MOST_MODELS", 1)
    async with site(tmp_path) as one:
        agent = await (await one.rig.agent("a", gpus=4)).connect()
        other = resources_pb2.Device(uuid="X", index=4, model='odd "\n' + "y" * 200)
        await agent.offer([*agent.register.devices, other])
        await until(lambda: _has_devices(one.rig, 5), "the node has five")
        found = await one.metrics(TOKEN)
        assert sum(1 for name in found if name.startswith("nsml_gpu_memory_bytes")) == 3
        assert found["nsml_gpus_left_out"] == 2
        assert found["nsml_gpus model=S"] == 4
        assert found["nsml_gpus model=other"] == 1


async def _has_devices(rig: Rig, count: int) -> bool:
    return len(rig.plane.core.state.nodes["a"].value.devices) == count


async def test_who_may_read_metrics(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        boss = await administrator(one.rig)
        member = await administrator(one.rig, "kim", Role.MEMBER)
        node = (await one.rig.plane.core.accounts.create_node_token("a")).secret.text
        assert (await one.get("/metrics", boss)).status == 200
        assert (await one.get("/metrics")).status == 401
        for unknown in ("nsml_" + "x" * 43, TOKEN + "x", TOKEN[:-1], "ü", "x" * 600):
            assert (await one.get("/metrics", unknown)).status == 401, unknown
        for known in (member, node):
            refused = await one.get("/metrics", known)
            assert refused.status == 403
            assert "for administrators" in refused.text
        await one.rig.plane.core.accounts.revoke_all("boss")
        assert (await one.get("/metrics", boss)).status == 401


async def test_the_token_for_scrapes_may_change_and_must_be_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "scraper.token"
    async with site(tmp_path) as one:
        file.write_text("another-token-of-it")
        assert (await one.get("/metrics", TOKEN)).status == 401
        assert (await one.get("/metrics", "another-token-of-it")).status == 200
        file.chmod(0o644)
        assert (await one.get("/metrics", "another-token-of-it")).status == 401
        file.chmod(0o600)
        file.write_text("short")
        assert (await one.get("/metrics", "short")).status == 401
        file.unlink()
        assert (await one.get("/metrics", "short")).status == 401


async def test_who_guesses_costs_no_look_into_the_store(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        for number in range(MOST_FAILURES):
            await one.get("/metrics", f"nsml_{number:043}")
        assert one.rig.plane.core.limiter.is_limited("127.0.0.1")
        boss = await administrator(one.rig)
        assert (await one.get("/metrics", boss)).status == 200


async def test_health_needs_no_token_and_readiness_says_why_not(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        assert (await one.get("/healthz")).text == "ok\n"
        starting = await one.get("/readyz")
        assert (starting.status, starting.text) == (503, "it starts or stops\n")
        one.web.serves = True
        assert (await one.get("/readyz")).status == 200
        one.rig.plane.core.health.conditions.set(ConditionName.COORDINATION_GONE, stands=True)
        gone = await one.get("/readyz")
        assert (gone.status, gone.text) == (503, "COORDINATION_GONE\n")
        assert (await one.get("/healthz")).status == 200
        assert (await one.get("/nothing")).status == 404
        assert (await one.metrics(TOKEN))["nsml_condition name=COORDINATION_GONE of="] == 1


async def test_calls_are_counted_by_method_and_end(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        calls = one.web.calls
        options = (("grpc.so_reuseport", 0),)
        server = grpc.aio.server(
            interceptors=(calls, *one.rig.plane.interceptors()), options=options
        )
        port = server.add_insecure_port("127.0.0.1:0")
        one.rig.plane.add_services(server)
        await server.start()
        one.rig.address = f"127.0.0.1:{port}"
        try:
            kim = await one.rig.user("kim")
            session = await kim.submit()
            await kim.get(session.name)
            for _ in range(2):
                with pytest.raises(grpc.RpcError):
                    await kim.get("kim/None/99")
            found = await one.metrics(TOKEN)
        finally:
            await server.stop(0)
        method = "SessionService/GetSession"
        assert found[named("nsml_rpc_calls_total", method=method, code="OK")] == 1
        assert found[named("nsml_rpc_calls_total", method=method, code="NOT_FOUND")] == 2
        assert found[named("nsml_rpc_seconds_count", method=method)] == 3
        assert found[named("nsml_rpc_seconds_bucket", method=method, le="+Inf")] == 3
        assert 0 < found[named("nsml_rpc_seconds_sum", method=method)] < 3 * BUCKETS_S[-1]


async def test_a_scrape_tells_what_the_object_store_has(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        objects = one.rig.on.objects
        blobs = {digest_of(data): data for data in (b"a", b"bc", b"def", b"ghij")}
        await objects.put_many(blobs)
        for digest in list(blobs)[:2]:
            await objects.put_aside([digest], lambda: True)
        await one.rig.plane.core.shared(collector).look()
        found = await one.metrics(TOKEN)
        assert (found["nsml_objects where=named"], found["nsml_objects where=aside"]) == (2, 2)
        assert found["nsml_objects_bytes where=named"] == 7
        assert found["nsml_objects_bytes where=aside"] == 3
        assert found["nsml_objects_removed_total"] == found["nsml_objects_removed_bytes_total"] == 0


async def test_scrapes_at_the_same_time_are_told_the_same(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        first = await asyncio.gather(*(one.get("/metrics", TOKEN) for _ in range(8)))
        assert {answer.status for answer in first} == {200}
        asked = "application/openmetrics-text; version=1.0.0"
        answer = await one.get("/metrics", TOKEN, Accept=asked)
        assert answer.kind.startswith("application/openmetrics-text")
        families = {family.name for family in open_metrics(answer.text)}
        assert {"nsml_queue_sessions", "nsml_commits", "nsml_controlplane"} <= families


async def test_elsewhere_the_platforms_certificate_is_shown(tmp_path: Path) -> None:
    async with site(tmp_path, with_tls=True) as one:
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            await one.get("/healthz")
        pem = one.rig.on.authority.pem.decode()
        one.tls = ssl.create_default_context(cadata=pem)
        one.url = one.url.replace("127.0.0.1", "localhost")
        assert (await one.get("/healthz")).status == 200
        assert (await one.metrics(TOKEN))["nsml_leads"] == 1
        by_name = ssl.create_default_context(cadata=pem)
        port = int(one.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=by_name, server_hostname=SERVER_NAME
        )
        writer.close()


def test_ports_that_cannot_be_had_are_said() -> None:
    address, taken = take_port("127.0.0.1:0")
    with taken, pytest.raises(CannotListen, match="choose another port"):
        take_port(str(address))
    for text in ("unix:/tmp/x", "8080", "127.0.0.1:http"):
        with pytest.raises(ListenRefused):
            take_port(text)
