"""Competitions, their phases, teams and standings as rows, lines and records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsml.common.shell import shell_line
from nsml.common.units import (
    ago,
    counted,
    duration_text,
    short_moment,
    thousandths,
    whole,
)
from nsml.v1 import boards_pb2, resources_pb2
from nsml.v1 import competitions_pb2 as pb
from nsml.view.boards import direction_word, limit_text, next_text
from nsml.view.enums import enum_name, enum_word
from nsml.view.ranked_rows import (
    change_column,
    gpu_time_column,
    gpu_time_text,
    private_score_column,
    rank_column,
    score_column,
    submitted_column,
    trend_column,
    with_score_texts,
)
from nsml.view.scores import score_text
from nsml.view.sessions import visibility_word
from nsml.view.tables import Column
from nsml.view.times import moment_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from nsml.v1.competitions_pb2 import (
        Competition,
        CompetitionSettings,
        GetCompetitionResponse,
        Phase,
        PhaseStatistics,
        Standing,
        Team,
    )

_TITLE_CELLS: Final = 13
_DEFAULT_TEAM: Final = 4
_DEFAULT_PICKS: Final = 2
_DAY_S: Final = 86_400.0


# Words


def full_name(competition: Competition) -> str:
    """Return `OWNER/NAME`."""
    return f"{competition.owner}/{competition.name}"


def state_word(state: int) -> str:
    """`draft`, `open` or `closed`."""
    return enum_word(pb.CompetitionState, state, "COMPETITION_STATE_") if state else "-"


_STATE_COLOURS: Mapping[int, str] = {
    pb.COMPETITION_STATE_DRAFT: "yellow",
    pb.COMPETITION_STATE_OPEN: "green",
}


def public_score_word(phase: Phase) -> str:
    """`exact`, `own-best` or `ladder`; the default of phases is `own-best`."""
    chosen = phase.public_score or boards_pb2.PUBLIC_SCORE_OWN_BEST
    return enum_word(boards_pb2.PublicScore, chosen, "PUBLIC_SCORE_").replace("_", "-")


def phase_direction_word(phase: Phase) -> str:
    """`max` or `min`: which scores are better; "" if the platform does not say."""
    return direction_word(phase.direction) if phase.direction else ""


def order_text(phase: Phase) -> str:
    """Return how teams are ranked: `score, min first`; "" if the platform does not say."""
    word = phase_direction_word(phase)
    return f"score, {word} first" if word else ""


def phase_limit_text(phase: Phase) -> str:
    """Return `10 in 1d`, `none`, or that the dataset's board decides."""
    return limit_text(phase.limit) if phase.HasField("limit") else "as the board"


def team_size(settings: CompetitionSettings) -> int:
    """Return the most members of a team."""
    return settings.team_size or _DEFAULT_TEAM


def picks_of(phase: Phase) -> int:
    """Return how many submissions a team picks."""
    return phase.picks or _DEFAULT_PICKS


# Phases


def running_phase(competition: Competition) -> Phase | None:
    """Return the phase that runs, as the platform says."""
    named = (one for one in competition.settings.phases if one.name == competition.phase)
    return next(named, None) if competition.phase else None


def limit_on(dataset: str, competitions: Iterable[Competition]) -> str:
    """Return the limit on a dataset during a competition: `10 in 1d, of a team in kim/cup (final)`; else "".

    Args:
        dataset: OWNER/NAME.
        competitions: any; two open ones never use a dataset at one time.
    """
    for one in competitions:
        phase = running_phase(one) if one.state == pb.COMPETITION_STATE_OPEN else None
        if phase is not None and phase.dataset == dataset and phase.HasField("limit"):
            return f"{limit_text(phase.limit)}, of a team in {full_name(one)} ({phase.name})"
    return ""


def next_phase(competition: Competition, now: float) -> Phase | None:
    """Return the phase that starts next."""
    later = [one for one in competition.settings.phases if seconds_of(one.starts_at) > now]
    return min(later, key=lambda one: seconds_of(one.starts_at), default=None)


def _phase_ahead(competition: Competition, now: float) -> Phase | None:
    """Return the phase that starts next, of a draft the one that runs once it is open; None: it is closed."""
    if competition.state == pb.COMPETITION_STATE_CLOSED:
        return None
    if competition.state == pb.COMPETITION_STATE_DRAFT:
        left = [one for one in competition.settings.phases if seconds_of(one.ends_at) > now]
        return min(left, key=lambda one: seconds_of(one.starts_at), default=None)
    return next_phase(competition, now)


