"""Selection, order and columns of a session list: --filter, --sort, and --fields of single values.

The same words as in `nsml-tui`, parsed by the same modules. Owners and states of a filter already narrow the
list on the platform; the rest is filtered here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cli.arguments import is_glob
from cli.exits import CommandError, ExitCode
from cli.group import near, to_try
from nsml.common.shell import shell_word
from nsml.spec.labels import LABEL
from nsml.view import sorting as ordering
from nsml.view.filter_fields import Filtered
from nsml.view.filtering import ME, Filter, FilterError, states_of
from nsml.view.sessions import COLUMNS, is_listed, record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session, SessionFilter
    from nsml.view.tables import Column

_RECENT = re.compile(r"(?<![^\s!|])@(?:last|[1-9]\d*)(?![^\s|])")
"""A reference that counts back (@last, @2), as a word of a filter."""
_ALWAYS_COMPARED = frozenset({"age", "gpu", "gpus"})
"""Numbers of every session."""
_MOST_NAMED = 8


class Choosing:
    """The options --filter and --sort.

    Args:
        filters: all of them must match.
        sort: a column's key, `summary.NAME`, `arg.NAME`, `label.KEY`, or such a name alone; `-` before it: greatest first. "": newest first.
        fields: of --fields, by the same names.
        has_steps: also list the steps of submissions; a filter that names them does that, too.
        has_predictions: of these steps, list those that predict.

    Raises CommandError (USAGE) for an empty filter.
    """

    def __init__(
        self,
        filters: Sequence[str],
        sort: str,
        fields: Sequence[str] = (),
        *,
        has_steps: bool = True,
        has_predictions: bool = False,
    ) -> None:
        self._has_predictions = has_predictions
        columns = {one.key for one in COLUMNS}
        self._names = [one for one in fields if one not in columns and not ordering.is_single(one)]
        """Values of summaries and arguments, named without prefix."""
        self.texts = filters
        self.filters = [_understood(text) for text in filters]
        self._has_steps = has_steps or any(one.has_steps for one in self.filters)
        self._sort = sort.removeprefix("-")
        self._is_down = sort.startswith("-") or not sort
        self._key = ""
        self._known: ordering.Keys | None = None
        compared = {name for one in self.filters for name in one.compared()}
        self._missing = compared - _ALWAYS_COMPARED
        """Compared numbers not found in any session so far."""
        self._looked_at: list[Filtered] = []
        """Sessions read while some were missing."""

    async def know(self, client: Client) -> None:
        """Resolve @me, @last and @2, if used."""
        texts = [await _with_names(client, text) for text in self.texts]
        me = ""
        if any(ME in text for text in texts):
            me = (await client.accounts.caller()).user.name
        self.filters = [Filter(text, me=me) for text in texts]

    def narrow(self, chosen: SessionFilter) -> None:
        """Let the platform filter by owner, state and steps; a filter for an ended state includes ended sessions."""
        from nsml.client.streams import ENDED_STATES

        chosen.without_submission_steps = not (self._has_steps or self._has_predictions)
        for one in self.filters:
            users = [name.casefold() for name in one.required("user")]
            if not chosen.owners and not any(map(is_glob, users)):
                chosen.owners.extend(users)
            if not chosen.states:
                chosen.states.extend(states_of(one.required("state")))
            chosen.include_ended |= not ENDED_STATES.isdisjoint(states_of(one.named("state")))

    def summary_names(self, app: App) -> list[str]:
        """Return the summary values in use; lists include them on request."""
        shown = [key for key in app.flags.fields if key.startswith(ordering.SUMMARY)]
        names = [key for one in self.filters for key in one.compared()]
        names += [
            key.removeprefix(ordering.SUMMARY) for key in (self._sort, *shown, *self._names) if key
        ]
        return list(dict.fromkeys(names))

    @property
    def looks_closer(self) -> bool:
        """Whether it uses more of a session than a table shows."""
        return bool(self.filters or self._sort or self._names)

    def takes(self, session: Session, now: float) -> bool:
        """Return whether a session matches, at a time (Unix seconds)."""
        if not self._has_steps and not is_listed(session, has_predictions=self._has_predictions):
            return False
        filtered = Filtered(session)
        if self._missing:
            self._missing = {one for one in self._missing if filtered.number(one) is None}
            self._looked_at.append(filtered)
        return all(one.takes(filtered, now) for one in self.filters)

    def arranged(self, found: Sequence[Session], now: float) -> list[Session]:
        """Sort sessions given newest first; unchanged if there is no such sort key."""
        every = [Filtered(one) for one in found]
        self._known = ordering.keys_of(every) if self.looks_closer else None
        if not self._sort:
            return list(found)
        self._key = self._key_among(self._known)
        if not self._key:
            return list(found)
        values = [ordering.value_of(one, self._key, now) for one in every]
        return [found[place] for place in ordering.order(values, is_down=self._is_down)]

    def _key_among(self, known: ordering.Keys | None) -> str:
        columns = known.columns if known is not None else []
        for key in (self._sort, ordering.SUMMARY + self._sort, ordering.ARGUMENT + self._sort):
            if key in columns:
                return key
        return ""

    def refuse_unknown(self, found: Sequence[Session]) -> None:
        """Raise CommandError (USAGE) if the sort key is unknown in these sessions."""
        if self._key or not self._sort or not found:
            return
        known = ordering.keys_of(map(Filtered, found))
        nearest = near(self._sort, [*known.columns, *known.summary, *known.arguments])
        values = [*known.summary, *known.arguments][:_MOST_NAMED]
        there = "" if nearest or not values else f"; there are {', '.join(values)}"
        raise CommandError(
            f"unknown sort key {self._sort!r}",
            code=ExitCode.USAGE,
            why=f"no session in this list reports it, got it as an argument, or has such a column{there}",
            advice=to_try("--sort", nearest),
        )

    def unknown_numbers(self) -> list[str]:
        """Return a line, with similar names, for each compared number that no session has."""
        if not self._missing or not self._looked_at:
            return []
        known = ordering.keys_of(self._looked_at)
        every = [*known.summary, *known.arguments]
        lines = []
        for name in sorted(self._missing):
            label = [LABEL + name] if name in known.labels else []
            meant = label or near(name, every) or every[:_MOST_NAMED]
            there = f"; there are {', '.join(meant)}" if meant else ""
            lines.append(f"note: no session in this list has a number {name!r}{there}")
        return lines

    def columns(self, app: App) -> Sequence[Column[Session]]:
        """Return all columns; the sort column is shown and marked, filtered columns are shown."""
        keys = [key for one in self.filters for key in one.asked]
        found = [*ordering.with_filtered(COLUMNS, keys, self._known), *_asked(app)]
        found += [ordering.named_alone(one) for one in self._names if self._is_there(one)]
        if not self._key:
            return found
        return ordering.marked(found, self._key, is_down=self._is_down)

    def _is_there(self, name: str) -> bool:
        """Return whether a session has a value of this name; True if none was read yet."""
        known = self._known
        return known is None or name in {*known.summary, *known.arguments}

    def record(self, app: App) -> Callable[[Session], dict[str, Any]]:
        """Return a function for a session's record, with the requested single values."""
        some = list(filter(ordering.is_single, app.flags.fields))
        names = [one for one in self._names if self._is_there(one)]
        return lambda one: {
            **{name: ordering.single_alone(one, name) for name in names},
            **record(one),  # its own fields take precedence over such values
            **{key: ordering.single(one, key) for key in some},
        }


async def _with_names(client: Client, text: str) -> str:
    """Replace each reference that counts back by the session's full name in a filter.

    Raises ClientError if there is no such session.
    """
    names = {one: (await client.sessions.get(one)).name for one in _RECENT.findall(text)}
    return _RECENT.sub(lambda found: f"name:{names[found[0]]}", text)


def _asked(app: App) -> list[Column[Session]]:
    """Return the requested single values as columns."""
    some = filter(ordering.is_single, app.flags.fields)
    return [one for key in some if (one := ordering.column(key)) is not None]


def _understood(text: str) -> Filter:
    try:
        return Filter(text)
    except FilterError as error:
        raise CommandError(
            f"--filter: {error.message}",
            code=ExitCode.USAGE,
            why=f"{text}\n{' ' * error.place}^",
            advice="\n".join(f"--filter {shell_word(one)}" for one in error.advice),
        ) from error
