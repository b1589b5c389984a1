"""The queue: queued sessions, their reasons, the holders of their resources, and until when. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsml.common.units import counted, duration_text, memory_text, thousandths
from nsml.v1 import resources_pb2, sessions_pb2
from nsml.view.enums import enum_word
from nsml.view.sessions import network_word
from nsml.view.tables import Column
from nsml.view.times import moment_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.v1.sessions_pb2 import (
        ExplainSessionResponse,
        FairShare,
        Holder,
        ListQueueResponse,
        QueuedSession,
        Waiting,
        WhatIfAnswer,
    )

_MEASURED = {"GPUs": "GPU", "cores": "core", "sessions": "session"}
_OF_SEVERAL_NODES = {
    "takes its owner's sessions only": "take their owners' sessions only",
    "keeps no data from its owner": "keep no data from their owners",
    "runs no containers": "run no containers",
    "has no micromamba": "have no micromamba",
    "has a disk too small for its datasets": "have disks too small for its datasets",
    "gives gangs no network": "give gangs no network",
    "has no such GPU": "have no such GPU",
    "is in another pod": "are in other pods",
    "does not allow the host network": "do not allow the host network",
    "gives sessions no network of their own": "give sessions no network of their own",
    "cannot run sessions without a network": "cannot run sessions without a network",
    "failed it before": "failed it before",
    "is kept for another": "are kept for others",
    "is held for a session ahead of it": "are held for a session ahead of it",
    "has room for it": "have room for it",
    "has room for some of its replicas": "have room for some of its replicas",
}
"""Singular and plural descriptions of nodes; all others are shortages, or a state."""
HIDDEN = "(another's)"
"""In place of the name of a hidden session."""


def waiting_lines(waiting: Waiting, now: float) -> list[str]:
    """Describe why a session waits, a line per fact: most important first."""
    lines = [f"  why: {waiting.reason}", f"  starts: {starts_text(waiting, now)}"]
    if waiting.place:
        lines.append(f"  place: {waiting.place} of {waiting.queued} in the queue")
    lines += holder_lines(waiting, now)
    if len(waiting.shortages) > 0:
        counts = ", ".join(nodes_text(one.what, one.nodes) for one in waiting.shortages)
        total = sum(one.nodes for one in waiting.shortages)
        lines.append(f"  nodes: {total} in all; {counts}")
    if waiting.HasField("share"):
        lines.append(f"  share: {waiting.share.account} {share_text(waiting.share)}")
    return lines


def holder_lines(waiting: Waiting, now: float) -> list[str]:
    """Describe the holders of the resources it needs, and until when."""
    return [
        f"  held: {_amount(one, waiting.short)} by {holder_text(one)}, {_until(one, now)}"
        for one in waiting.holders
    ]


def nodes_text(what: str, nodes: int) -> str:
    """Describe nodes with a common reason: `2 are short of GPUs`, `1 is held for a session ahead of it`."""
    if what in _OF_SEVERAL_NODES:
        return f"{nodes} {what if nodes == 1 else _OF_SEVERAL_NODES[what]}"
    lacking = what.split(" and ")
    if set(lacking) <= {"GPUs", "cores", "memory"}:
        *others, last = lacking
        what = "short of " + (f"{', '.join(others)} and {last}" if others else last)
    return f"{nodes} {'is' if nodes == 1 else 'are'} {what}"


def share_text(share: FairShare) -> str:
    """Describe a fair share: `2.5 (3 GPUs now, 2 recent; half-life 7d; weight 2)`."""
    text = f"{_gpu_count(share.held_gpus)} now"
    if share.HasField("half_life"):
        half = duration_text(seconds_of(share.half_life))
        text += f", {gpus_text(share.lately_gpus)} recent; half-life {half}"
    if share.weight != 1:
        text += f"; weight {share.weight:g}"
    text += "; older usage is still being counted" if share.is_partial else ""
    return f"{gpus_text(share.value)} ({text})"


def gpus_text(gpus: float) -> str:
    """Format a number of GPUs, with two decimals below ten, one below a hundred: `0.25`, `12.5`, `340`."""
    digits = 2 if gpus < 10 else 1 if gpus < 100 else 0
    if 0 < gpus < 0.005:
        return "<0.01"
    return f"{gpus:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{gpus:,.0f}"


def _gpu_count(gpus: float) -> str:
    text = gpus_text(gpus)
    return f"{text} GPU{'' if text == '1' else 's'}"


def share_record(share: FairShare) -> dict[str, Any]:
    """Return the same in raw values; without a half-life only current usage counts."""
    half_life = seconds_of(share.half_life) if share.HasField("half_life") else None
    return {
        "account": share.account,
        "held_gpus": share.held_gpus,
        "lately_gpus": share.lately_gpus,
        "weight": share.weight,
        "value": share.value,
        "half_life_s": half_life,
        "is_partial": share.is_partial,
    }


def holder_text(holder: Holder) -> str:
    """Name a holder: the session, or its owner; with the number of nodes."""
    who = holder.session or f"a session of {holder.owner}"
    return f"{who} on {counted(holder.nodes, 'node')}" if holder.nodes > 1 else who


def _amount(holder: Holder, short: str) -> str:
    if short == "memory":
        return f"{memory_text(holder.held)} of memory"
    if short == "sessions":
        return counted(holder.held, "session")
    one = _MEASURED.get(short, short)
    return f"{thousandths(holder.held)} {one if holder.held <= 1000 else one + 's'}"


def _until(holder: Holder, now: float) -> str:
    if not holder.HasField("until"):
        return "no time limit"
    return f"for {duration_text(seconds_of(holder.until) - now)} more at most"


def starts_text(waiting: Waiting, now: float) -> str:
    """Describe its expected start, and the conditions."""
    if waiting.never:
        return "never, as things are"
    taken = ", unless a session ahead of it takes it" if waiting.place > 1 else ""
    left = seconds_of(waiting.expected_start) - now
    free = f"enough is free {_in(left)}{' at the latest' if left > 0 else ''}{taken}"
    if waiting.HasField("budget_renews"):
        renewed_in = seconds_of(waiting.budget_renews) - now
        renewed = f"its project's budget resets {_in(renewed_in)}"
        if not waiting.HasField("expected_start"):
            return f"{renewed}; unknown when enough is free then"
        return f"{renewed}, and {f'enough is free then{taken}' if left <= renewed_in else free}"
    if waiting.HasField("expected_start"):
        return free
    if waiting.room_is_held:
        return "unknown: enough is free, but reserved for others"
    is_endless = any(not one.HasField("until") for one in waiting.holders)
    return "unknown (blocking sessions have no time limit)" if is_endless else "unknown"


def _in(seconds: float) -> str:
    return "now" if seconds <= 0 else f"in {duration_text(seconds)}"


def what_if_lines(answer: WhatIfAnswer, asked: str, now: float) -> list[str]:
    """Describe the result of a hypothetical change, a line per fact; `asked`: the change in the user's words."""
    if answer.starts:
        nodes = ", ".join(dict.fromkeys(answer.nodes))
        return [f"with {asked} it would start now: {nodes}"]
    return [f"with {asked} it would wait:", *waiting_lines(answer.waiting, now)]


