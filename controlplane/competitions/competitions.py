"""Makes, changes, finds and closes competitions, and says things to their participants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.core.paging import cursor_behind, key_in, page_size
from controlplane.datasets.references import parse_dataset
from controlplane.domain.competitions.phases import (
    MOST_ANNOUNCEMENT_BYTES,
    changed_settings,
    check_datasets_free,
    check_line,
    check_name,
    check_none_is_over,
    check_settings,
    check_text,
    end_of,
    has_same_phases,
    in_order,
    is_held,
    is_within,
    phase_named,
)
from controlplane.domain.competitions.teams import disqualify
from controlplane.domain.competitions.values import (
    Announcement,
    Baseline,
    Competition,
    CompetitionSettings,
    CompetitionState,
    Facts,
)
from controlplane.domain.errors import (
    AlreadyExists,
    Denied,
    InvalidRequest,
    LimitReached,
    NotFound,
    StateConflict,
)
from controlplane.domain.identity import Role, UserCaller
from controlplane.domain.names import check_user
from controlplane.domain.policy import ALLOW, CHANGE, SEE, check_visibility, may
from controlplane.domain.values import Visibility
from controlplane.history.values import PageKey
from controlplane.submissions.dataset_trees import trees_of
from nsml.common.units import moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from controlplane.competitions.team_quotas import TeamQuotaRecords
    from controlplane.content.content import Content
    from controlplane.datasets.datasets import Datasets
    from controlplane.domain.competitions.standings import Standings
    from controlplane.domain.competitions.values import Phase
    from controlplane.domain.identity import User
    from controlplane.history.sql.history import History
    from controlplane.submissions.participation import Participation
    from controlplane.submissions.submissions import Submissions
    from nsml.common.clock import Clock

MOST_OF_USER: Final = 1_000
MOST_ANNOUNCEMENTS: Final = 1_000
MOST_BASELINES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Settings of a request; phases name their datasets as the caller did.

    Attributes:
        visibility: None: public, or private if it is by invitation.
    """

    settings: CompetitionSettings
    datasets: dict[str, str]
    visibility: Visibility | None