def has_begun(competition: Competition, now: float) -> bool:
    """Return whether any phase has begun."""
    is_draft = competition.state == pb.COMPETITION_STATE_DRAFT
    return not is_draft and bool(begun_phases(competition, now))


def begun_phases(competition: Competition, now: float) -> list[Phase]:
    """Return the phases that have begun, in the order of time; in a draft by their times alone."""
    phases = [one for one in competition.settings.phases if not one.is_not_held]
    begun = [one for one in phases if seconds_of(one.starts_at) <= now]
    return sorted(begun, key=lambda one: seconds_of(one.starts_at))


def last_final(competition: Competition) -> str:
    """Return the name of the last phase with final standings, else of the last one; "" without phases."""
    phases = sorted(competition.settings.phases, key=lambda one: seconds_of(one.starts_at))
    held = [one for one in phases if not one.is_not_held] or phases
    names = [one.name for one in held if one.is_final] or [one.name for one in held]
    return names[-1] if names else ""


def phase_state(competition: Competition, phase: Phase, now: float) -> str:
    """Return where a phase is: `runs, 3d4h left`, `in 2d`, `evaluating`, `final`, `not held`."""
    starts, ends = seconds_of(phase.starts_at), seconds_of(phase.ends_at)
    if phase.is_not_held:
        return "not held"
    if phase.is_final:
        return "final"
    if competition.state == pb.COMPETITION_STATE_OPEN and competition.phase == phase.name:
        return f"runs, {duration_text(ends - now)} left"
    if starts > now:
        is_over = competition.state == pb.COMPETITION_STATE_CLOSED
        return "not held" if is_over else f"in {duration_text(starts - now)}"
    if competition.state == pb.COMPETITION_STATE_DRAFT:
        return "not open"
    return "evaluating"


def now_text(competition: Competition, now: float) -> str:
    """Return where a competition is: `open: final, 3d4h left`, `open: final starts in 2d`, `closed`."""
    word = state_word(competition.state)
    if competition.state != pb.COMPETITION_STATE_OPEN:
        return word
    if (phase := running_phase(competition)) is not None:
        left = duration_text(seconds_of(phase.ends_at) - now)
        return f"{word}: {phase.name}, {left} left"
    if (phase := next_phase(competition, now)) is not None:
        return f"{word}: {phase.name} starts in {duration_text(seconds_of(phase.starts_at) - now)}"
    return f"{word}: all phases are over"


def _moment(message: Any, field: str, now: float) -> str:
    if not message.HasField(field):
        return "-"
    return short_moment(seconds_of(getattr(message, field)), now)


def phase_columns(competition: Competition) -> list[Column[Phase]]:
    """Return the columns of a competition's phases."""
    return [
        Column(key="name", title="Phase", cell=lambda p, _: p.name, is_name=True),
        Column(key="state", title="State", cell=lambda p, now: phase_state(competition, p, now)),
        Column(key="starts_at", title="Starts", cell=lambda p, now: _moment(p, "starts_at", now)),
        Column(key="ends_at", title="Ends", cell=lambda p, now: _moment(p, "ends_at", now)),
        Column(key="dataset", title="Dataset", cell=lambda p, _: p.dataset, shrinks_to=10),
        Column(key="limit", title="Limit", cell=lambda p, _: phase_limit_text(p)),
        Column(
            key="public_score",
            title="Scores",
            cell=lambda p, _: public_score_word(p),
            is_optional=True,
        ),
        Column(
            key="direction",
            title="Best",
            cell=lambda p, _: phase_direction_word(p) or "-",
            tells=lambda p: bool(p.direction),
            is_optional=True,
        ),
        Column(
            key="advance",
            title="Go on",
            cell=lambda p, _: f"{p.advance:,}" if p.advance else "all",
            is_optional=True,
        ),
        Column(key="picks", title="Picks", cell=lambda p, _: str(picks_of(p)), is_optional=True),
    ]