def waiting_record(waiting: Waiting) -> dict[str, Any]:
    """Return why a session waits, in raw values."""
    return {
        "place": waiting.place,
        "queued": waiting.queued,
        "reason": waiting.reason,
        "shortages": [{"what": one.what, "nodes": one.nodes} for one in waiting.shortages],
        "never": waiting.never,
        "short": waiting.short or None,
        "holders": [_holder_record(one, waiting.short) for one in waiting.holders],
        "expected_start": moment_of(waiting, "expected_start"),
        "budget_renews": moment_of(waiting, "budget_renews"),
        "room_is_held": waiting.room_is_held,
        "share": share_record(waiting.share) if waiting.HasField("share") else None,
    }


def _holder_record(holder: Holder, short: str) -> dict[str, Any]:
    is_in_thousandths = short in {"GPUs", "cores"}
    return {
        "session": holder.session or None,
        "owner": holder.owner,
        "held": holder.held / 1000 if is_in_thousandths else holder.held,
        "nodes": holder.nodes,
        "until": moment_of(holder, "until"),
    }


def explained_record(answer: ExplainSessionResponse) -> dict[str, Any]:
    """Return the queue's part of an explanation, in raw values."""
    waits, supposed = answer.HasField("waiting"), answer.what_if
    record: dict[str, Any] = {"queue": waiting_record(answer.waiting) if waits else None}
    if answer.HasField("what_if"):
        would_wait = supposed.HasField("waiting")
        record["what_if"] = {
            "starts": supposed.starts,
            "nodes": list(supposed.nodes),
            "queue": waiting_record(supposed.waiting) if would_wait else None,
        }
    return record


def _gpus(row: QueuedSession, _now: float) -> str:
    text = thousandths(row.resources.gpu_thousandths)
    return f"{row.replica_count}x{text}" if row.replica_count > 1 else text


def _starts(row: QueuedSession, now: float) -> str:
    if not row.HasField("expected_start"):
        if row.HasField("budget_renews"):
            return f"{duration_text(seconds_of(row.budget_renews) - now)} at least"
        return "held" if row.room_is_held else "-"
    left = seconds_of(row.expected_start) - now
    return "now" if left <= 0 else f"{duration_text(left)} at most"