class Competitions:
    """The use cases of organisers, and the lookup.

    Args:
        quotas: of teams, for the scheduler.
        user: returns a user by name; raises NotFound.
    """

    def __init__(
        self,
        *,
        history: History,
        quotas: TeamQuotaRecords,
        datasets: Datasets,
        content: Content,
        participation: Participation,
        submissions: Submissions,
        clock: Clock,
        new_id: Callable[[], str],
        user: Callable[[str], Awaitable[User]],
    ) -> None:
        self._history = history
        self._quotas = quotas
        self._datasets = datasets
        self._content = content
        self._participation = participation
        self._submissions = submissions
        self._clock = clock
        self._new_id = new_id
        self._user = user

    async def find(self, caller: UserCaller, text: str) -> Facts:
        """Find the caller's own competition, else the only visible one of that name.

        Raises:
            NotFound: there is none that the caller may see.
            InvalidRequest: the name, or it is ambiguous.
        """
        owner, slash, name = text.rpartition("/")
        if slash:
            check_user(owner)
        check_name(name, "competition")
        known = await self._history.competitions.of_user(caller.user.name)
        seen = [
            one
            for one in await self._history.competitions.named(name, owner)
            if self._is_seen(caller, one, known)
        ]
        own = [one for one in seen if one.owner == caller.user.name]
        if len(own or seen) > 1:
            raise InvalidRequest(
                f"{len(seen)} users have a competition {name!r}",
                why=", ".join(f"{one.owner}/{name}" for one in seen[:5]),
                attempt=f"nsml competition show {seen[0].owner}/{name}",
            )
        facts = None
        if found := own or seen:
            facts = await self._history.competitions.facts(found[0].id)
        if facts is None:
            raise NotFound(f"there is no competition {text}", attempt="nsml competition ls")
        return facts

    async def check_seen(self, caller: UserCaller, competition_id: str) -> None:
        """Raise NotFound unless the caller still sees a competition."""
        known = await self._history.competitions.of_user(caller.user.name)
        found = await self._history.competitions.get(competition_id)
        if found is None or not self._is_seen(caller, found, known):
            raise NotFound("the competition is not there any more", attempt="nsml competition ls")

    async def changeable(self, caller: UserCaller, text: str) -> Facts:
        """Find a competition that the caller organises; administrators organise all.

        Raises:
            NotFound, InvalidRequest: as `find`.
            Denied: it is another user's.
        """
        facts = await self.find(caller, text)
        if not organises(caller, facts.competition):
            one = facts.competition
            raise Denied(
                f"the competition {one.owner}/{one.name} is {one.owner}'s",
                why="only its organiser and administrators do this",
            )
        return facts

    async def page(
        self, caller: UserCaller, *, size: int, cursor: str
    ) -> tuple[Sequence[Competition], str]:
        """Return competitions that the caller sees, the newest first, and the cursor of the next page.

        Raises:
            InvalidRequest: the cursor is invalid.
        """
        most = page_size(size)
        found = await self._history.competitions.seen(
            caller.user, after=key_in(cursor), limit=most + 1
        )
        return found[:most], cursor_of(found[most - 1]) if len(found) > most else ""

    async def newest(self, caller: UserCaller, limit: int) -> tuple[Sequence[Competition], int]:
        """Return the newest competitions that the caller sees, and how many there are of all."""
        found = await self._history.competitions.seen(caller.user, limit=limit)
        return found, await self._history.competitions.count_seen(caller.user)

    async def create(self, caller: UserCaller, name: str, asked: Asked) -> Competition:
        """Make a competition that is not open yet.

        Raises:
            InvalidRequest: the name or a setting.
            NotFound, Denied: a dataset.
            StateConflict: a dataset takes no submissions.
            AlreadyExists: the caller has one of that name.
            LimitReached: the caller has too many.
        """
        user = caller.user
        check_name(name, "competition")
        settings = check_settings(await self._settings(caller, asked, user.team))
        competition = Competition(
            id=self._new_id(),
            owner=user.name,
            owner_id=user.id,
            team=user.team,
            name=name,
            settings=settings,
            created_at=self._clock.time(),
        )
        if await self._history.competitions.count_of(user.name) >= MOST_OF_USER:
            raise LimitReached(f"you have {MOST_OF_USER:,} competitions")
        if not await self._history.competitions.create(competition):
            raise AlreadyExists(
                f"you have a competition {name}",
                attempt=f"nsml competition update {name} FILE.toml",
            )
        return competition

    async def update(self, caller: UserCaller, text: str, asked: Asked) -> Facts:
        """Set other settings; while it is open, a change of phases is announced.

        Raises as `create`; StateConflict also if it was changed or opened meanwhile.
        """
        known = await self.changeable(caller, text)
        settings = await self._settings(caller, asked, known.competition.team)
        now = self._clock.time()

        def rule(facts: Facts) -> Facts:
            before = facts.competition
            _check_same(known.competition, before)
            changed = replace(
                facts, competition=replace(before, settings=changed_settings(before, settings, now))
            )
            is_announced = before.state is CompetitionState.OPEN and not has_same_phases(
                before.settings, settings
            )
            return _announced(changed, _phases_text(changed), now) if is_announced else changed

        if known.competition.state is CompetitionState.OPEN:
            after = replace(
                known.competition, settings=changed_settings(known.competition, settings, now)
            )
            await self._check_opens(after)
        changed = await self._change(known, rule, settings.datasets)
        await self._quotas.changed(changed.competition.id)
        return changed

    async def open(self, caller: UserCaller, text: str) -> Facts:
        """Let participants join and submit.

        Raises:
            StateConflict: it has no phases or one that is over already, was closed, a dataset is not possible, or it was
                changed meanwhile.
        """
        known = await self.changeable(caller, text)
        if not known.settings.phases:
            raise StateConflict(
                f"{known.competition.name} has no phases",
                attempt=f"nsml competition update {known.competition.full_name} FILE.toml",
            )
        check_none_is_over(known.competition, self._clock.time())
        await self._check_opens(known.competition)

        def rule(facts: Facts) -> Facts:
            if facts.competition.state is CompetitionState.CLOSED:
                raise StateConflict(f"{facts.competition.name} is over")
            _check_same(known.competition, facts.competition)
            opened = replace(facts.competition, state=CompetitionState.OPEN)
            return replace(facts, competition=opened)

        changed = await self._change(known, rule, known.settings.datasets)
        await self._quotas.changed(changed.competition.id)
        return changed

    async def close(self, caller: UserCaller, text: str, phase: str) -> Facts:
        """End the phase that runs, or the competition (""): phases that have not begun do not take place then.

        Raises:
            NotFound: there is no such phase.
            StateConflict: it does not run, or the competition is not open.
        """
        known = await self.changeable(caller, text)

        def rule(facts: Facts) -> Facts:
            now = self._clock.time()
            competition = facts.competition
            if competition.state is not CompetitionState.OPEN:
                raise StateConflict(f"{competition.name} is not open")
            if not phase:
                closed = replace(competition, state=CompetitionState.CLOSED, closed_at=now)
                return replace(facts, competition=closed)
            found = self.phase(facts, phase)
            if not is_within(competition, found, now):
                raise StateConflict(
                    f"the phase {phase} does not run",
                    why="it is over" if end_of(competition, found) <= now else "it has not begun",
                )
            ended = tuple(
                replace(one, closed_at=now) if one.name == phase else one
                for one in competition.settings.phases
            )
            settings = replace(competition.settings, phases=ended)
            return replace(facts, competition=replace(competition, settings=settings))

        changed = await self._change(known, rule)
        await self._quotas.changed(changed.competition.id)
        return changed

    async def delete(self, caller: UserCaller, text: str) -> None:
        """Remove a competition that is not open. Raises StateConflict: it is."""
        known = await self.changeable(caller, text)
        if not await self._history.competitions.remove(known.competition.id):
            raise StateConflict(
                f"{known.competition.name} is open",
                attempt=f"nsml competition close {known.competition.full_name}",
            )

    async def announce(self, caller: UserCaller, text: str, message: str) -> None:
        """Say something to all participants. Raises InvalidRequest: no text, or too much."""
        known = await self.changeable(caller, text)
        check_text(message, "announcement", MOST_ANNOUNCEMENT_BYTES)
        if not message.strip():
            raise InvalidRequest("there is no text to announce")
        await self._change(known, lambda facts: _announced(facts, message, self._clock.time()))

    async def disqualify(self, caller: UserCaller, text: str, team: str, reason: str) -> Facts:
        """Disqualify a team, or take that back ("")."""
        known = await self.changeable(caller, text)
        check_line(reason, "reason")
        return await self._change(known, lambda facts: disqualify(facts, team, reason))

    async def set_baseline(
        self, caller: UserCaller, text: str, submission_id: str, label: str
    ) -> None:
        """Show a submission of the organiser in the standings; label "": not any more.

        Raises:
            NotFound: there is no such submission to a dataset of its phases, or none that begins so.
            AmbiguousReference: several begin so.
            StateConflict: it is a participant's, or a dry run.
            LimitReached: there are too many.
        """
        known = await self.changeable(caller, text)
        check_line(label, "label", 64)
        row = (await self._submissions.find(caller, submission_id)).row
        datasets = {(one.dataset_owner, one.dataset) for one in known.settings.phases}
        if (row.dataset_owner, row.dataset) not in datasets:
            raise NotFound(f"there is no submission {row.id} to its datasets")
        if (
            row.is_test
            or row.rerun_of
            or row.owner not in {known.competition.owner, row.dataset_owner}
        ):
            raise StateConflict(
                f"{row.id} cannot be a baseline",
                why="it is a dry run"
                if row.is_test
                else "it is a participant's: a baseline is the organiser's",
                attempt="nsml submission ls",
            )

        def rule(facts: Facts) -> Facts:
            rest = tuple(one for one in facts.baselines if one.submission_id != row.id)
            new = (Baseline(submission_id=row.id, label=label),) if label else ()
            if new and len(rest) >= MOST_BASELINES:
                raise LimitReached(f"{facts.competition.name} has {MOST_BASELINES} baselines")
            return replace(facts, baselines=(*rest, *new))

        await self._change(known, rule)

    async def rerun(self, caller: UserCaller, text: str, phase_name: str, teams: int) -> int:
        """Predict and evaluate what counts for the first teams again; return how many were started.

        What runs, or gave a score, is not repeated.

        Raises:
            StateConflict: the standings are not final, or a session was removed.
        """
        facts = await self.changeable(caller, text)
        phase = self.phase(facts, phase_name)
        final = await self._participation.standings(facts, phase)
        if not final.is_final:
            raise StateConflict(
                f"the standings of {phase.name} are not final",
                why=_why_not_final(facts, final),
            )
        done = {
            one.row.rerun_of
            for one in await self._history.submissions.reruns(phase.dataset_owner, phase.dataset)
            if (one.score is not None and one.score.score is not None) or not one.row.state.is_over
        }
        counting = await self._participation.counting(facts, phase)
        started = 0
        for row in final.rows:
            if not 0 < row.rank <= teams:
                continue
            for submission in counting.get(row.team, ()):
                known = await self._history.submissions.get(submission.id)
                if known is not None and known.id not in done:
                    await self._submissions.rerun(known)
                    started += 1
        return started

    def phase(self, facts: Facts, name: str) -> Phase:
        """Return a phase; NotFound: there is none of that name."""
        found = phase_named(facts.competition, name)
        if found is None:
            names = ", ".join(one.name for one in in_order(facts.settings.phases))
            raise NotFound(
                f"{facts.competition.name} has no phase {name[:80]!a}",
                why=f"it has {names}" if names else "",
            )
        return found

    async def _change(
        self,
        known: Facts,
        rule: Callable[[Facts], Facts],
        datasets: Collection[tuple[str, str]] = (),
    ) -> Facts:
        changed = await self._history.competitions.change(
            known.competition.id, rule, check=check_datasets_free, datasets=datasets
        )
        if changed is None:
            raise NotFound(f"there is no competition {known.competition.name}")
        return changed

    def _is_seen(self, caller: UserCaller, one: Competition, known: Iterable[str]) -> bool:
        if organises(caller, one) or one.id in known:
            return True
        return one.state is not CompetitionState.DRAFT and may(caller, SEE, one) is ALLOW

    async def _settings(self, caller: UserCaller, asked: Asked, team: str) -> CompetitionSettings:
        """Return settings with full names of datasets that take submissions."""
        visibility = asked.visibility
        if visibility is None:
            by_invitation = asked.settings.by_invitation
            visibility = Visibility.PRIVATE if by_invitation else Visibility.PUBLIC
        check_visibility(visibility, team)
        names: dict[str, tuple[str, str]] = {}
        for text in sorted(set(asked.datasets.values())):
            listing = await self._datasets.lookup.changeable(caller, parse_dataset(text))
            owner = await self._user(listing.dataset.owner)
            await trees_of(self._content, owner, listing)
            names[text] = (listing.dataset.owner, listing.dataset.name)
        phases = []
        for one in asked.settings.phases:
            owner_name, dataset = names[asked.datasets[one.name]]
            phases.append(replace(one, dataset_owner=owner_name, dataset=dataset))
        return replace(asked.settings, phases=tuple(phases), visibility=visibility)

    async def _check_opens(self, competition: Competition) -> None:
        """Raise StateConflict if participants could not see a dataset."""
        for phase in competition.settings.phases:
            full = f"{phase.dataset_owner}/{phase.dataset}"
            found = await self._history.catalogue.dataset(phase.dataset_owner, phase.dataset)
            if found is None:
                raise StateConflict(f"the dataset {full} was removed")
            if found.dataset.visibility is Visibility.PRIVATE:
                raise StateConflict(
                    f"participants do not see the dataset {full}",
                    why="it is private; hidden parts stay hidden when it is shared",
                    attempt=f"nsml dataset share {full} --public",
                )


