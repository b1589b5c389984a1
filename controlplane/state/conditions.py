"""Standing conditions, as found by this control plane."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.conditions import Condition, ConditionName, gravest_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.state.members import Member
    from nsml.common.clock import Clock

_OF_ONE: Final = frozenset(
    {
        ConditionName.CERTIFICATE_ENDING,
        ConditionName.PROCESS_FAILING,
        ConditionName.SUBMISSIONS_FAILING,
        ConditionName.JOIN_REFUSED,
    }
)
MOST_EVIDENCE: Final = 300
"""Limit of the evidence, in characters."""

_log = structlog.get_logger()


def own_findings(standing: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return conditions that may be visible only to this control plane, in a fixed order."""
    return tuple(one for one in standing if one.name in _OF_ONE)


def found_elsewhere(
    standing: Iterable[Condition], others: Iterable[Member]
) -> tuple[Condition, ...]:
    """Return conditions found only by other control planes, with their names in the evidence."""
    known = {(one.name, one.subject) for one in standing}
    found: dict[tuple[ConditionName, str], Condition] = {}
    for member in others:
        for one in member.findings:
            key = (one.name, one.subject)
            if key not in known:
                found.setdefault(key, replace(one, evidence=f"{member.name}: {one.evidence}"))
    return tuple(found.values())


class Conditions:
    """Standing conditions with their start, by name and subject."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._standing: dict[tuple[ConditionName, str], Condition] = {}

    def set(
        self, name: ConditionName, subject: str = "", *, stands: bool, evidence: str = ""
    ) -> None:
        """Set whether it stands. A standing one keeps its start."""
        key = (name, subject)
        known = self._standing.get(key)
        if not stands:
            if self._standing.pop(key, None) is not None:
                _log.warning("condition.ended", condition=name.value, subject=subject)
            return
        evidence = evidence[:MOST_EVIDENCE]
        if known is not None:
            self._standing[key] = replace(known, evidence=evidence or known.evidence)
            return
        _log.warning("condition.began", condition=name.value, subject=subject, evidence=evidence)
        self._standing[key] = Condition(
            name=name, subject=subject, since=self._clock.time(), evidence=evidence
        )

    def set_all(self, name: ConditionName, found: Mapping[str, str]) -> None:
        """Let it stand for exactly these subjects, with the evidence for each."""
        for _, subject in [key for key in self._standing if key[0] is name and key[1] not in found]:
            self.set(name, subject, stands=False)
        for subject, evidence in found.items():
            self.set(name, subject, stands=True, evidence=evidence)

    def remark(self, name: ConditionName, text: str, subject: str = "") -> None:
        """Record an action on a standing condition; the newest is shown to administrators."""
        known = self._standing.get((name, subject))
        if known is not None:
            self._standing[name, subject] = replace(known, remark=text)

    def stands(self, name: ConditionName, subject: str = "") -> bool:
        """Whether it stands now."""
        return (name, subject) in self._standing

    def standing(self) -> tuple[Condition, ...]:
        """Return all, the gravest first."""
        return gravest_first(self._standing.values())
