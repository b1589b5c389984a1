"""dataset rm: removes datasets and versions, by names and globs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cli.app import App
from cli.arguments import DATASET, is_glob, split_dataset
from cli.confirmation import confirmed, go_ahead, rule_of
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list, write_one
from nsml.common.shell import shell_word

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from nsml.client.calls import Client
    from nsml.client.errors import ClientError
    from nsml.v1.datasets_pb2 import DatasetUse, GetDatasetResponse, RemoveDatasetResponse


class _Chosen(NamedTuple):
    """A target of the removal: a dataset with all its versions (0), or one version."""

    full: str
    version: int
    found: GetDatasetResponse

    @property
    def name(self) -> str:
        return f"{self.full}@{self.version}" if self.version else self.full


class _Done(NamedTuple):
    chosen: _Chosen
    answer: RemoveDatasetResponse


@command(
    "rm",
    reads=True,
    examples=[
        "nsml dataset rm mnist@2",
        "nsml dataset rm mnist -y",
        "nsml dataset rm 'kin_*' faces@1 --dry-run",
    ],
)
@click.argument("names", type=DATASET, metavar="NAME...", nargs=-1, required=True)
@confirmed
@pass_app
def rm(app: App, *, names: tuple[str, ...]) -> int:
    """Remove datasets, or with @N one version of one.

    NAME may be a glob in quotes: of datasets of yours, or as USER/GLOB of another user's. Says which sessions use
    them, and asks first. Running and queued sessions that use them continue. `nsml dataset restore` undoes it
    for a day, unless the platform is set otherwise. What the object store keeps for you is counted
    anew within minutes.
    """
    from nsml.view.confirmation import Plan, Target

    async def look(client: Client) -> tuple[str, list[_Chosen]]:
        user = (await client.accounts.caller()).user.name
        return user, await _chosen(client, user, names)

    user, chosen = app.call(look)
    is_one = len(chosen) == 1
    targets = [
        Target(one.name, one.found.dataset.owner, "" if is_one else _detail(one)) for one in chosen
    ]
    plan = Plan(
        rule=rule_of("dataset rm"),
        targets=targets,
        noun="dataset",
        loses=["all its versions"] if is_one and not chosen[0].version else [],
        user=user,
        last=_known_by(chosen[0]) if is_one else "",
    )
    if not go_ahead(app, plan):
        return ExitCode.OK
    done, failures = app.call(lambda client: _removed(client, chosen))
    if is_one and failures:
        raise failures[0]
    _write(app, done, is_list=len(names) > 1 or is_glob(names[0]))
    return _tell(app, failures, is_part=bool(done))


async def _chosen(client: Client, user: str, names: Iterable[str]) -> list[_Chosen]:
    """Return each target once, without versions of datasets removed as a whole. Raises CommandError for a glob without matches."""
    found: dict[str, _Chosen] = {}
    for name in names:
        for plain in await _fitting(client, user, name) if is_glob(name) else [name]:
            wanted = split_dataset(plain)
            answer = await client.datasets.look(*wanted)
            one = answer.dataset
            version = one.version if wanted.version or wanted.tag else 0
            chosen = _Chosen(f"{one.owner}/{one.name}", version, answer)
            found[chosen.name] = chosen
    return [one for one in found.values() if not one.version or one.full not in found]


async def _fitting(client: Client, user: str, glob: str) -> list[str]:
    owner, _, plain = glob.rpartition("/")
    owner = owner or user
    if "@" in glob or is_glob(owner):
        raise CommandError(
            f"{glob[:80]!r} is no glob of datasets of one user",
            code=ExitCode.USAGE,
            why="a glob fits names, and means all versions",
            advice="nsml dataset rm 'kin_*'    for example",
        )
    every = await client.datasets.every(plain)
    fitting = [f"{one.owner}/{one.name}" for one in every if one.owner == owner]
    if not fitting:
        of = "yours" if owner == user else owner
        raise CommandError(
            f"no dataset of {of} fits {plain[:80]!r}",
            code=ExitCode.NOT_FOUND,
            advice=f"nsml dataset ls {shell_word(plain)}",
        )
    return fitting


async def _removed(
    client: Client, chosen: Sequence[_Chosen]
) -> tuple[list[_Done], list[ClientError]]:
    from nsml.client.errors import ClientError

    done, failures = [], []
    for one in chosen:
        try:
            answer = await client.datasets.remove(one.full, one.version)
        except ClientError as error:
            failures.append(error)
        else:
            done.append(_Done(one, answer))
    return done, failures


def _write(app: App, done: Sequence[_Done], *, is_list: bool) -> None:
    from nsml.common.text import visible

    now = app.clock.time()
    if app.is_for_people:
        for one in done:
            write_one(app, _record(one), list(map(visible, _lines(one, now))))
    elif is_list:
        write_list(app, done, columns=(), record=_record)
    else:
        for one in done:
            write_one(app, _record(one), ())


def _tell(app: App, failures: Collection[ClientError], *, is_part: bool) -> int:
    """Print the failures and return the exit code."""
    from cli.problems import problem_of, tell

    code: int = ExitCode.OK
    for error in failures:
        problem = problem_of(error)
        tell(app, problem)
        code = problem.code
    return ExitCode.PARTLY if failures and is_part else code


def _lines(done: _Done, now: float) -> list[str]:
    from nsml.common.units import counted, duration_text

    chosen, answer = done
    text = f"removed {counted(answer.removed, 'version')} of {chosen.full}"
    if answer.live_sessions:
        live = counted(answer.live_sessions, "live session")
        text += f"; {live} can use it until the end{_named(chosen.found.use, answer.live_sessions)}"
    until = _until(answer)
    if until is None:
        return [text]
    span = duration_text(round(until - now))
    return [text, f"to undo it, within {span}: nsml dataset restore {chosen.name}"]


def _named(use: DatasetUse, live: int) -> str:
    """Return names of the live sessions, `live` in number, as far as known; "" if none is."""
    if not use.names:
        return ""
    if live != use.live_sessions:
        return f", of {', '.join(use.names)}"
    more = live - len(use.names)
    return f": {', '.join(use.names)}" + (f" and {more:,} more" if more > 0 else "")


def _record(done: _Done) -> dict[str, Any]:
    from nsml.common.units import moment

    until = _until(done.answer)
    return {
        "name": done.chosen.name,
        "removed": done.answer.removed,
        "live_sessions": done.answer.live_sessions,
        "restorable_until": None if until is None else moment(until),
    }


def _until(answer: RemoveDatasetResponse) -> float | None:
    from nsml.view.times import seconds_of

    return seconds_of(answer.restorable_until) if answer.HasField("restorable_until") else None


def _known_by(chosen: _Chosen) -> str:
    """Return its tags and its use, in parentheses; "" if none."""
    from nsml.view.datasets import uses_text

    tags, use = chosen.found.dataset.tags if chosen.version else (), chosen.found.use
    words = [f"tagged {', '.join(tags)}"] if tags else []
    if use.live_sessions or use.ended_sessions:
        words.append(f"used by {uses_text(use)}")
    return f"({'; '.join(words)})" if words else ""


def _detail(chosen: _Chosen) -> str:
    """Describe one of several targets."""
    return " ".join(filter(None, ["" if chosen.version else "all versions", _known_by(chosen)]))
