"""What domain.policy.may says, as conditions in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controlplane.domain.policy import RULES, Kind, shared_rules

if TYPE_CHECKING:
    from controlplane.domain.identity import User
    from controlplane.domain.policy import Action, Rule


def may_condition(table: str, viewer: User, action: Action) -> str:
    """The condition of the rows of `table` with which the viewer may do this; takes `viewer_parameters`."""
    rules = shared_rules(viewer, action)
    if rules is None:
        return "true"
    return f"({' OR '.join(_holds(table, rule) for rule in rules) or 'false'})"


def viewer_parameters(viewer: User) -> dict[str, Any]:
    """What the conditions ask of a viewer."""
    fields_asked = {rule.own for rule in RULES if Kind.SHARED in rule.of and rule.own}
    return {f"viewer_{one}": getattr(viewer, one) for one in fields_asked}


def _holds(table: str, rule: Rule) -> str:
    """The condition that a rule holds, of viewers that have something in the field it asks for."""
    tests = []
    if rule.visibility is not None:
        tests.append(f"{table}.visibility = {int(rule.visibility)}")
    if rule.field:
        tests.append(f"{table}.{rule.field} = :viewer_{rule.own}")
    return f"({' AND '.join(tests) or 'true'})"