def phase_record(competition: Competition, phase: Phase) -> dict[str, Any]:
    """Return all fields of a phase in raw values; `limit` None: as the dataset's board, `advance` None: all."""
    limit = None
    if phase.HasField("limit"):
        window = seconds_of(phase.limit.window) if phase.limit.HasField("window") else _DAY_S
        limit = {"count": phase.limit.count, "window_s": whole(window)}
    return {
        "name": phase.name,
        "is_running": competition.phase == phase.name != "",
        "is_final": phase.is_final,
        "is_held": not phase.is_not_held,
        "starts_at": moment_of(phase, "starts_at"),
        "ends_at": moment_of(phase, "ends_at"),
        "dataset": phase.dataset,
        "limit": limit,
        "public_score": public_score_word(phase),
        "direction": phase_direction_word(phase) or None,
        "advance": phase.advance or None,
        "picks": picks_of(phase),
    }


# Competitions


COMPETITION_COLUMNS: tuple[Column[Competition], ...] = (
    Column(key="name", title="Name", cell=lambda c, _: full_name(c), is_name=True),
    Column(
        key="title",
        title="Title",
        cell=lambda c, _: c.settings.title or "-",
        tells=lambda c: bool(c.settings.title),
        shrinks_to=12,
        is_optional=True,
    ),
    Column(
        key="state",
        title="State",
        cell=now_text,
        colour=lambda c: _STATE_COLOURS.get(c.state, ""),
        shrinks_to=12,
        stays=True,
    ),
    Column(key="team_count", title="Teams", cell=lambda c, _: f"{c.team_count:,}"),
    Column(
        key="submission_count", title="Submissions", cell=lambda c, _: f"{c.submission_count:,}"
    ),
    Column(
        key="visibility",
        title="Visibility",
        cell=lambda c, _: visibility_word(c.settings.visibility),
        is_wide=True,
    ),
    Column(
        key="created_at",
        title="Created",
        cell=lambda c, now: (
            ago(now - seconds_of(c.created_at)) if c.HasField("created_at") else "-"
        ),
        is_wide=True,
    ),
)


def competition_record(competition: Competition) -> dict[str, Any]:
    """Return all fields of a competition in raw values; None: none, or no limit."""
    one = competition.settings
    state = enum_name(pb.CompetitionState, competition.state, "COMPETITION_STATE_")
    return {
        "name": full_name(competition),
        "owner": competition.owner,
        "title": one.title or None,
        "description": one.description,
        "state": state,
        "phase": competition.phase or None,
        "phases": [phase_record(competition, phase) for phase in one.phases],
        "by_invitation": one.by_invitation,
        "team_size": team_size(one),
        "mergers_until": moment_of(one, "mergers_until"),
        "gpus": whole(one.gpu_thousandths / 1000) if one.gpu_thousandths else None,
        "visibility": visibility_word(one.visibility) if one.visibility else None,
        "team_count": competition.team_count,
        "submission_count": competition.submission_count,
        "created_at": moment_of(competition, "created_at"),
    }


def standings_word(phase: Phase | None, *, is_final: bool) -> str:
    """Return `final standings`, `preliminary`, or "not held" of a phase that did not take place."""
    if phase is not None and phase.is_not_held:
        return "not held"
    return "final standings" if is_final else "preliminary"


def headline(competition: Competition, phase: str, *, is_final: bool) -> str:
    """Return standings in one line: `kim/cup, final: 12 teams, final standings`."""
    shown = next((one for one in competition.settings.phases if one.name == phase), None)
    words = [counted(competition.team_count, "team"), standings_word(shown, is_final=is_final)]
    name = f"{full_name(competition)}, {phase}" if phase else full_name(competition)
    return f"{name}: {', '.join(words)}"


def next_commands(answer: GetCompetitionResponse, now: float) -> list[tuple[str, str]]:
    """Return what the reader may type next, with what it does."""
    found = answer.competition
    name = full_name(found)
    state = found.state
    if answer.may_change:
        return _for_organiser(answer, name, now)
    standings = (_line("standings", name), "the ranks of all teams")
    if state != pb.COMPETITION_STATE_OPEN:
        return [standings] if has_begun(found, now) else []
    if not answer.HasField("team"):
        joins = [
            (_line("join", name, "--team", team), "accept the invitation")
            for team in answer.invitations
        ]
        if not joins or not found.settings.by_invitation:
            joins.append((_line("join", name), "take part, with a team of your own"))
        return joins
    acts = []
    phase = running_phase(found)
    if phase is not None and not answer.why_not:
        run = shell_line(["nsml", "run", "-d", phase.dataset])
        acts.append((f"{run} ...", "train a model; what its program needs: nsml submit -h"))
        acts.append(("nsml submit -t SESSION", "try its newest checkpoint: a dry run, no limit"))
        acts.append(("nsml submit SESSION [CHECKPOINT]", "submit it"))
    elif phase is None and (ahead := next_phase(found, now)) is not None:
        run = shell_line(["nsml", "run", "-d", ahead.dataset])
        starts = _moment(ahead, "starts_at", now)
        acts.append((f"{run} ...", f"train a model: it can be submitted from {starts} on"))
    if phase is not None and answer.team.submissions:
        acts.append(
            (f"{_line('pick', name)} SUBMISSION...", f"choose {picks_of(phase)} that count")
        )
    acts.extend(
        (_line("merge", name, team), "agree to merge") for team in answer.team.merge_requests
    )
    return [*acts, standings] if has_begun(found, now) else acts


