"""Reports of sessions: logs, metrics, and their retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.records.archiving_loop import Archiving
from controlplane.records.downsampling_loop import Folding
from controlplane.records.logs import Logs
from controlplane.records.retention_loop import Thinning
from controlplane.records.session_summaries import LastReports
from controlplane.usage.feature import usages

if TYPE_CHECKING:
    from controlplane.core.core import Core


def logs(core: Core) -> Logs:
    """Logs, in the history or the object store."""
    return Logs(history=core.history, objects=core.objects, run=core.offload)


def last_reports(core: Core) -> LastReports:
    """The last values of running sessions, for all watchers."""
    return LastReports(
        state=core.state, history=core.history, usages=core.shared(usages), clock=core.clock
    )


def wire(core: Core) -> Feature:
    """Downsample metrics; the leader archives logs and drops expired points."""
    archiving = Archiving(
        history=core.history,
        logs=core.shared(logs),
        clock=core.clock,
        after_s=core.config.archive_logs_after_s,
    )
    thinning = Thinning(
        history=core.history,
        clock=core.clock,
        points_s=core.config.keep_points_s,
        levels_s=core.config.keep_levels_s,
    )
    folding = Folding(history=core.history, clock=core.clock)
    return Feature(
        leader_loops=(archiving.run, thinning.run),
        member_loops={"folding": folding.run, "reports": core.shared(last_reports).run},
    )
