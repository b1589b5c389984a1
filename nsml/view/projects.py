"""Projects as rows, lines and records (`nsml project`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsml.common.time_zone import local, suffix
from nsml.common.units import ago, counted, memory_text, moment, size_text, thousandths
from nsml.v1 import sessions_pb2
from nsml.view.enums import enum_word
from nsml.view.queue import gpus_text, share_record, share_text
from nsml.view.tables import Column
from nsml.view.times import moment_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsml.v1.projects_pb2 import GetProjectResponse, Project, Quota

_HOUR_S = 3600
_TITLE_CELLS = 10
_MEASURES: dict[str, tuple[str, Callable[[int], str]]] = {
    "gpu_thousandths": ("GPU", thousandths),
    "cpu_thousandths": ("core", thousandths),
    "memory_bytes": ("of memory", memory_text),
    "sessions": ("session", str),
}
"""Noun and formatter for each measure of a quota."""


def gpu_hours(seconds: float) -> str:
    """Format GPU-seconds as GPU-hours: `12.5`, `0.0012`."""
    hours = seconds / _HOUR_S
    return f"{round(hours, 2 if hours >= 1 else 4):,}".removesuffix(".0")


def _bound(quota: Quota, measure: str) -> int | None:
    return getattr(quota, measure) if quota.HasField(measure) else None


def _of(project: Project, measure: str) -> str:
    """Format the usage and quota of a measure: `8 of 16`."""
    text = _MEASURES[measure][1]
    held, bound = text(getattr(project.usage, measure)), _bound(project.settings.quota, measure)
    return held if bound is None else f"{held} of {text(bound)}"


def _several(measure: str, number: str) -> str:
    """Return a number of a measure with its noun: `1 GPU`, `8 of 16 GPUs`, `40.0 GiB of memory`."""
    noun = _MEASURES[measure][0]
    is_one = number.rpartition(" ")[2] == "1" or noun.startswith("of ")
    return f"{number} {noun}{'' if is_one else 's'}"


def _hours(project: Project) -> str:
    """Format the usage and size of its budget: `12.5 of 500`."""
    if not project.settings.HasField("budget"):
        return "-"
    used = project.usage.gpu_seconds
    known = gpu_hours(used) if project.usage.HasField("gpu_seconds") else "?"
    return f"{known} of {gpu_hours(project.settings.budget.gpu_seconds)}"


def day(seconds: float) -> str:
    """Format Unix seconds as `2026-12-01` in the reader's zone, with the time of day unless that is midnight."""
    text = f"{local(seconds):%Y-%m-%d %H:%M}"
    return text[:10] if text.endswith(" 00:00") else text + suffix(seconds)


def _until(project: Project) -> str:
    return day(seconds_of(project.usage.until)) if project.usage.HasField("until") else "-"


def _share(project: Project) -> str:
    share = project.usage.share
    return gpus_text(share.value) if project.usage.HasField("share") else "-"


def _priority(project: Project) -> str:
    return enum_word(sessions_pb2.Priority, project.settings.most_priority, "PRIORITY_")


COLUMNS: tuple[Column[Project], ...] = (
    Column(key="name", title="Name", cell=lambda p, _: p.name, is_name=True),
    Column(key="owner", title="Owner", cell=lambda p, _: p.settings.owner or "-"),
    Column(key="members", title="Members", cell=lambda p, _: str(p.member_count)),
    Column(key="gpus", title="GPUs", cell=lambda p, _: _of(p, "gpu_thousandths")),
    Column(key="sessions", title="Sessions", cell=lambda p, _: _of(p, "sessions")),
    Column(key="gpu_hours", title="GPU-hours", cell=lambda p, _: _hours(p)),
    Column(key="until", title="Until", cell=lambda p, _: _until(p), is_optional=True),
    Column(key="cores", title="Cores", cell=lambda p, _: _of(p, "cpu_thousandths"), is_wide=True),
    Column(key="memory", title="Memory", cell=lambda p, _: _of(p, "memory_bytes"), is_wide=True),
    Column(key="weight", title="Weight", cell=lambda p, _: f"{p.settings.weight:g}", is_wide=True),
    Column(key="share", title="Share", cell=lambda p, _: _share(p), is_wide=True),
    Column(key="priority", title="Priority", cell=lambda p, _: _priority(p), is_wide=True),
    Column(
        key="created",
        title="Created",
        cell=lambda p, now: ago(now - seconds_of(p.created_at)),
        is_wide=True,
    ),
)


def _quota_record(quota: Quota) -> dict[str, int | None]:
    return {measure: _bound(quota, measure) for measure in _MEASURES}


