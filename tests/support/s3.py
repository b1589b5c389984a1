"""An S3 server for tests: moto's, as a process, without accounts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from cli.local.ports import Held
from tests.support.said import last_line

KEYS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "a-key-of-tests",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
    "AWS_REGION": "us-east-1",
}


@dataclass
class S3Server:
    """A server that runs until the end of the tests; each test takes a bucket of its own."""

    process: subprocess.Popen[bytes]
    endpoint: str
    _ports: Held
    _buckets: int = 0

    def bucket(self) -> str:
        """The name of a new bucket."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        self.client().create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        """The names of all objects in a bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def empty(self, bucket: str) -> None:
        """Remove all objects of a bucket."""
        for key in self.keys(bucket):
            self.client().delete_object(Bucket=bucket, Key=key)

    def client(self) -> Any:
        """Amazon's own client of this server."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=KEYS["AWS_REGION"],
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a control plane is started with to find it."""
        return {**KEYS, "AWS_ENDPOINT_URL_S3": self.endpoint}

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._ports.close()


def start_s3(**environment: str) -> S3Server:
    """Start a server on a free port and wait until it answers; moto reads more of `environment`."""
    ports = Held()
    port = ports.free()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)],
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )
        server = S3Server(process, f"http://127.0.0.1:{port}", ports)
        if not _answers(server):
            server.end()
            log.seek(0)
            said = last_line(log.read().decode(errors="replace"))
            raise AssertionError(f"moto's server does not start: {said}")
    return server


def _answers(server: S3Server) -> bool:
    ends_at = time.monotonic() + 60
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < ends_at and server.process.poll() is None:
        try:
            with direct.open(server.endpoint + "/moto-api/", timeout=5):
                return True
        except OSError:
            time.sleep(0.05)
    return False


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """One server for the whole run: take a bucket of your own, and leave it running."""
    server = start_s3()
    yield server
    server.end()