def _for_organiser(answer: GetCompetitionResponse, name: str, now: float) -> list[tuple[str, str]]:
    found = answer.competition
    if found.state == pb.COMPETITION_STATE_DRAFT:
        opening = (_line("open", name), "let participants join")
        return [
            opening,
            *_inviting(found),
            (f"{_line('update', name)} FILE.toml", "other settings"),
        ]
    if found.state == pb.COMPETITION_STATE_OPEN:
        acts = [(f"{_line('announce', name)} TEXT", "inform all participants")]
        baseline = f"{_line('baseline', name)} SUBMISSION --label TEXT"
        acts.append((baseline, "show a submission of yours among the teams"))
        acts.extend(_inviting(found))
        if has_begun(found, now):
            acts.insert(0, (_line("standings", name, "--private"), "by private scores"))
            acts.append((_line("close", name), "end it"))
        return acts
    exporting = (_line("export", name, "-o", f"{found.name}.json"), "all of it, signed")
    if not has_begun(found, now):
        return [exporting]
    return [
        (_line("standings", name), "the result"),
        (_line("rerun", name), "check the winners"),
        exporting,
    ]


def _inviting(found: Competition) -> list[tuple[str, str]]:
    """Return how users are invited, where nobody else may join."""
    line = f"{_line('invite', full_name(found))} USER --into-competition"
    return [(line, "let a user join")] if found.settings.by_invitation else []


def _line(verb: str, *words: str) -> str:
    return shell_line(["nsml", "competition", verb, *words])


def competition_lines(
    answer: GetCompetitionResponse, now: float, own: Standing | None = None
) -> list[str]:
    """Describe a competition to its reader: phases, their team and rank, and what to type next.

    `own`: the reader's row of the standings.
    """
    found = answer.competition
    settings = found.settings
    phase = running_phase(found) or _phase_ahead(found, now)
    later = f" (of {phase.name})" if phase is not None and found.phase != phase.name else ""
    rows = [
        ("state", _until_text(found, now)),
        ("organiser", found.owner),
        *(_phase_row(found, one, now) for one in settings.phases),
        ("limit", f"{phase_limit_text(phase)}, of a team{later}" if phase is not None else ""),
        ("ranked by", _ranking_text(found, phase)),
        ("scores", scores_text(phase) if phase is not None else ""),
        ("teams", _teams_text(found)),
        ("joining", "by invitation" if settings.by_invitation else ""),
        ("invited", _names_text(answer.invited)),
        (
            "GPUs",
            f"{thousandths(settings.gpu_thousandths)} for a team at a time"
            if settings.gpu_thousandths
            else "",
        ),
        ("visibility", visibility_word(settings.visibility) if settings.visibility else ""),
        ("page", _page_text(answer)),
        *_team_rows(answer, now, own),
        *(("invited by", one) for one in answer.invitations),
    ]
    title = f"{full_name(found)}: {settings.title}" if settings.title else full_name(found)
    lines = [title, *(f"  {name:{_TITLE_CELLS}}{text}" for name, text in rows if text)]
    if settings.description:
        lines += ["", *(f"  {line}".rstrip() for line in settings.description.splitlines())]
    if answer.announcements:
        lines += ["", "Announcements"]
        for one in answer.announcements:
            first, *rest = one.text.splitlines() or [""]
            lines.append(f"  {_moment(one, 'at', now)}  {first}")
            lines += [f"    {line}" for line in rest]
    if acts := next_commands(answer, now):
        cells = max(len(act) for act, _ in acts)
        lines += ["", "Next"]
        lines += [f"  {act:{cells}}  {what}" for act, what in acts]
    return lines


