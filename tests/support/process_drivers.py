"""The agent's driver of processes, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.runtimes.launcher import Launcher
from nodeagent.runtimes.limits import LimitFacts
from nodeagent.runtimes.process import ProcessDriver
from nsml.common.clock import SystemClock, in_thread

if TYPE_CHECKING:
    from nodeagent.folders import ReplicaFolders
    from nodeagent.network.session_network import Networks
    from nodeagent.runtimes.isolation import IsolationFacts


def process_driver(
    folders: ReplicaFolders,
    facts: IsolationFacts,
    limits: LimitFacts | None = None,
    *,
    network: Networks | None = None,
    zygote: bool = True,
) -> ProcessDriver:
    """A driver as the agent makes it, for a machine with this isolation, these limits and this network."""
    return ProcessDriver(
        folders,
        machine=replace(facts.machine, limits=limits or LimitFacts()),
        levels=facts.levels,
        launcher=Launcher(in_thread, with_zygote=zygote),
        clock=SystemClock(),
        run=in_thread,
        run_long=in_thread,
        network=network,
    )