def organises(caller: UserCaller, competition: Competition) -> bool:
    """Whether the caller is the organiser, or may do what the organiser may."""
    return caller.user.role is Role.ADMIN or (
        may(caller, CHANGE, competition) is ALLOW and competition.owner_id in {"", caller.user.id}
    )


def cursor_of(competition: Competition) -> str:
    """Return the cursor of the page behind a competition."""
    return cursor_behind(PageKey(competition.created_at, competition.id))


def _check_same(checked: Competition, now: Competition) -> None:
    """Raise StateConflict if it was changed or opened since it was checked: what it is now has not been."""
    if (checked.settings, checked.state) != (now.settings, now.state):
        raise StateConflict(
            f"{now.name} was changed meanwhile",
            attempt=f"nsml competition show {now.full_name}    and the same again",
        )


def _why_not_final(facts: Facts, standings: Standings) -> str:
    if standings.waiting:
        return f"{standings.waiting} submissions are being evaluated"
    is_over = not is_held(facts.competition, standings.phase)
    return "the competition was closed before it began" if is_over else "it is not over"


def _announced(facts: Facts, text: str, now: float) -> Facts:
    number = max((one.number for one in facts.announcements), default=0) + 1
    if number > MOST_ANNOUNCEMENTS:
        raise LimitReached(f"{facts.competition.name} has {MOST_ANNOUNCEMENTS:,} announcements")
    new = Announcement(number=number, text=text, at=now)
    return replace(facts, announcements=(*facts.announcements, new))


def _phases_text(facts: Facts) -> str:
    lines = [
        f"{one.name}: from {moment(one.starts_at)} until {moment(one.end)}"
        for one in in_order(facts.settings.phases)
    ]
    return "\n".join(["The phases are now:", *lines])
