"""What goes where: `schedule(snapshot, now) -> Plan`. Pure; see README.md."""

from controlplane.scheduler.fit import Request, request_of
from controlplane.scheduler.rooms import (
    can_ever_fit,
    keep_to_owners,
    runs_nowhere,
    without_network,
)
from controlplane.scheduler.schedule import schedule

__all__ = [
    "Request",
    "can_ever_fit",
    "keep_to_owners",
    "request_of",
    "runs_nowhere",
    "schedule",
    "without_network",
]
