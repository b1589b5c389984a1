"""`nsml-agent doctor`: examines this machine, writes findings as JSON. `nsml doctor node` runs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.doctor import Grade, examine
from nodeagent.symptoms import look

if TYPE_CHECKING:
    from collections.abc import Sequence

_ENGINE = "/var/run/docker.sock"


def main(words: Sequence[str]) -> int:
    """Write one JSON object to stdout; 1 when anything is bad, else 0."""
    parser = argparse.ArgumentParser(
        prog="nsml-agent doctor", description="Examines this machine; needs no root."
    )
    parser.add_argument("--data", type=Path, required=True, help="the agent's data folder")
    parser.add_argument("--server", default="", help="HOST:PORT of the control plane it obeys")
    parser.add_argument(
        "--engine", type=Path, default=_engine(), help="the container engine's socket"
    )
    parser.add_argument("--clock-ahead-s", type=float, help="of the control plane's clock")
    parser.add_argument("--clock-error-s", type=float, default=0.0, help="how sure that is")
    given = parser.parse_args(words)
    symptoms = look(
        given.data,
        given.server,
        given.engine,
        ahead_s=given.clock_ahead_s,
        error_s=given.clock_error_s,
    )
    findings = examine(symptoms)
    sys.stdout.write(json.dumps({"findings": [asdict(one) for one in findings]}) + "\n")
    return int(any(one.grade is Grade.BAD for one in findings))


def _engine() -> Path:
    named = os.environ.get("DOCKER_HOST", "")
    return Path(named.removeprefix("unix://") if named.startswith("unix://") else _ENGINE)
