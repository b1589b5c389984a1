"""What goes where: `schedule(snapshot, now) -> Plan`. Pure; see README.md."""

from controlplane.scheduler.fit import Request, request_of
from controlplane.scheduler.rooms import (
    can_ever_fit,
    keep_to_owners,
    meets_nowhere,
    runs_nowhere,
)
from controlplane.scheduler.schedule import schedule

__all__ = [
    "Request",
    "can_ever_fit",
    "keep_to_owners",
    "meets_nowhere",
    "request_of",
    "runs_nowhere",
    "schedule",
]
