"""A competition as one HTML page for participants: without scripts, forms or external resources."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from nsml.common.shell import shell_line
from nsml.common.units import counted, duration_text, moment, thousandths
from nsml.v1 import competitions_pb2 as pb
from nsml.view.competitions import (
    begun_phases,
    full_name,
    next_phase,
    order_text,
    phase_limit_text,
    phase_state,
    picks_of,
    running_phase,
    scores_text,
    state_word,
    team_size,
)
from nsml.view.ranked_rows import SCORES, change_text, scores_of
from nsml.view.safe_markdown import clean, rendered
from nsml.view.scores import digits_of, score_text
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsml.v1.competitions_pb2 import Announcement, Competition, Phase, Standing

ROWS: Final = 100
ANNOUNCEMENTS: Final = 50
LISTED: Final = 200
_SHOWN: Final = 3
_MINUTE_S: Final = 60.0

STYLE: Final = """
:root { color-scheme: light dark; --page: #ffffff; --soft: #f6f8fa; --text: #1f2328; --faint: #59636e; --line: #d0d7de;
  --link: #0969da; --good: #1a7f37; --bad: #cf222e; --own: #ddf4ff; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0d1117; --soft: #151b23; --text: #f0f6fc; --faint: #9198a1; --line: #3d444d;
    --link: #4493f8; --good: #3fb950; --bad: #f85149; --own: #121d2f; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 60rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.8rem; line-height: 1.25; margin: 0 0 0.5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.75rem; padding-bottom: 0.25rem; border-bottom: 1px solid var(--line); }
h3, h4, h5, h6 { font-size: 1rem; margin: 1.25rem 0 0.5rem; }
p { margin: 0.5rem 0; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; margin: 0.75rem 0; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: 0.75rem; overflow-x: auto;
  overflow-wrap: normal; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace; font-size: 0.9em; }
blockquote { margin: 0.5rem 0; padding-left: 0.75rem; border-left: 3px solid var(--line); color: var(--faint); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 0.4rem 0.6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--faint); font-size: 0.875rem; overflow-wrap: normal; }
time { white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.25rem 1rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; }
footer { margin-top: 2.5rem; color: var(--faint); font-size: 0.875rem; }
.scroll { overflow-x: auto; }
.faint { color: var(--faint); }
.state { border: 1px solid currentColor; border-radius: 1rem; padding: 0.05rem 0.6rem; font-size: 0.875rem; }
.open, .up { color: var(--good); }
.down, .disqualified { color: var(--bad); }
.number { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
.rank { width: 3rem; }
.own { background: var(--own); }
.cut td { text-align: center; color: var(--faint); font-size: 0.875rem; padding: 0.15rem; border-bottom: 2px solid var(--good); }
.said { white-space: pre-line; }
@media (max-width: 40rem) {
  .wide { display: none; }
  th, td { padding: 0.35rem 0.4rem; }
  .cards thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .cards tr { display: block; padding: 0.5rem 0; border-bottom: 1px solid var(--line); }
  .cards td { display: grid; grid-template-columns: 7rem 1fr; gap: 0.5rem; border: 0; padding: 0.1rem 0; text-align: left; }
  .cards td::before { content: attr(data-label); color: var(--faint); }
}
"""
POLICY: Final = (
    "default-src 'none'; "
    f"style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
)
"""The Content-Security-Policy of the pages: nothing but their own style.

In their sandbox they are of no origin: boards of programs, which choose their HTML, are served beside them and cannot read them.
"""


@dataclass(frozen=True, kw_only=True)
class Standings:
    """Standings of a phase.

    Attributes:
        is_final: its scores, also the private ones, are the result.
    """

    phase: str
    rows: Sequence[Standing]
    is_final: bool


def competition_page(
    competition: Competition,
    announcements: Sequence[Announcement],
    standings: Standings | None,
    now: float,
) -> str:
    """Return the page of a competition; private scores are in it only if the standings are final.

    Args:
        competition: as the platform answers.
        announcements: the oldest first.
        standings: of the phase to show; None: no phase has begun.
        now: Unix seconds.
    """
    title = _title(competition)
    body = [
        *_head(competition, now),
        *_announcements(announcements),
        *_description(competition),
        *_taking_part(competition, now),
        *_standings(competition, standings, now),
        *_phases(competition, now),
        *_rules(competition),
    ]
    return _document(title, body, now if _changes(competition) else None)


def index_page(competitions: Sequence[Competition], now: float, *, further: int = 0) -> str:
    """Return the page that lists competitions; `further`: so many more there are."""
    body = ["<header><h1>Competitions</h1></header>", "<main>"]
    if competitions:
        cells = ("Competition", "Organiser", "State")
        rows = [
            f"<tr>{_td(cells[0], _link_to(one))}{_td(cells[1], f'<bdi>{_text(one.owner)}</bdi>')}"
            f"{_td(cells[2], _state(one, now))}</tr>"
            for one in competitions
        ]
        body += [*_table(cells, rows, "cards"), *_more(further, "competition")]
    else:
        body.append("<p>There is no public competition.</p>")
    return _document("Competitions", body, now if any(map(_changes, competitions)) else None)


def _changes(competition: Competition) -> bool:
    """Whether what its page says of time goes on."""
    return competition.state != pb.COMPETITION_STATE_CLOSED


def _document(title: str, body: Sequence[str], as_of: float | None) -> str:
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{_text(title)}</title>",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        *body,
        "</main>",
    ]
    if as_of is not None:
        lines.append(
            f"<footer>As of {_time(as_of - as_of % _MINUTE_S)}. Reload for what is new.</footer>"
        )
    return "\n".join([*lines, "</body>", "</html>", ""])


# Parts


def _head(competition: Competition, now: float) -> Iterator[str]:
    yield "<header>"
    yield f'<p class="faint"><a href="../">Competitions</a> / {_text(full_name(competition))}</p>'
    yield f'<h1 dir="auto">{_text(_title(competition))}</h1>'
    numbers = [
        counted(competition.team_count, "team"),
        counted(competition.submission_count, "submission"),
    ]
    word = state_word(competition.state)
    yield (
        f'<p><span class="state {word}">{word}</span> organised by <bdi>{_text(competition.owner)}</bdi>,'
        f" {', '.join(numbers)}</p>"
    )
    if text := _now(competition, now):
        yield f"<p><strong>{text}</strong></p>"
    parts = [
        ("taking-part", "Take part"),
        ("standings", "Standings"),
        ("phases", "Phases"),
        ("rules", "Rules"),
    ]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name in parts)
    yield f'<nav aria-label="On this page">{links}</nav>'
    yield "</header>"
    yield "<main>"


def _now(competition: Competition, now: float) -> str:
    if competition.state != pb.COMPETITION_STATE_OPEN:
        return ""
    if (phase := running_phase(competition)) is not None:
        ends = seconds_of(phase.ends_at)
        return f"{_text(phase.name)} ends in {duration_text(ends - now)}, at {_time(ends)}"
    if (phase := next_phase(competition, now)) is not None:
        starts = seconds_of(phase.starts_at)
        return f"{_text(phase.name)} starts in {duration_text(starts - now)}, at {_time(starts)}"
    return "All phases are over." if competition.settings.phases else ""


def _announcements(announcements: Sequence[Announcement]) -> Iterator[str]:
    newest = list(announcements)[::-1][:ANNOUNCEMENTS]
    if not newest:
        return
    yield '<section aria-labelledby="announcements"><h2 id="announcements">Announcements</h2>'
    yield from map(_announcement, newest[:_SHOWN])
    if earlier := newest[_SHOWN:]:
        yield f"<details><summary>{counted(len(earlier), 'earlier announcement')}</summary>"
        yield from map(_announcement, earlier)
        yield "</details>"
    yield "</section>"


def _announcement(one: Announcement) -> str:
    lines = "\n".join(map(_text, one.text.strip().splitlines()))
    return (
        f'<p class="faint">{_time(seconds_of(one.at))}</p>\n<p class="said" dir="auto">{lines}</p>'
    )


def _description(competition: Competition) -> Iterator[str]:
    if not competition.settings.description.strip():
        return
    yield '<section aria-labelledby="description"><h2 id="description">Description</h2>'
    yield f'<div class="scroll" dir="auto">{rendered(competition.settings.description)}</div></section>'


def _taking_part(competition: Competition, now: float) -> Iterator[str]:
    yield '<section aria-labelledby="taking-part"><h2 id="taking-part">Take part</h2>'
    name = full_name(competition)
    standings = shell_line(["nsml", "competition", "standings", name])
    commands = [standings]
    if competition.state == pb.COMPETITION_STATE_CLOSED:
        yield "<p>It is over.</p>"
    elif competition.state == pb.COMPETITION_STATE_DRAFT:
        yield "<p>It is not open yet: this is how others will see it.</p>"
    if competition.state != pb.COMPETITION_STATE_CLOSED:
        if competition.settings.by_invitation:
            yield "<p>By invitation: users whom the organiser invited take part.</p>"
        phase = running_phase(competition) or next_phase(competition, now)
        commands = [shell_line(["nsml", "competition", "join", name])]
        if phase is not None:
            commands += [
                f"{shell_line(['nsml', 'run', '-d', phase.dataset])} main.py",
                "nsml submit SESSION",
            ]
        commands.append(f"{standings} -w")
        if phase is not None and phase is not running_phase(competition):
            yield f"<p>Submissions count from {_time(seconds_of(phase.starts_at))} on.</p>"
    yield f"<pre><code>{chr(10).join(map(_text, commands))}</code></pre></section>"


def _standings(competition: Competition, standings: Standings | None, now: float) -> Iterator[str]:
    yield '<section aria-labelledby="standings"><h2 id="standings">Standings</h2>'
    if standings is None:
        is_over = competition.state == pb.COMPETITION_STATE_CLOSED
        yield f"<p>{'No phase was held.' if is_over else 'No phase has begun.'}</p></section>"
        return
    begun = begun_phases(competition, now)
    if len(begun) > 1:
        links = (
            f"<strong>{_text(one.name)}</strong>"
            if one.name == standings.phase
            else f'<a href="?phase={quote(one.name)}#standings">{_text(one.name)}</a>'
            for one in begun
        )
        yield f'<nav aria-label="Phases">{"".join(links)}</nav>'
    phase = next((one for one in competition.settings.phases if one.name == standings.phase), None)
    how = "final, by private scores" if standings.is_final else "preliminary, by public scores"
    if standings.is_final and not any(row.HasField("private_score") for row in standings.rows):
        how = "final"
    if phase is not None and phase.is_not_held:
        how = "not held"
    yield f'<p class="faint"><bdi>{_text(standings.phase)}</bdi>: {how}</p>'
    if standings.rows:
        yield from _standings_table(standings, phase.advance if phase is not None else 0)
        yield from _more(len(standings.rows) - ROWS, "team")
    else:
        yield "<p>No team has submitted yet.</p>"
    yield "</section>"


def _standings_table(standings: Standings, advance: int) -> list[str]:
    shown = standings.rows[:ROWS]
    is_private = standings.is_final and any(row.HasField("private_score") for row in shown)
    has_members = any(list(row.members) not in ([], [row.team]) for row in shown)
    has_reruns = any(row.rerun for row in shown)
    heads = [
        ("Rank", "number rank"),
        ("Team", ""),
        *([("Members", "wide")] if has_members else []),
        ("Score", "number"),
        *([("Private score", "number"), ("Public rank", "number wide")] if is_private else []),
        ("Submissions", "number wide"),
        ("Submitted", "wide"),
        *([("Re-run", "wide")] if has_reruns else []),
    ]
    digits = {field: digits_of(scores_of(field, shown)) for field in SCORES}

    def score(row: Standing, field: str) -> str:
        return score_text(getattr(row, field), digits[field]) if row.HasField(field) else "-"

    rows = []
    is_cut = bool(advance) and any(row.goes_on for row in standings.rows)
    for row in shown:
        if is_cut and not row.is_baseline and not row.goes_on:
            text = f"the first {advance} go on" if advance > 1 else "the first one goes on"
            rows.append(f'<tr class="cut"><td colspan="{len(heads)}">{text}</td></tr>')
            is_cut = False
        cells = [
            str(row.rank) if row.rank else "-",
            _team(row, is_final=standings.is_final),
            *([_text(", ".join(row.members))] if has_members else []),
            score(row, "score"),
            *(
                [score(row, "private_score"), str(row.public_rank) if row.public_rank else "-"]
                if is_private
                else []
            ),
            f"{row.submissions:,}",
            _time(seconds_of(row.submitted_at)) if row.HasField("submitted_at") else "-",
            *([_text(row.rerun) or "-"] if has_reruns else []),
        ]
        tds = "".join(
            f'<td class="{kind}">{cell}</td>' if kind else f"<td>{cell}</td>"
            for (_, kind), cell in zip(heads, cells, strict=True)
        )
        rows.append(f'<tr class="own">{tds}</tr>' if row.is_own else f"<tr>{tds}</tr>")
    titles = "".join(
        f'<th scope="col" class="{kind}">{title}</th>' if kind else f'<th scope="col">{title}</th>'
        for title, kind in heads
    )
    return [
        '<div class="scroll"><table>',
        f"<thead><tr>{titles}</tr></thead>",
        "<tbody>",
        *rows,
        "</tbody></table></div>",
    ]


def _team(row: Standing, *, is_final: bool) -> str:
    words = [f"<bdi>{_text(row.team)}</bdi>"]
    if row.is_own:
        words.append('<span class="faint">your team</span>')
    if row.is_baseline:
        words.append('<span class="faint">baseline</span>')
    if row.disqualified:
        words.append(f'<span class="disqualified">disqualified: {_text(row.disqualified)}</span>')
    change = "" if is_final else change_text(row)
    if change:
        kind = {"+": "up", "-": "down"}.get(change[0], "faint")
        words.append(f'<span class="{kind}">{change}</span>')
    return " ".join(words)


def _phases(competition: Competition, now: float) -> Iterator[str]:
    yield '<section aria-labelledby="phases"><h2 id="phases">Phases</h2>'
    if competition.settings.phases:
        titles = ("Phase", "Starts", "Ends", "State", "Dataset")
        rows = []
        for one in competition.settings.phases:
            cells = (
                f"<bdi>{_text(one.name)}</bdi>",
                _time(seconds_of(one.starts_at)),
                _time(seconds_of(one.ends_at)),
                phase_state(competition, one, now),
                f"<code>{_text(one.dataset)}</code>",
            )
            rows.append(f"<tr>{''.join(map(_td, titles, cells))}</tr>")
        yield from _table(titles, rows, "cards")
        yield (
            '<p class="faint">A submission is in a phase by the moment when it was made: the start is in it, the end is'
            " not.</p>"
        )
    else:
        yield "<p>There are no phases yet.</p>"
    yield "</section>"


def _rules(competition: Competition) -> Iterator[str]:
    settings = competition.settings
    yield '<section aria-labelledby="rules"><h2 id="rules">Rules</h2>'
    if settings.phases:
        titles = ("Phase", "Limit of a team", "Ranked by", "Public scores", "Go on", "Picks")
        rows = []
        last = settings.phases[-1].name
        for one in settings.phases:
            all_go_on = "-" if one.name == last else "all teams"
            cells = (
                f"<bdi>{_text(one.name)}</bdi>",
                _limit(one),
                order_text(one) or "score",
                scores_text(one),
                counted(one.advance, "team") if one.advance and one.name != last else all_go_on,
                counted(picks_of(one), "submission"),
            )
            rows.append(f"<tr>{''.join(map(_td, titles, cells))}</tr>")
        yield from _table(titles, rows, "cards")
    mergers = (
        f"until {_time(seconds_of(settings.mergers_until))}"
        if settings.HasField("mergers_until")
        else "until the last phase ends"
    )
    yield "<p></p><dl>"
    yield f"<dt>Teams</dt><dd>at most {counted(team_size(settings), 'member')}; a user is in one team</dd>"
    yield f"<dt>Mergers</dt><dd>{mergers}</dd>"
    if settings.gpu_thousandths:
        yield f"<dt>GPUs</dt><dd>{thousandths(settings.gpu_thousandths)} for a team at a time</dd>"
    yield (
        "<dt>Result</dt><dd>once all submissions of a phase are evaluated, by the private scores of what each team picked,"
        " where its dataset has private rows</dd>"
    )
    yield "</dl></section>"


def _limit(phase: Phase) -> str:
    text = phase_limit_text(phase)
    return "as the dataset's board" if text == "as the board" else text


# Pieces


def _title(competition: Competition) -> str:
    return clean(competition.settings.title).strip() or full_name(competition)


def _link_to(competition: Competition) -> str:
    place = f"{quote(competition.owner, safe='')}/{quote(competition.name, safe='')}"
    return f'<a href="{place}"><bdi>{_text(_title(competition))}</bdi></a>'


def _state(competition: Competition, now: float) -> str:
    word = state_word(competition.state)
    text = _now(competition, now)
    return f'<span class="{word}">{word}</span>{": " if text else ""}{text}'


def _table(titles: Sequence[str], rows: Sequence[str], kind: str) -> list[str]:
    heads = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return [
        f'<table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>',
        *rows,
        "</tbody></table>",
    ]


def _td(label: str, content: str) -> str:
    return f'<td data-label="{label}"><span>{content}</span></td>'


def _more(count: int, one: str) -> Iterator[str]:
    if count > 0:
        yield f'<p class="faint">{counted(count, f"further {one}")}</p>'


def _time(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, tz=UTC)
    text = f"{at.day} {at:%b %Y, %H:%M}" + (f":{at:%S}" if at.second else "")
    return f'<time datetime="{moment(seconds)}">{text} UTC</time>'


def _text(value: Any) -> str:
    return escape(clean(str(value)))
