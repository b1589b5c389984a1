"""A throw-away platform of this checkout, for benchmarks and end-to-end tests."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cli.local.ports import Held

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
_GONE_WITHIN_S = 60.0


class Platform:
    """`nsml up` in a folder of its own; `nsml down` and no folder at the end.

    Args:
        simulate_gpus: devices to simulate; 0 for the machine's own.
        options: further options of `nsml up`.
        environment: further variables for all that it runs.
        by: a program that runs `nsml up`, such as `nsenter` with its options.
    """

    def __init__(
        self,
        *,
        simulate_gpus: int = 2,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        by: Sequence[str] = (),
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nsml-"))
        gpus = ["--simulate-gpus", str(simulate_gpus)] if simulate_gpus else []
        # Not the default, which whatever else runs on this machine may want at the same moment.
        self._ports = Held()
        port = [] if "--port" in options else ["--port", str(self._ports.free())]
        self._by = by
        self._up = ["up", *gpus, *port, *options]
        self.environment = {
            **os.environ,
            "NSML_DATA": str(self.folder / "data"),
            "NSML_CONFIG_DIR": str(self.folder / "config"),
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def up(self) -> None:
        """Start what does not run."""
        self.nsml(*self._up, timeout_s=120, by=self._by)

    def close(self) -> None:
        """Stop everything and remove the folder."""
        self.nsml("down", "-y", check=False, timeout_s=120)
        # The agent's caches are read-only.
        subprocess.run(["chmod", "-R", "u+w", str(self.folder)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._ports.close()

    def nsml(
        self,
        *arguments: str,
        check: bool = True,
        cwd: Path | None = None,
        stdin: str | None = None,
        timeout_s: float = 120,
        environment: dict[str, str] | None = None,
        by: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run `nsml ARGUMENTS`, `by` another program; with `check` a failure raises with its output."""
        done = self._run(
            arguments,
            stdin=stdin,
            environment={**self.environment, **(environment or {})},
            by=by,
            cwd=cwd or self.folder,
            timeout=timeout_s,
        )
        if check and done.returncode != 0:
            # The reason on the first line: of many failures no more than that is kept.
            reason = "; ".join(line.strip() for line in done.stderr.splitlines()[-3:])
            raise AssertionError(
                f"nsml {' '.join(arguments)} ended with {done.returncode}: {reason}\n"
                f"{done.stdout}{done.stderr}"
            )
        return done

    def _run(
        self,
        arguments: Sequence[str],
        *,
        stdin: str | None,
        environment: dict[str, str],
        by: Sequence[str],
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*by, str(PROGRAMS / "nsml"), *arguments],
            env=environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            **options,
        )

    def json(self, *arguments: str) -> Any:
        """What `nsml ARGUMENTS -j` prints, decoded."""
        return json.loads(self.nsml(*arguments, "-j").stdout)

    def pid(self, program: str) -> int:
        """Process id of "controlplane" or "agent"."""
        return int(self.ready(program)["pid"])

    def ready(self, program: str) -> dict[str, Any]:
        """What "controlplane" or "agent" says of itself once it serves."""
        said = (self.folder / "data" / program / "ready.json").read_text()
        return dict(json.loads(said))

    def kill(self, program: str) -> None:
        """SIGKILL one of the platform's programs, and wait until it has let go of its ports."""
        pid = self.pid(program)
        ends = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            select.select([ends], [], [], _GONE_WITHIN_S)
        finally:
            os.close(ends)
