"""Rules and texts of confirmations: the same for `nsml` and the dashboard.

`COMMANDS` lists every command that ends, moves or destroys something; docs/confirmation.md has the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from nsml.common.text import fit, fit_middle, pad, visible, width
from nsml.common.units import counted, size_text
from nsml.view.sessions import state_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.sessions_pb2 import Session

MOST_LISTED: Final = 10
"""Most targets listed in a question. To destroy more, the user types their number."""


_MOST_OWNERS = 3
_NAME_CELLS = 80
_DETAIL_CELLS = 60
"""Limits of a name and its detail: other users' texts cannot fill the question, or imitate another line."""


class Asks(Enum):
    """When a command asks; never without targets."""

    LOSS = "always"
    """It destroys data irrecoverably."""
    INTERRUPTION = "when sessions would end or move"
    """It affects a machine, a control plane or a platform, and so the sessions there."""
    SEVERAL = "for more than one, and for somebody else's"
    """It can be repeated or undone, and destroys nothing."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a command: `verb` as in "remove", `done` as in "nothing was removed"."""

    asks: Asks
    verb: str
    done: str


COMMANDS: Final[Mapping[str, Rule]] = {
    "stop": Rule(Asks.SEVERAL, "stop", "stopped"),
    "requeue": Rule(Asks.SEVERAL, "requeue", "requeued"),
    "memo": Rule(Asks.SEVERAL, "change the memo of", "changed"),
    "rm": Rule(Asks.LOSS, "remove", "removed"),
    "model rm": Rule(Asks.LOSS, "remove", "removed"),
    "artifact rm": Rule(Asks.LOSS, "remove", "removed"),
    "dataset rm": Rule(Asks.LOSS, "remove", "removed"),
    "board rm": Rule(Asks.LOSS, "remove", "removed"),
    "board reevaluate": Rule(Asks.LOSS, "re-evaluate", "re-evaluated"),
    "competition close": Rule(Asks.LOSS, "close", "closed"),
    "competition rm": Rule(Asks.LOSS, "remove", "removed"),
    "competition leave": Rule(Asks.LOSS, "leave", "changed"),
    "competition merge": Rule(Asks.LOSS, "merge", "merged"),
    "competition teams": Rule(Asks.LOSS, "disqualify", "changed"),
    "secret rm": Rule(Asks.LOSS, "remove", "removed"),
    "key rm": Rule(Asks.LOSS, "remove", "removed"),
    "webhook rm": Rule(Asks.LOSS, "remove", "removed"),
    "project rm": Rule(Asks.LOSS, "remove", "removed"),
    "project remove": Rule(Asks.SEVERAL, "remove", "removed"),
    "node drain": Rule(Asks.INTERRUPTION, "move", "changed"),
    "node resume": Rule(Asks.INTERRUPTION, "stop", "changed"),
    "node fence": Rule(Asks.INTERRUPTION, "end", "changed"),
    "node rm": Rule(Asks.LOSS, "remove", "removed"),
    "image rm": Rule(Asks.LOSS, "remove", "removed"),
    "env rm": Rule(Asks.LOSS, "remove", "removed"),
    "admin user rm": Rule(Asks.LOSS, "remove", "removed"),
    "admin user token": Rule(Asks.LOSS, "revoke", "revoked"),
    "down": Rule(Asks.INTERRUPTION, "end", "stopped"),
}
"""Each command that ends, moves or destroys something, by its words after `nsml`."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target of a command.

    Attributes:
        name: its name for people.
        owner: the user who owns it; "": nobody in particular.
        detail: helps to recognise it; may be empty.
        is_text: its name may be any text, as for checkpoints.
    """

    name: str
    owner: str = ""
    detail: str = ""
    is_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The effect of a command.

    Attributes:
        rule: the rule of the command.
        targets: everything affected.
        user: the requesting user.
        noun: for one target; "" if its name includes it.
        loses: what is destroyed beside the targets, such as "12 checkpoints (4.2 GB)".
        first: its effect with or without targets, such as "fence node gpu-7".
        last: a remark on all of it, such as "after 2h".
    """

    rule: Rule
    targets: Sequence[Target]
    user: str = ""
    noun: str = "session"
    loses: Sequence[str] = ()
    first: str = ""
    last: str = ""

    @property
    def others(self) -> list[str]:
        """Other users that own targets, by name."""
        return sorted({one.owner for one in self.targets if one.owner not in {"", self.user}})

    @property
    def asks(self) -> bool:
        """Whether to ask first."""
        if self.rule.asks is not Asks.SEVERAL:
            return bool(self.targets)
        return len(self.targets) > 1 or bool(self.others)

    @property
    def typed(self) -> int:
        """The number to type as an answer; 0: a yes is enough."""
        is_severe = self.rule.asks is Asks.LOSS and len(self.targets) > MOST_LISTED
        return len(self.targets) if is_severe else 0


def summary(plan: Plan) -> str:
    """Return the effect in one line: `remove 3 sessions, 12 checkpoints (4.2 GB), logs and metrics`."""
    acts = [plan.first] if plan.first else []
    if plan.targets:
        acts.append(f"{plan.rule.verb} {', '.join([_targets_text(plan), *plan.loses])}")
    return visible(" and ".join(acts) + (f" {plan.last}" if plan.last else ""))


def _targets_text(plan: Plan) -> str:
    count = len(plan.targets)
    others = [name for name in plan.others if all(name != one.name for one in plan.targets)]
    what = counted(count, plan.noun)
    if count == 1:
        name = _named(plan.targets[0])
        what = name if plan.noun in {"", "session"} else f"the {plan.noun} {name}"
    if not others:
        return what
    shown = ", ".join(others[:_MOST_OWNERS]) + (", ..." if len(others) > _MOST_OWNERS else "")
    is_theirs = all(one.owner not in {"", plan.user} for one in plan.targets)
    return f"{what} of {shown}" if is_theirs else f"{what} (some of {shown})"


def listed(plan: Plan, most: int | None = MOST_LISTED) -> list[str]:
    """Return the targets, a line each, and the number of further ones; `most` None: all of them."""
    shown = plan.targets[:most]
    names = list(map(_named, shown))
    cells = max(map(width, names), default=0)
    details = [fit(visible(one.detail), _DETAIL_CELLS) for one in shown]
    lines = [
        f"  {pad(name, cells)}  {detail}".rstrip()
        for name, detail in zip(names, details, strict=True)
    ]
    left = len(plan.targets) - len(shown)
    return [*lines, f"  ... and {left:,} more"] if left else lines


def _named(target: Target) -> str:
    """Return its name, in quotes if it could be misread."""
    name = visible(target.name)
    if not target.is_text:
        return name
    is_plain = not any(one.isspace() or one in "'\"" for one in name)
    return fit_middle(name if is_plain else repr(name), _NAME_CELLS)


def needs_list(plan: Plan) -> bool:
    """Return whether the summary alone is ambiguous."""
    return len(plan.targets) > 1


def target_of(session: Session) -> Target:
    """Return a session as a target, with its state and memo."""
    memo = " ".join(visible(session.memo).split())  # no gaps that imitate other lines
    detail = f"{state_text(session)}  {memo}" if memo else state_text(session)
    return Target(session.name, session.owner, detail)


def losses(sessions: Iterable[Session], saved: Iterable[Checkpoint] | None = None) -> list[str]:
    """Describe what is destroyed with sessions; `saved`: their checkpoints, None if not read."""
    count = sum(one.checkpoint_count for one in sessions)
    size = ""
    if saved is not None:
        known = list(saved)
        count, size = len(known), f" ({size_text(sum(one.size_bytes for one in known))})"
    checkpoints = [counted(count, "checkpoint") + size] if count else []
    return [*checkpoints, "logs and metrics"]
