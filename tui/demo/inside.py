"""Inside of running sessions of the demo: knobs and their changes, processes, stacks. All of it made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsml.v1 import sessions_pb2 as pb
from nsml.view.stacks import SeenReplica
from tui.demo.scripted_session import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tui.demo.scripted_session import ScriptedSession

_KNOBS: Final[Mapping[str, Mapping[str, tuple[float, float | None, float | None]]]] = {
    "leaves": {"lr": (0.1, 1e-5, 1.0), "smoothing": (0.1, 0.0, 0.5)},
    "tales": {
        "lr": (3e-4, 1e-6, 1e-2),
        "clip": (1.0, 0.0, None),
        "weight_decay": (0.1, None, None),
    },
    "waves": {"lr": (2e-3, None, None)},
}
"""By dataset: default, min and max of each knob."""
_SET_AFTER_S: Final = 3_600.0
_REFUSED_AFTER_S: Final = 9_000.0
_WORKERS: Final = 4


def changes(part: ScriptedSession, origin: float, now: float) -> list[pb.ProgramChange]:
    """Changes of its program so far: a gang halves its rate, and once requests too much."""
    if part.replicas < 2 or "lr" not in _KNOBS.get(part.program.dataset, {}):
        return []
    default, _, most = _KNOBS[part.program.dataset]["lr"]
    found = [
        _change(part, origin, number=1, ran_s=_SET_AFTER_S, value=default / 2),
        _change(part, origin, number=2, ran_s=_REFUSED_AFTER_S, value=10 * (most or 1.0)),
    ]
    found[0].phase = pb.PROGRAM_CHANGE_PHASE_APPLIED
    knob = pb.KnobChange(name="lr", before=repr(default), after=repr(default / 2))
    found[0].members.add(state=pb.MEMBER_STATE_DONE, position=found[0].at, knobs=[knob])
    found[1].phase = pb.PROGRAM_CHANGE_PHASE_WITHDRAWN
    found[1].reason = f"lr: {10 * (most or 1.0)} is more than its max {most}"
    after = (_SET_AFTER_S, _REFUSED_AFTER_S)
    return [one for one, ran_s in zip(found, after, strict=True) if ran_s < part.ran_s(now)]


def _change(
    part: ScriptedSession, origin: float, *, number: int, ran_s: float, value: float
) -> pb.ProgramChange:
    change = pb.ProgramChange(
        number=number,
        kind=pb.PROGRAM_CHANGE_KIND_SET,
        attempt=1,
        asked_by=part.user,
        values={"lr": repr(value)},
        counter="step",
        at=int(ran_s / part.program.every_s) * part.program.steps,
    )
    stamp(change.asked_at, origin + part.started + ran_s)
    stamp(change.ended_at, origin + part.started + ran_s + 1.0)
    return change


def knobs(part: ScriptedSession, origin: float, now: float) -> Mapping[str, Mapping[str, Any]]:
    """Its program's knobs."""
    found: dict[str, dict[str, Any]] = {
        name: {"value": default, "default": default, "min": low, "max": high, "choices": None}
        for name, (default, low, high) in _KNOBS.get(part.program.dataset, {}).items()
    }
    if any(one.phase == pb.PROGRAM_CHANGE_PHASE_APPLIED for one in changes(part, origin, now)):
        found["lr"]["value"] /= 2
    return found


def processes(part: ScriptedSession, rank: int, now: float) -> pb.ReplicaProcesses:
    """Those of a replica, with a visitor in the first one of each second session."""
    age_s = int(max(now - part.started, 0.0))
    command = f"python -u {part.program.entry} {part.program.args}"
    answer = pb.ReplicaProcesses()
    for number in range(1 + _WORKERS):
        one = answer.processes.add(
            pid=7 + 3 * number,
            node_pid=41_000 + 100 * part.number + number,
            cpu_cores=0.98 - 0.13 * number,
            memory_bytes=(9 if number == 0 else 2) << 30,
            command=command if number == 0 else f"{command} --worker {number}",
        )
        one.age.seconds = age_s
        one.cpu_time.seconds = int(age_s * one.cpu_cores)
    if rank == 0 and part.number % 2 == 0:
        visitor = answer.visitors.add(user=part.user, service="agent.ssh")
        visitor.age.seconds = min(age_s, 780)
    return answer


def stacks(part: ScriptedSession, *, with_locals: bool) -> Sequence[SeenReplica]:
    """Stacks of its replicas: the last one of a gang waits for its data, and the others for it."""
    last = part.replicas - 1
    found = [
        SeenReplica(rank=rank, found=_stacks(part, waits=0 < last == rank), unseen="")
        for rank in range(part.replicas)
    ]
    for one in found if with_locals else ():
        [*_, innermost] = one.found.processes[0].threads[0].frames
        innermost.locals.add(name="batch", value=f"<Tensor 8x{64 + one.rank}>")
    return found


def _stacks(part: ScriptedSession, *, waits: bool) -> pb.ReplicaStacks:
    answer = pb.ReplicaStacks()
    process = answer.processes.add(
        pid=7, command=f"python -u {part.program.entry} {part.program.args}"
    )
    main = process.threads.add(name="MainThread", state=pb.THREAD_STATE_ACTIVE)
    main.frames.add(function="<module>", file=f"/app/{part.program.entry}", line=13)
    if waits:
        main.frames.add(function="batches", file="/app/model.py", line=31)
        main.frames.add(function="read", file="/app/model.py", line=22)
    else:
        main.frames.add(function="learn", file="/app/model.py", line=48)
        library = "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
        main.frames.add(function="all_reduce", file=library, line=2501)
    loads = process.threads.add(name="loader", state=pb.THREAD_STATE_IDLE)
    loads.frames.add(function="fetch", file="/app/model.py", line=17)
    return answer
