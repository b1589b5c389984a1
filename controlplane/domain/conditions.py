"""Problems of a platform that still works: their names, and their effects on users.

A condition begins when a relevant call fails, and ends when such a call succeeds. It is not detected
here: `state/conditions.py` keeps the active ones, `core/store_health.py` observes the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ConditionName(StrEnum):
    """Most severe first."""

    COORDINATION_GONE = "COORDINATION_GONE"
    COORDINATION_FULL = "COORDINATION_FULL"
    NO_LEADER = "NO_LEADER"
    DISK_FULL = "DISK_FULL"
    LOW_ON_ROOM = "LOW_ON_ROOM"
    HISTORY_GONE = "HISTORY_GONE"
    OBJECTS_GONE = "OBJECTS_GONE"
    NODES_SILENT = "NODES_SILENT"
    STORE_MEMBER_AWAY = "STORE_MEMBER_AWAY"
    SETTINGS_DIFFER = "SETTINGS_DIFFER"
    CLOCK_WRONG = "CLOCK_WRONG"
    CERTIFICATE_ENDING = "CERTIFICATE_ENDING"
    PROCESS_FAILING = "PROCESS_FAILING"
    SUBMISSIONS_FAILING = "SUBMISSIONS_FAILING"
    JOIN_REFUSED = "JOIN_REFUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """An active condition.

    Attributes:
        subject: the part, if there are several; else "".
        since: Unix seconds when it was detected.
        evidence: error of the failing part; for administrators.
        remark: measures taken; for administrators.
    """

    name: ConditionName
    since: float
    subject: str = ""
    evidence: str = ""
    remark: str = ""

    @property
    def meaning(self) -> str:
        """Its effect on users."""
        return _words(self)[0]

    @property
    def healing(self) -> str:
        """How it ends."""
        return _words(self)[1]


_ROOM: Final = "ends by itself once there is room again: remove files, or give that disk more"

_WORDS: Final[Mapping[ConditionName, tuple[str, str]]] = {
    ConditionName.COORDINATION_GONE: (
        "sessions run on and are recorded; nothing can be changed or placed; lists may be out of date",
        "ends by itself once etcd (or the store's file) answers again",
    ),
    ConditionName.COORDINATION_FULL: (
        "sessions run on and are recorded; submissions and other changes wait",
        "the control plane frees space by itself: it compacts and defragments the store",
    ),
    ConditionName.NO_LEADER: (
        "sessions run on and are recorded; submissions are accepted, and placed once there is a leader",
        "ends by itself once a control plane is elected",
    ),
    ConditionName.HISTORY_GONE: (
        "programs go on, nodes keep their reports; submissions wait, logs and metrics are not available",
        "ends by itself once the history's database answers again; nodes then send their reports",
    ),
    ConditionName.OBJECTS_GONE: (
        "programs go on; checkpoints wait on their nodes (FINALIZING holds no device), code is not sent, older logs not read",
        "ends by itself once the object store answers again; nodes then send their files",
    ),
    ConditionName.NODES_SILENT: (
        "their sessions are UNKNOWN and keep their devices; they may still be running",
        "clears when their agents reconnect; for a machine that is gone for good: nsml node fence",
    ),
    ConditionName.STORE_MEMBER_AWAY: (
        "everything goes on while most members of etcd answer; without most of them nothing is decided",
        "ends by itself once that member answers again",
    ),
    ConditionName.SETTINGS_DIFFER: (
        "rules depend on which control plane answers or leads",
        "set the same value on all control planes, and restart those that have another",
    ),
    ConditionName.CLOCK_WRONG: (
        "certificates, tokens and times of sessions are judged wrong there",
        "run one time service on all machines: systemd-timesyncd, or chrony",
    ),
    ConditionName.CERTIFICATE_ENDING: (
        "once it has expired, connections that need it are refused",
        "a node's agent renews its own while it runs, else: nsml join with a new token; others: docs/control-planes.md",
    ),
    ConditionName.PROCESS_FAILING: (
        "without a relay, tunnels pass through the control plane, slower; without a jump host, ssh of machines without nsml fails",
        "it is started again each time: the log of that control plane says why it ends",
    ),
    ConditionName.SUBMISSIONS_FAILING: (
        "some submissions wait at this step, and show that the platform has a fault; all others go on",
        "each is tried again at least every five minutes, and goes on by itself once the cause is gone: see the leader's log",
    ),
    ConditionName.JOIN_REFUSED: (
        "a machine tried to become a node, and was refused",
        "ends by itself ten minutes after the last attempt; nsml admin join-token makes a token for an hour",
    ),
}

_FULL_DISKS: Final[Mapping[str, str]] = {
    "store": "sessions run on and are recorded; nothing can be submitted, stopped or placed",
    "history": "programs go on, and nodes keep their reports; these are not recorded yet",
    "objects": "programs go on; checkpoints stay on their nodes, and code and datasets cannot be sent",
}
_LOW_ON_ROOM: Final[Mapping[str, str]] = {
    "store": "sessions run on and end; users' submissions and other changes are refused",
    "history": "almost full: reports of sessions stay on their nodes, now or soon; new dataset versions are refused",
    "objects": "almost full: code and datasets are refused, and checkpoints stay on their nodes, now or soon",
}
_FULL_NODE: Final = "sessions that fill it are ended, and their reports may be dropped"

_ORDER: Final = {name: number for number, name in enumerate(ConditionName)}


def _words(condition: Condition) -> tuple[str, str]:
    if condition.name is ConditionName.DISK_FULL:
        return _FULL_DISKS.get(condition.subject, _FULL_NODE), _ROOM
    if condition.name is ConditionName.LOW_ON_ROOM:
        return _LOW_ON_ROOM.get(condition.subject, ""), _ROOM
    return _WORDS[condition.name]


def gravest_first(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Sort conditions: most severe first, then oldest first."""
    return tuple(sorted(conditions, key=lambda one: (_ORDER[one.name], one.since, one.subject)))