def is_page_open(answer: GetCompetitionResponse) -> bool:
    """Return whether anybody sees its page, without signing in."""
    found = answer.competition
    is_public = found.settings.visibility == resources_pb2.VISIBILITY_PUBLIC
    return is_public and found.state != pb.COMPETITION_STATE_DRAFT


def _page_text(answer: GetCompetitionResponse) -> str:
    """Return the address of its page, else the command that prints one for the reader; "": there is none."""
    if not answer.page or is_page_open(answer):
        return answer.page
    return _line("page", full_name(answer.competition))


def _until_text(competition: Competition, now: float) -> str:
    text = now_text(competition, now)
    phase = running_phase(competition)
    if phase is None or competition.state != pb.COMPETITION_STATE_OPEN:
        return text
    return f"{text} (until {_moment(phase, 'ends_at', now)})"


def _phase_row(competition: Competition, phase: Phase, now: float) -> tuple[str, str]:
    times = f"{_moment(phase, 'starts_at', now)} to {_moment(phase, 'ends_at', now)}"
    words = [times, f"dataset {phase.dataset}", phase_state(competition, phase, now)]
    if phase.advance:
        words.append(f"{phase.advance:,} go on" if phase.advance > 1 else "1 goes on")
    return "phase", f"{phase.name}: {', '.join(words)}"


_NAMED: Final = 20
"""Invited users named in `show`; JSON has all."""


def _names_text(names: Sequence[str]) -> str:
    text = ", ".join(names[:_NAMED])
    return f"{text} and {len(names) - _NAMED:,} more" if len(names) > _NAMED else text


def _ranking_text(competition: Competition, phase: Phase | None) -> str:
    """Return how teams are ranked, in the phase that is shown; its name with it where others differ."""
    shown = order_text(phase) if phase is not None else ""
    differs = any(order_text(one) != shown for one in competition.settings.phases)
    return f"{shown} (of {phase.name})" if shown and differs and phase is not None else shown


def scores_text(phase: Phase) -> str:
    """Return what is shown of scores during a phase."""
    texts = {
        "exact": "every score is shown",
        "own-best": "the best one of each team is shown",
        "ladder": "a score is shown once it is better by a step",
    }
    word = public_score_word(phase)
    return texts.get(word, word)


def _teams_text(competition: Competition) -> str:
    size = team_size(competition.settings)
    submissions = counted(competition.submission_count, "submission")
    return f"{competition.team_count:,} of at most {counted(size, 'member')}, {submissions}"


def _team_rows(
    answer: GetCompetitionResponse, now: float, own: Standing | None
) -> list[tuple[str, str]]:
    is_open = answer.competition.state == pb.COMPETITION_STATE_OPEN
    if not answer.HasField("team"):
        return [("your team", "none" if is_open and not answer.may_change else "")]
    team = answer.team
    rank = ""
    if own is not None:
        rank = f"{own.rank:,} of {answer.competition.team_count:,}" if own.rank else "none yet"
        rank += f", score {score_text(own.score)}" if own.HasField("score") else ""
    next_at = next_text(seconds_of(team.next_at), now) if team.HasField("next_at") else ""
    return [
        ("your team", f"{team.name}: {', '.join(team.members)}"),
        ("invited", ", ".join(team.invited)),
        *(("merger", f"{one} asks to merge") for one in team.merge_requests),
        ("disqualified", team.disqualified),
        ("submitted", _submitted_text(team) if answer.competition.phase else ""),
        ("next", next_at),
        ("submitting", "" if next_at or not is_open else answer.why_not),
        ("rank", rank),
        ("picks", ", ".join(team.picks)),
    ]


def _submitted_text(team: Team) -> str:
    """Return `3 in this phase (failed ones do not count), 7 left now`."""
    text = f"{team.submissions:,} in this phase (failed ones do not count)"
    return (
        f"{text}, {team.submissions_left:,} left now" if team.HasField("submissions_left") else text
    )


