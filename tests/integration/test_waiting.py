"""A control plane whose etcd, PostgreSQL or bucket is not there yet: real servers that start later."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from cli.local.ports import Held
from tests.support.etcd import etcd_in
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.s3 import S3Server
from tests.support.shared_platform import ControlPlaneProcess, Shared

WITHIN_S = 60.0
"""Of a busy machine."""


def told(plane: ControlPlaneProcess) -> list[tuple[str, str]]:
    """What it says of its waiting: event and part."""
    lines = [json.loads(line) for line in plane.said().splitlines() if line.startswith("{")]
    events = ("controlplane.waiting", "controlplane.waited")
    return [(one["event"], one["part"]) for one in lines if one["event"] in events]


async def awaits(plane: ControlPlaneProcess, words: str) -> None:
    """Until it tells `nsml up` that it waits for something."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            assert plane.process.poll() is None, plane.said()
            try:
                starting = json.loads((plane.data / "starting.json").read_text())
            except (FileNotFoundError, ValueError):
                starting = {"awaits": ""}
            if words in starting["awaits"]:
                assert starting["pid"] == plane.process.pid
                return
            await asyncio.sleep(0.02)


async def test_started_before_everything_it_serves_once_all_of_it_is_there(
    tmp_path: Path, s3: S3Server
) -> None:
    etcd, postgres, ports = etcd_in(tmp_path / "etcd"), PostgresServer(), Held()
    port = ports.free()
    settings = {
        "coordination": etcd.endpoint,
        "history": postgres.url(),
        "objects": f"s3://{s3.bucket()}/nsml",
        "s3_endpoint": f"http://127.0.0.1:{port}",
    }
    try:
        with Shared(settings).control_plane(tmp_path / "a") as plane:
            await awaits(plane, etcd.endpoint)
            etcd.start()
            await awaits(plane, f"http://127.0.0.1:{port}: Connection refused")
            async with Proxy(s3.endpoint.removeprefix("http://"), port):
                await awaits(plane, f"127.0.0.1:{postgres.port}/postgres cannot be used now")
                await asyncio.to_thread(postgres.make)
                await asyncio.to_thread(postgres.start)
                await asyncio.to_thread(plane.ready)
            assert not (plane.data / "starting.json").exists()
            parts = ("etcd", "objects", "history")
            events = ("controlplane.waiting", "controlplane.waited")
            assert told(plane) == [(event, part) for part in parts for event in events]
            assert postgres.password not in plane.said()
    finally:
        ports.close()
        postgres.remove()
        await etcd.stop()


def standing_on(part: str, port: int) -> dict[str, Any]:
    """The settings of a control plane whose part is at that port, and all the rest in its folder."""
    at = f"127.0.0.1:{port}"
    return {
        "etcd": {"coordination": f"http://{at}"},
        "history": {
            "coordination": "embedded",
            "history": f"postgresql://me:geheim@{at}/nsml?connect_timeout=600",
        },
        "objects": {
            "coordination": "embedded",
            "objects": "s3://bucket",
            "s3_endpoint": f"http://{at}",
        },
    }[part]


async def ends(plane: ControlPlaneProcess) -> None:
    """SIGTERM, and it ends in good order."""
    plane.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(plane.process.wait, WITHIN_S) == 0, plane.said()
    assert not (plane.data / "starting.json").exists()
    assert "Traceback" not in plane.said()
    assert "geheim" not in plane.said()


async def test_it_can_be_stopped_while_it_waits(tmp_path: Path) -> None:
    with (
        Held() as ports,
        Shared(standing_on("etcd", port := ports.free())).control_plane(tmp_path / "a") as plane,
    ):
        await awaits(plane, f"127.0.0.1:{port}")
        await ends(plane)
        assert told(plane) == [("controlplane.waiting", "etcd")]


@pytest.mark.parametrize("part", ["history", "objects"])
async def test_it_can_be_stopped_while_a_host_says_nothing(tmp_path: Path, part: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings = standing_on(part, silent.getsockname()[1])
        with Shared(settings).control_plane(tmp_path / "a") as plane:
            await asyncio.to_thread(silent.accept)
            await ends(plane)


@pytest.mark.parametrize(
    ("role", "database", "words"),
    [
        ("nsml:geheim", "postgres", "password authentication failed"),
        ("nsml:{password}", "nowhere", 'database "nowhere" does not exist'),
    ],
)
def test_what_is_refused_is_not_waited_for(
    tmp_path: Path, postgres_server: PostgresServer, role: str, database: str, words: str
) -> None:
    known, password = "nsml:" + postgres_server.password, postgres_server.password
    url = postgres_server.url(database).replace(known, role.format(password=password))
    settings = {"coordination": "embedded", "history": url}
    with Shared(settings).control_plane(tmp_path / "a") as plane:
        said = plane.refused()
        assert words in said
        assert "; try: " in said
        assert "geheim" not in plane.said()
        assert password not in plane.said()
        assert told(plane) == []


def test_a_bucket_that_is_not_there_is_not_waited_for(tmp_path: Path, s3: S3Server) -> None:
    settings = {"coordination": "embedded", "objects": "s3://nobodys", "s3_endpoint": s3.endpoint}
    with Shared(settings).control_plane(tmp_path / "a") as plane:
        said = plane.refused()
        assert "there is no such bucket" in said
        assert "; try: make the bucket" in said
        assert told(plane) == []
