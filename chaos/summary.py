"""What is told of a run: how much was done, what fired, what is wrong."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from chaos.check import Violation, counts
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chaos.recording import Record, Recorded

_WRITES = {"create", "stop", "remove"}
_SHOWN = 20


def record_of(recorded: Recorded, found: Sequence[Violation]) -> dict[str, Any]:
    """The result for programs."""
    waits = _longest_waits(recorded)
    run = recorded.run
    return {
        "seed": run["seed"],
        "lasted_s": run["lasted_s"],
        "operations": dict(sorted(_operations(recorded).items())),
        "sessions": len(recorded.outcome),
        "programs": len(recorded.programs),
        "reports": _sum_of(recorded.programs, "reported"),
        "lines": _sum_of(recorded.programs, "printed"),
        "media": _sum_of(recorded.programs, "shown"),
        "missing": sum(item["missing"] for item in recorded.outcome),
        "revisions": max((change["revision"] for change in recorded.store), default=0),
        "terms": sum(
            change["key"] == "leader" and change["value"] is not None for change in recorded.store
        ),
        "faults_fired": sum(run["fired"].values()),
        "fired": dict(sorted(run["fired"].items())),
        "failed": run["failed"],
        "left_out": run["left_out"],
        "longest_write_s": waits["write"],
        "longest_read_s": waits["read"],
        "violations": counts(found),
        "found": [{"kind": violation.kind, "text": violation.text} for violation in found],
    }


def lines_of(record: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    operations = ", ".join(f"{count} {name}" for name, count in record["operations"].items())
    yield f"operations   {operations}"
    yield (
        f"             {record['sessions']} sessions, {record['programs']} programs, "
        f"{record['revisions']} revisions, {record['terms']} terms"
    )
    yield (
        f"             {record['reports']} reports, {record['lines']} lines, {record['media']} media; "
        f"{record['missing']} told as missing"
    )
    yield f"faults       {record['faults_fired']} fired in {record['lasted_s']:.0f} s"
    for name, count in record["fired"].items():
        yield f"             {count:>4} {name}"
    for reason, count in record["failed"].items():
        yield f"no effect    {count:>4} {reason}"
    yield (
        f"longest wait {record['longest_write_s']:.1f} s for a write, "
        f"{record['longest_read_s']:.1f} s for a read"
    )
    for kind, count in record["violations"].items():
        yield f"{kind:<32}{count:>4}"
    for violation in record["found"][:_SHOWN]:
        yield f"VIOLATION {violation['kind']}: {violation['text']}"
    more = len(record["found"]) - _SHOWN
    if more > 0:
        yield f"and {counted(more, 'more violation')}"
    yield f"seed {record['seed']}"


def _sum_of(programs: Iterable[Record], what: str) -> int:
    return sum(len(program[what]) for program in programs)


def _operations(recorded: Recorded) -> Counter[str]:
    asked = {record["op"]: record["do"] for record in recorded.operations if "do" in record}
    found: Counter[str] = Counter()
    for record in recorded.operations:
        for answer in ("ok", "fail", "unknown"):
            if answer in record:
                how = "" if answer == "ok" else f" {'refused' if answer == 'fail' else 'unknown'}"
                found[f"{asked[record[answer]]}{how}"] += 1
        if "saw" in record:
            found[f"{record['saw']} seen"] += 1
    return found


def _longest_waits(recorded: Recorded) -> dict[str, float]:
    """Longest time from a question to its answer, with all its repetitions: the platform was away."""
    began: dict[int, tuple[str, int]] = {}
    longest = {"write": 0.0, "read": 0.0}
    for record in recorded.operations:
        if "do" in record:
            kind = "write" if record["do"] in _WRITES else "read"
            began[record["op"]] = (kind, record["at"])
            continue
        number = record.get("ok") or record.get("fail") or record.get("unknown")
        if number in began:
            kind, at = began[number]
            longest[kind] = max(longest[kind], (record["at"] - at) / 1e9)
    return {kind: round(seconds, 2) for kind, seconds in longest.items()}