def show_record(
    answer: GetCompetitionResponse, now: float, own: Standing | None = None
) -> dict[str, Any]:
    """Return a competition with what its reader sees of it in raw values."""
    return {
        **competition_record(answer.competition),
        "team": team_record(answer.team) if answer.HasField("team") else None,
        "rank": own.rank or None if own is not None else None,
        "score": whole(own.score) if own is not None and own.HasField("score") else None,
        "invitations": list(answer.invitations),
        "invited": list(answer.invited),
        "why_not": answer.why_not or None,
        "may_change": answer.may_change,
        "page": answer.page or None,
        "announcements": [
            {"text": one.text, "at": moment_of(one, "at")} for one in answer.announcements
        ],
        "statistics": [statistics_record(one) for one in answer.statistics],
        "next": [act for act, _ in next_commands(answer, now)],
    }


# Teams


TEAM_COLUMNS: tuple[Column[Team], ...] = (
    Column(key="name", title="Team", cell=lambda t, _: t.name, is_name=True),
    Column(key="members", title="Members", cell=lambda t, _: ", ".join(t.members), shrinks_to=12),
    Column(key="submissions", title="Submissions", cell=lambda t, _: f"{t.submissions:,}"),
    Column(
        key="invited",
        title="Invited",
        cell=lambda t, _: ", ".join(t.invited) or "-",
        is_wide=True,
        is_worth=lambda t: bool(t.invited),
        shrinks_to=12,
        is_optional=True,
    ),
    Column(
        key="merge_requests",
        title="Asks to merge",
        cell=lambda t, _: ", ".join(t.merge_requests) or "-",
        is_wide=True,
        is_worth=lambda t: bool(t.merge_requests),
        shrinks_to=12,
        is_optional=True,
    ),
    Column(
        key="picks",
        title="Picks",
        cell=lambda t, _: ", ".join(t.picks) or "-",
        is_wide=True,
        tells=lambda t: bool(t.picks),
        shrinks_to=12,
        is_optional=True,
    ),
    Column(
        key="disqualified",
        title="Disqualified",
        cell=lambda t, _: t.disqualified or "-",
        colour=lambda t: "red" if t.disqualified else "",
        is_wide=True,
        is_worth=lambda t: bool(t.disqualified),
        shrinks_to=12,
    ),
)


def team_record(team: Team) -> dict[str, Any]:
    """Return all fields of a team in raw values; None: none, or not for the caller."""
    return {
        "name": team.name,
        "members": list(team.members),
        "invited": list(team.invited),
        "merge_requests": list(team.merge_requests),
        "disqualified": team.disqualified or None,
        "submissions": team.submissions,
        "submissions_left": team.submissions_left if team.HasField("submissions_left") else None,
        "next_at": moment_of(team, "next_at"),
        "picks": list(team.picks),
    }


def team_line(team: Team) -> str:
    """Return `team lions: kim, lee`."""
    return f"team {team.name}: {', '.join(team.members)}"


# Standings


def mark_text(row: Standing) -> str:
    """Return why a row has no rank: `baseline`, `disqualified`; "" for others."""
    if row.is_baseline:
        return "baseline"
    return "disqualified" if row.disqualified else ""


def team_text(row: Standing) -> str:
    """Return the team, marked if it is the reader's, a baseline, or disqualified: `lions (you)`."""
    marks = [*(["you"] if row.is_own else []), *filter(None, [mark_text(row)])]
    return f"{row.team} ({', '.join(marks)})" if marks else row.team


def _is_min(row: Standing) -> bool:
    """Whether a lower score is better, as the first and the last of the best scores so far show."""
    return len(row.trend) > 1 and row.trend[-1] < row.trend[0]


_SCORE: Column[Standing] = score_column()
_STANDING_COLUMNS: tuple[Column[Standing], ...] = (
    rank_column(),
    change_column(),
    Column(
        key="team",
        title="Team",
        cell=lambda s, _: team_text(s),
        colour=lambda s: "cyan" if s.is_own else "",
        is_name=True,
    ),
    Column(
        key="members",
        title="Members",
        cell=lambda s, _: ", ".join(s.members) or "-",
        shrinks_to=10,
        is_optional=True,
    ),
    _SCORE._replace(stays=True),
    private_score_column(),
    Column(
        key="public_rank",
        title="Public rank",
        cell=lambda s, _: str(s.public_rank) if s.public_rank else "-",
        is_wide=True,
        is_worth=lambda s: s.public_rank > 0,
        is_optional=True,
    ),
    Column(
        key="goes_on",
        title="Goes on",
        cell=lambda s, _: "yes" if s.goes_on else "-",
        is_wide=True,
        is_worth=lambda s: s.goes_on,
        is_optional=True,
    ),
    Column(key="submissions", title="Submissions", cell=lambda s, _: f"{s.submissions:,}"),
    submitted_column(),
    gpu_time_column(),
    Column(
        key="rerun",
        title="Re-run",
        cell=lambda s, _: s.rerun or "-",
        colour=lambda s: {"same": "green", "differs": "red", "failed": "red"}.get(s.rerun, ""),
        is_wide=True,
        is_worth=lambda s: bool(s.rerun),
    ),
    Column(
        key="disqualified",
        title="Disqualified",
        cell=lambda s, _: s.disqualified or "-",
        is_wide=True,
        tells=lambda s: bool(s.disqualified),
        shrinks_to=12,
        is_optional=True,
    ),
    trend_column(_is_min),
)


