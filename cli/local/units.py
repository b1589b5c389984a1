"""The systemd units of a joined node; `deploy/systemd` has them for the usual paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONTROL_PLANE_UNIT: Final = "nsml-controlplane.service"
AGENT_UNIT: Final = "nsml-agent.service"
REPLICAS_UNIT: Final = "nsml-replicas.service"

REPLICAS: Final = """\
# The control group in which nsml-agent.service makes those of sessions. It is not the agent's own, since
# systemd could not start the agent again in a group that passes limits on to running sessions.
[Unit]
Description=control groups of nsml sessions
# Nothing needs it to stop: what runs in it would go on, and the agent be without its groups.
RefuseManualStop=yes

[Service]
Type=exec
ExecStart=/bin/sleep infinity
Delegate=yes
KillMode=process
OOMPolicy=continue
OOMScoreAdjust=-1000
TasksMax=infinity

# Nothing that systemd keeps by control groups, since it would hold for sessions: no PrivateDevices=,
# DeviceAllow=, ProtectClock= or IPAddressDeny=.
NoNewPrivileges=yes
CapabilityBoundingSet=
"""

_AGENT: Final = """\
# The node agent of nsml. `nsml join ... --systemd` writes this file with the right paths.
[Unit]
Description=nsml node agent
Wants=network-online.target nsml-replicas.service
After=network-online.target nsml-replicas.service docker.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={start}
Restart=always
RestartSec=2

# Sessions outlive their agent: only the agent itself is stopped, and one session that is killed for
# its memory does not end the others.
KillMode=process
OOMPolicy=continue

# Limits of sessions are control groups in that of the unit named here. Only an agent without root, or
# without that unit, makes them below its own: for that it must be started in a group inside, which systemd
# does since 254; an older one passes over the last line.
Environment=NSML_AGENT_REPLICAS_UNIT=nsml-replicas.service
Delegate=yes
DelegateSubgroup=agent
TasksMax=infinity
LimitNOFILE=65536
LimitMEMLOCK=infinity

# Sessions inherit what is set here. No ProtectSystem=, PrivateTmp=, RestrictNamespaces=,
# SystemCallFilter= or MemoryDenyWriteExecute=: the agent makes namespaces and mounts for sessions, and
# what they train with compiles code as it runs.
NoNewPrivileges=yes
KeyringMode=private

[Install]
WantedBy=multi-user.target
"""


UNIT_FOLDERS: Final = (
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)


def is_installed(unit: str) -> bool:
    """Return whether systemd has a unit on this machine, and so starts the program instead of `nsml up` or `nsml join`."""
    from pathlib import Path

    return any(Path(folder, unit).exists() for folder in UNIT_FOLDERS)


def agent_unit(program: Sequence[str], settings: Path) -> str:
    """Return the unit of an agent with these settings."""
    binary, *words = program
    arguments = [*words, "--config", str(settings)]
    # Variables are expanded in arguments, not in the program's name.
    escaped = [_word(word.replace("$", "$$")) for word in arguments]
    return _AGENT.format(start=" ".join([_word(binary), *escaped]))


def _word(text: str) -> str:
    """Return one word of ExecStart, which systemd splits at blanks and in which it expands %."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if escaped != text or any(map(str.isspace, text)) else text
