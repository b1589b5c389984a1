"""The rules of domain.policy.may, as conditions in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controlplane.domain.policy import RULES, Kind, shared_rules

if TYPE_CHECKING:
    from controlplane.domain.identity import User
    from controlplane.domain.policy import Action, Rule


def may_condition(table: str, viewer: User, action: Action) -> str:
    """The condition of rows of `table` on which the viewer may do `action`; takes `viewer_parameters`."""
    rules = shared_rules(viewer, action)
    if rules is None:
        return "true"
    return f"({' OR '.join(_holds(table, rule) for rule in rules) or 'false'})"


def viewer_parameters(viewer: User) -> dict[str, Any]:
    """The viewer's fields used by the conditions."""
    fields_asked = {rule.own for rule in RULES if Kind.SHARED in rule.of and rule.own}
    return {f"viewer_{one}": getattr(viewer, one) for one in fields_asked}


def _holds(table: str, rule: Rule) -> str:
    """The condition that a rule holds, for viewers with a value in its field."""
    tests = []
    if rule.visibility is not None:
        tests.append(f"{table}.visibility = {int(rule.visibility)}")
    if rule.field:
        tests.append(f"{table}.{rule.field} = :viewer_{rule.own}")
    return f"({' AND '.join(tests) or 'true'})"
