"""What several control planes share, from real servers; and such control planes, as processes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from cli.local.data_folder import toml
from cli.local.processes import program
from controlplane.store.etcd_process import EtcdProcess
from tests.support.in_process import look, only_looks
from tests.support.s3 import KEYS, S3Server

READY_WITHIN_S = 60.0

_roots = itertools.count(1)


@dataclass
class Shared:
    """An etcd, a database and a bucket for one platform; all control planes are given the same.

    Attributes:
        settings: of nsml-controlplane, for all of them.
        environment: what they are started with.
    """

    settings: dict[str, Any]
    environment: dict[str, str] = field(default_factory=lambda: dict(KEYS))

    def control_plane(self, folder: Path, **changes: Any) -> ControlPlaneProcess:
        """One of them, with its data in `folder`/d; not waited for."""
        return ControlPlaneProcess(folder, {**self.settings, **changes}, self.environment)


class ControlPlaneProcess:
    """`nsml-controlplane`, killed at the end of a `with`."""

    def __init__(self, folder: Path, settings: dict[str, Any], environment: dict[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self.data = folder / "d"
        self.config = folder / "controlplane.toml"
        self.log = folder / "log"
        own = {"data": self.data, "address": "127.0.0.1:0", "admin": "kim", "member": folder.name}
        self.config.write_text(toml({**own, **settings}))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NSML_", "AWS_"))}
        self._environment = {**kept, **environment}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*program("controlplane"), "--config", str(self.config)],
                stderr=log,
                env=self._environment,
            )

    def ready(self) -> dict[str, Any]:
        """What it says once it serves."""
        ends_at = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < ends_at:
            try:
                facts = json.loads((self.data / "ready.json").read_text())
                if facts["pid"] == self.process.pid:
                    return facts
            except (FileNotFoundError, ValueError):
                pass
            assert self.process.poll() is None, self.said()
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.said()}")

    def refused(self) -> str:
        """What it says when it does not start."""
        code = self.process.wait(READY_WITHIN_S)
        assert code == 1, f"exit code {code}: {self.said()}"
        return self.said().rpartition("nsml-controlplane: ")[2]

    def said(self) -> str:
        """All that it wrote."""
        return self.log.read_text(errors="replace")

    def nsml(
        self, *arguments: str, stdin: str = "", codes: Collection[int] = (0,), **environment: str
    ) -> str:
        """What a command of its administrator gives; it has to work."""
        ready = self.ready()
        own = {
            **self._environment,
            "NSML_SERVER": f"unix:{ready['socket']}" if "socket" in ready else ready["address"],
            "NSML_TOKEN_FILE": str(self.data / "admin.token"),
            "NSML_CONFIG_DIR": str(self.data / "config"),
            "NSML_DATA": str(self.data / "none"),
            **environment,
        }
        is_here = not stdin and only_looks(arguments)
        done = (look(arguments, own) if is_here else None) or subprocess.run(
            [str(Path(sys.executable).parent / "nsml"), *arguments],
            env=own,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in codes, done.stderr
        return done.stdout

    def program(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run nsml-controlplane once more, with the same settings, to its end."""
        return subprocess.run(
            [*program("controlplane"), "--config", str(self.config), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def shared(etcd_server: EtcdProcess, postgres_database: str, s3: S3Server) -> Shared:
    """What a platform of its own stands on, all of it empty."""
    return Shared(
        settings={
            "coordination": etcd_server.endpoint,
            "etcd_root": f"shared-{os.getpid()}-{next(_roots)}/",
            "history": postgres_database,
            "objects": f"s3://{s3.bucket()}/nsml",
            "s3_endpoint": s3.endpoint,
        }
    )
