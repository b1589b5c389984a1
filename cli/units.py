"""The systemd unit of a joined node's agent; `deploy/systemd` shows it for the usual places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AGENT_UNIT: Final = "nsml-agent.service"

_AGENT: Final = """\
# The node agent of nsml. `nsml join ... --systemd` writes this file with the right paths.
[Unit]
Description=nsml node agent
Wants=network-online.target
After=network-online.target docker.service
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

# Limits of sessions are control groups beside the agent's own. Where systemd is older than 254 and does
# not know the second line, an agent that is root makes them at the top of the hierarchy.
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


def agent_unit(program: Sequence[str], settings: Path) -> str:
    """The unit that runs an agent with these settings."""
    binary, *words = program
    arguments = [*words, "--config", str(settings)]
    # Variables are put into arguments, not into the name of what is run.
    escaped = [_word(word.replace("$", "$$")) for word in arguments]
    return _AGENT.format(start=" ".join([_word(binary), *escaped]))


def _word(text: str) -> str:
    """One word of ExecStart, which systemd parts at blanks and in which it expands %."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if escaped != text or any(map(str.isspace, text)) else text
