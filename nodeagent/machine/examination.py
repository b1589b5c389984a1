"""`nsml-agent doctor`: examines this machine, writes findings as JSON. `nsml doctor node` runs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.config import Settings, SettingsError, settings_to_be
from nodeagent.machine.doctor import Grade, examine
from nodeagent.machine.inspection import look

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Write one JSON object to stdout; return 1 for any bad finding, else 0."""
    parser = argparse.ArgumentParser(
        prog="nsml-agent doctor", description="Examines this machine; needs no root."
    )
    parser.add_argument("--data", type=Path, required=True, help="the agent's data folder")
    parser.add_argument("--server", default="", help="HOST:PORT of the control plane it obeys")
    parser.add_argument("--settings", type=Path, help="the agent's settings file")
    parser.add_argument("--engine", type=Path, help="the container engine's socket")
    parser.add_argument("--clock-ahead-s", type=float, help="of the control plane's clock")
    parser.add_argument("--clock-error-s", type=float, default=0.0, help="how sure that is")
    chosen = parser.parse_args(words)
    settings, refusal = _settings(chosen.settings or chosen.data.with_name("agent.toml"))
    symptoms = look(
        chosen.data,
        chosen.server,
        chosen.engine or _engine(settings),
        settings,
        ahead_s=chosen.clock_ahead_s,
        error_s=chosen.clock_error_s,
    )
    symptoms = replace(symptoms, settings_refusal=refusal)
    findings = examine(symptoms)
    sys.stdout.write(json.dumps({"findings": [asdict(one) for one in findings]}) + "\n")
    return int(any(one.grade is Grade.BAD for one in findings))


def _settings(path: Path) -> tuple[Settings, str]:
    """Return the agent's settings here, or those it would have; the defaults and a reason if damaged."""
    try:
        return settings_to_be(path, os.environ), ""
    except (SettingsError, OSError) as error:
        return settings_to_be(Path(os.devnull) / path.name, {}), str(error)


def _engine(settings: Settings) -> Path:
    """Return the engine's socket, found like `nsml up` does."""
    named = os.environ.get("DOCKER_HOST", "")
    is_local = named.startswith("unix:///")
    return Path(named.removeprefix("unix://")) if is_local else settings.engine_socket