def standing_columns(rows: Collection[Standing] = ()) -> list[Column[Standing]]:
    """Return the columns of standings with these rows."""
    return with_score_texts(_STANDING_COLUMNS, rows)


def standing_record(row: Standing) -> dict[str, Any]:
    """Return all fields of a row of the standings in raw values; None: none, unknown, or not for the caller."""
    return {
        "rank": row.rank or None,
        "rank_before": row.rank_before or None,
        "team": row.team,
        "members": list(row.members),
        "score": whole(row.score) if row.HasField("score") else None,
        "private_score": whole(row.private_score) if row.HasField("private_score") else None,
        "public_rank": row.public_rank or None,
        "submissions": row.submissions,
        "submitted_at": moment_of(row, "submitted_at"),
        "gpu_seconds": row.gpu_seconds,
        "is_own": row.is_own,
        "is_baseline": row.is_baseline,
        "goes_on": row.goes_on,
        "disqualified": row.disqualified or None,
        "rerun": row.rerun or None,
        "trend": [whole(one) for one in row.trend],
    }


def first_rows(rows: Sequence[Standing], first: int | None) -> list[Standing]:
    """Return the first rows, and the reader's own one."""
    if first is None:
        return list(rows)
    return [*rows[:first], *(one for one in rows[first:] if one.is_own)]


def own_row(rows: Sequence[Standing]) -> Standing | None:
    """Return the reader's own row."""
    return next((one for one in rows if one.is_own), None)


# Statistics (Tables 3 and 4 of Sung et al. 2018)


def _mean(value: float) -> str:
    return f"{value:.1f}"


MODEL_COLUMNS: tuple[Column[PhaseStatistics], ...] = (
    Column(key="phase", title="Phase", cell=lambda s, _: s.phase, is_name=True),
    Column(key="users", title="Users", cell=lambda s, _: f"{s.users:,}"),
    Column(key="models", title="Models", cell=lambda s, _: f"{s.models:,}"),
    Column(key="mean_models", title="Mean of a user", cell=lambda s, _: _mean(s.mean_models)),
    Column(key="most_models", title="Most of a user", cell=lambda s, _: f"{s.most_models:,}"),
    Column(key="under_five", title="Users under 5", cell=lambda s, _: f"{s.under_five:,}"),
)
SUBMISSION_COLUMNS: tuple[Column[PhaseStatistics], ...] = (
    Column(key="phase", title="Phase", cell=lambda s, _: s.phase, is_name=True),
    Column(key="submissions", title="Submissions", cell=lambda s, _: f"{s.submissions:,}"),
    Column(
        key="mean_submissions", title="Mean of a user", cell=lambda s, _: _mean(s.mean_submissions)
    ),
    Column(
        key="most_submissions", title="Most of a user", cell=lambda s, _: f"{s.most_submissions:,}"
    ),
    Column(key="gpu_seconds", title="GPU time", cell=lambda s, _: gpu_time_text(s.gpu_seconds)),
)
STATISTICS_COLUMNS: tuple[Column[PhaseStatistics], ...] = (
    *MODEL_COLUMNS,
    *SUBMISSION_COLUMNS[1:],
)


def statistics_record(one: PhaseStatistics) -> dict[str, Any]:
    """Return the statistics of a phase in raw values."""
    return {
        "phase": one.phase,
        "users": one.users,
        "models": one.models,
        "mean_models": whole(one.mean_models),
        "most_models": one.most_models,
        "under_five": one.under_five,
        "submissions": one.submissions,
        "mean_submissions": whole(one.mean_submissions),
        "most_submissions": one.most_submissions,
        "gpu_seconds": whole(one.gpu_seconds),
    }
