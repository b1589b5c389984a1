"""Asks before something is ended, moved or destroyed; the rule itself is in `nsml.view.confirmation`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.exits import CommandError, ExitCode
from cli.group import set_flag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.app import App
    from nsml.view.confirmation import Plan, Rule

F = TypeVar("F", bound="Callable[..., Any] | click.Command")


def confirmed(command: F) -> F:
    """Add `-y` and `--dry-run` to a command in `nsml.view.confirmation.COMMANDS`."""
    dry_run = click.option(
        "--dry-run",
        is_flag=True,
        expose_value=False,
        callback=set_flag("is_dry_run"),
        help="Print what would be done, and do nothing.",
    )
    yes = click.option(
        "-y",
        "--yes",
        is_flag=True,
        expose_value=False,
        callback=set_flag("says_yes"),
        help="Do not ask (nsml help confirmation).",
    )
    return yes(dry_run(command))


def rule_of(name: str) -> Rule:
    """Return the rule of a command, by its words after `nsml`."""
    # Imports the words of all states, which costs more than parsing a command line.
    from nsml.view.confirmation import COMMANDS

    return COMMANDS[name]


def go_ahead(
    app: App, plan: Plan, *, flag: str = "-y", expected: int | None = None, aside: str = ""
) -> bool:
    """Return whether to proceed: False for --dry-run, which lists the targets instead.

    Args:
        app: asks the user.
        plan: the effect; of several targets, the caller acts on exactly these.
        flag: the flags to advise if the user cannot be asked.
        expected: the number of targets that the command line confirms, if any.
        aside: a line about the consequences, shown with the question.

    Raises:
        CommandError: not confirmed, or nobody to ask; USAGE.
    """
    if app.flags.is_dry_run:
        _list_all(app, plan, aside)
        return False
    if expected is not None and expected != len(plan.targets):
        from nsml.common.units import counted

        raise _not_done(plan, f"it is {counted(len(plan.targets), plan.noun)}, not {expected}")
    if not plan.asks or app.flags.says_yes or expected is not None:
        return True
    _ask(app, plan, flag, aside)
    return True


def _list_all(app: App, plan: Plan, aside: str) -> None:
    """Write names to stdout, one a line, for scripts; the rest to stderr."""
    from nsml.common.text import visible
    from nsml.view.confirmation import listed, summary

    app.say(f"would {summary(plan)}" if plan.targets or plan.first else "nothing to do")
    if app.stdout.isatty():
        for line in listed(plan, most=None):
            app.write(line)
    else:
        for one in plan.targets:
            app.write(visible(one.name))
    for line in aside.splitlines():
        app.say(line)
    app.say("nothing was done (--dry-run)")


def _ask(app: App, plan: Plan, flag: str, aside: str) -> None:
    from nsml.view.confirmation import listed, needs_list, summary

    flag = f"--confirm {plan.typed} or -y" if plan.typed else flag
    lines = [*(listed(plan) if needs_list(plan) else []), *aside.splitlines()]
    if not app.can_ask:
        raise _not_done(
            plan,
            "this needs a confirmation, and there is no terminal to ask on",
            why="\n".join([f"it would {summary(plan)}", *lines]),
            advice=f"add {flag}\nadd --dry-run    to list it",
        )
    # Not with `say`: --quiet hides no part of a question.
    app.stderr.write("".join(f"{line}\n" for line in lines))
    text = summary(plan)
    app.forget_typed()
    if plan.typed:
        answer = app.ask(f"{text}? type {plan.typed} to confirm: ", flag=flag)
        is_meant = answer == str(plan.typed)
    else:
        is_meant = app.agrees(f"{text}?", flag=flag)
    if not is_meant:
        raise _not_done(plan, "not confirmed")


def _not_done(plan: Plan, message: str, *, why: str = "", advice: str = "") -> CommandError:
    return CommandError(
        f"{message}: nothing was {plan.rule.done}",
        code=ExitCode.USAGE,
        reason="NOT_CONFIRMED",
        why=why,
        advice=advice,
    )


def confirm_names(
    app: App,
    command: str,
    names: Sequence[str],
    *,
    noun: str,
    loses: Sequence[str] = (),
    aside: str = "",
    first: str = "",
    last: str = "",
) -> bool:
    """`go_ahead` for targets with names only."""
    from nsml.view.confirmation import Plan, Target

    targets = [Target(name) for name in names]
    words = {"first": first, "last": last}
    plan = Plan(rule=rule_of(command), targets=targets, noun=noun, loses=loses, **words)
    return go_ahead(app, plan, aside=aside)