def record(project: Project) -> dict[str, Any]:
    """Return all fields of a project in raw values; None: no bound, or unknown."""
    settings, usage = project.settings, project.usage
    budget = settings.budget if settings.HasField("budget") else None
    return {
        "name": project.name,
        "owner": settings.owner or None,
        "members": list(project.members) or None,
        "member_count": project.member_count,
        "created_at": moment_of(project, "created_at"),
        "quota": _quota_record(settings.quota),
        "member_quota": _quota_record(settings.member_quota),
        "budget": budget
        and {
            "gpu_seconds": budget.gpu_seconds,
            "period_days": budget.period_days,
            "anchor": moment(seconds_of(budget.anchor)),
        },
        "weight": settings.weight,
        "most_priority": _priority(project),
        "keep_checkpoints": settings.keep_checkpoints or None,
        "kept_bytes": settings.kept_bytes if settings.HasField("kept_bytes") else None,
        "keep_files": settings.keep_files or None,
        "usage": {
            **{measure: getattr(usage, measure) for measure in _MEASURES},
            "gpu_seconds": usage.gpu_seconds if usage.HasField("gpu_seconds") else None,
            "since": moment_of(usage, "since"),
            "until": moment_of(usage, "until"),
            "share": share_record(usage.share) if usage.HasField("share") else None,
        },
    }


def shown_record(answer: GetProjectResponse) -> dict[str, Any]:
    """Return the same with its holders."""
    return {
        **record(answer.project),
        "holders": [
            {"user": one.user, "gpu_thousandths": one.gpu_thousandths, "sessions": one.sessions}
            for one in answer.holders
        ],
        "sessions": list(answer.sessions),
        "hidden_sessions": answer.hidden_sessions,
    }


_FILES_WORDS = {"on": "kept", "off": "not kept"}


def lines(project: Project) -> list[str]:
    """Describe a project in a few lines."""
    settings = project.settings
    holds = [
        _several(measure, _of(project, measure))
        for measure in _MEASURES
        if getattr(project.usage, measure) or _bound(settings.quota, measure) is not None
    ]
    each = [
        _several(measure, text(bound))
        for measure, (_, text) in _MEASURES.items()
        if (bound := _bound(settings.member_quota, measure)) is not None
    ]
    rows = [
        ("owner", settings.owner),
        # A list has their number, but no names.
        ("members", ", ".join(project.members) or str(project.member_count or "none")),
        ("holds", ", ".join(holds) or "nothing"),
        ("each", each and f"at most {', '.join(each)}"),
        ("budget", _budget_line(project)),
        ("priority", f"{_priority(project)} at most"),
        ("weight", f"{settings.weight:g}"),
        ("keeps", settings.keep_checkpoints and f"checkpoints {settings.keep_checkpoints}"),
        ("stores", settings.kept_bytes and f"{size_text(settings.kept_bytes)} at most"),
        ("files", _FILES_WORDS.get(settings.keep_files, "")),
        ("share", share_text(project.usage.share) if project.usage.HasField("share") else ""),
    ]
    return [project.name, *(f"  {title:{_TITLE_CELLS}}{text}" for title, text in rows if text)]


def beyond_lines(project: Project) -> list[str]:
    """Warn of member quotas larger than the project's own: a line for each measure."""
    told = []
    for measure, (_, text) in _MEASURES.items():
        quotas = (project.settings.member_quota, project.settings.quota)
        each, together = (_bound(quota, measure) for quota in quotas)
        if each is not None and together is not None and each > together:
            bounds = [_several(measure, text(bound)) for bound in (each, together)]
            told.append(
                "a member may hold {}, and all together {}: that bounds each".format(*bounds)
            )
    return told


def _budget_line(project: Project) -> str:
    if not project.settings.HasField("budget"):
        return ""
    days = counted(project.settings.budget.period_days, "day")
    text = f"{_hours(project)} GPU-hours used in {days}"
    if not project.usage.HasField("until"):
        return f"{text}: it is being counted"
    return f"{text}, {day(seconds_of(project.usage.since))} to {_until(project)}"


def shown_lines(answer: GetProjectResponse) -> list[str]:
    """Describe the same with its holders (`nsml project show`)."""
    hidden = [f"{answer.hidden_sessions} of others"] if answer.hidden_sessions else []
    held = [
        f"{one.user} {_several('gpu_thousandths', thousandths(one.gpu_thousandths))}"
        for one in answer.holders
    ]
    rows = [
        ("held by", ", ".join(held)),
        ("sessions", ", ".join([*answer.sessions, *hidden]) or "none"),
    ]
    more = [f"  {title:{_TITLE_CELLS}}{text}" for title, text in rows if text]
    return [*lines(answer.project), *more]


def own_lines(answer: GetProjectResponse, user: str) -> list[str]:
    """Describe one member's usage and quotas; empty for a non-member without usage."""
    held = next((one for one in answer.holders if one.user == user), None)
    if held is None and user not in answer.project.members:
        return []
    told = []
    for measure in ("gpu_thousandths", "sessions"):
        text, bound = _MEASURES[measure][1], _bound(answer.project.settings.member_quota, measure)
        number = text(getattr(held, measure) if held is not None else 0)
        told.append(_several(measure, number if bound is None else f"{number} of {text(bound)}"))
    return [f"you hold {' and '.join(told)}"]