def _share(row: QueuedSession) -> str:
    return gpus_text(row.share) if row.HasField("share") else "-"


def _priority(row: QueuedSession) -> str:
    return enum_word(sessions_pb2.Priority, row.priority, "PRIORITY_") if row.priority else "-"


_WHY_CELLS = 40
"""Least cells of the reason, reserved before other columns: people look for it."""
COLUMNS: tuple[Column[QueuedSession], ...] = (
    Column(key="place", title="#", cell=lambda row, _: str(row.place)),
    Column(key="name", title="Name", cell=lambda row, _: row.session or HIDDEN, is_name=True),
    Column(key="owner", title="Owner", cell=lambda row, _: row.owner, is_optional=True),
    Column(key="gpus", title="GPUs", cell=_gpus),
    Column(key="priority", title="Priority", cell=lambda row, _: _priority(row), is_optional=True),
    Column(
        key="age",
        title="Age",
        cell=lambda row, now: duration_text(now - seconds_of(row.created_at)),
        is_optional=True,
    ),
    Column(
        key="reason",
        title="Why",
        cell=lambda row, _: row.reason or "-",
        shrinks_to=_WHY_CELLS,
        wraps=True,
        stays=True,
    ),
    Column(key="expected_start", title="Free in", cell=_starts),
    Column(
        key="project",
        title="Project",
        cell=lambda row, _: row.project or "-",
        is_wide=True,
        is_worth=lambda row: row.project not in {"", row.owner},
        is_optional=True,
    ),
    Column(
        key="gpu_model", title="GPU model", cell=lambda row, _: row.gpu_model or "-", is_wide=True
    ),
    Column(key="pod", title="Pod", cell=lambda row, _: row.pod or "-", is_wide=True),
    Column(
        key="network",
        title="Network",
        cell=lambda row, _: network_word(row.network) or "-",
        is_wide=True,
        is_worth=lambda row: row.network != resources_pb2.NETWORK_UNSPECIFIED,
        is_optional=True,
    ),
    Column(key="share", title="Share", cell=lambda row, _: _share(row), is_wide=True),
)


def record(row: QueuedSession) -> dict[str, Any]:
    """Return a queued session in raw values; None if hidden, or not requested."""
    return {
        "place": row.place,
        "name": row.session or None,
        "owner": row.owner,
        "project": row.project or None,
        "gpus": row.resources.gpu_thousandths / 1000,
        "cpus": row.resources.cpu_thousandths / 1000 or None,
        "memory_bytes": row.resources.memory_bytes or None,
        "replica_count": row.replica_count,
        "priority": None if not row.priority else _priority(row),
        "gpu_model": row.gpu_model or None,
        "pod": row.pod or None,
        "network": network_word(row.network) or None,
        "created_at": moment_of(row, "created_at"),
        "reason": row.reason or None,
        "expected_start": moment_of(row, "expected_start"),
        "budget_renews": moment_of(row, "budget_renews"),
        "room_is_held": row.room_is_held if row.session else None,
        "share": row.share if row.HasField("share") else None,
    }


def totals_text(page: ListQueueResponse) -> str:
    """Describe total demand and free resources in one line."""
    free, hole = thousandths(page.free_gpu_thousandths), page.largest_hole
    where = f" (node {page.largest_hole_node})" if page.largest_hole_node else ""
    asked = thousandths(page.asked_gpu_thousandths)
    chosen = f"{page.chosen:,} of " if page.chosen != page.queued else ""
    hidden = f" · {page.hidden:,} of others in it" if page.hidden else ""
    return (
        f"queue {chosen}{page.queued:,}{hidden} · GPUs asked for {asked}, free {free}, "
        f"most free on one node {hole}{where}"
    )


def totals_record(page: ListQueueResponse) -> dict[str, Any]:
    """Return the same in raw values."""
    return {
        "queued": page.queued,
        "chosen": page.chosen,
        "hidden": page.hidden,
        "asked_gpus": page.asked_gpu_thousandths / 1000,
        "free_gpus": page.free_gpu_thousandths / 1000,
        "largest_hole": page.largest_hole,
        "largest_hole_node": page.largest_hole_node or None,
    }


def joined(pages: Sequence[ListQueueResponse]) -> ListQueueResponse:
    """Join pages, each place once: the queue may have moved between them. The last page's cursor is kept."""
    whole = sessions_pb2.ListQueueResponse()
    whole.CopyFrom(pages[0])
    whole.next_cursor = pages[-1].next_cursor
    for page in pages[1:]:
        whole.sessions.extend(page.sessions)
    return whole
