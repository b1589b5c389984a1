"""What goes where: `schedule(snapshot, now) -> Plan`. Pure; see README.md."""

from controlplane.scheduler.fit import Request, request_of
from controlplane.scheduler.rooms import can_ever_fit, runs_nowhere
from controlplane.scheduler.schedule import schedule

__all__ = ["Request", "can_ever_fit", "request_of", "runs_nowhere", "schedule"]
