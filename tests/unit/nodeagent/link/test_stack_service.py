"""The answer of agent.stacks: whatever its programs do, it is bounded, and one of them hides no other."""

import asyncio

import pytest

from nodeagent.link import stack_service
from nodeagent.link.stack_service import _Answer
from nodeagent.probes import python_stacks
from nodeagent.probes.process_list import Look
from nodeagent.probes.processes import Stat
from nodeagent.probes.python_stacks import ProcessGone, SeenFrame, SeenThread, StacksUnseen

STAT = Stat(is_dead=False, parent=1, ticks=0, collected_ticks=0, start_ticks=5, pages=1)
SEEN = Look(at=0.0, stats=dict.fromkeys(range(100, 140), STAT), count=40)


@pytest.fixture
def long(monkeypatch):
    """Processes whose stacks are 4 MiB each, but for one that cannot be read."""
    frame = SeenFrame(function="f" * 500, file="/app/x.py", line=1, variables=[("x", "y" * 500)])
    thread = SeenThread(
        name="MainThread", holds_gil=True, is_active=True, frames=[frame] * 4000, frames_left_out=0
    )

    async def read(pid, start_ticks, *, program, with_locals):
        assert start_ticks == 5
        if pid == 100:
            raise StacksUnseen("it is just starting")
        if pid == 102:
            raise ProcessGone("it has ended")
        return [thread], 3

    monkeypatch.setattr(python_stacks, "read_threads", read)


def answer_of(*pids, left_out=0):
    async def made():
        answer = _Answer(left_out=left_out)
        for pid in pids:
            await answer.add(pid, SEEN, b"python\0main.py\0", "py-spy", with_locals=True)
        return answer.message

    return asyncio.run(made())


def test_together_they_take_a_bounded_part_of_memory(long):
    found = answer_of(*range(139, 99, -1), left_out=2)
    assert stack_service.MOST_BYTES < found.ByteSize() < 2 * stack_service.MOST_BYTES
    assert [one.node_pid for one in found.processes] == list(range(139, 99, -1))
    assert {one.unseen for one in found.processes[-30:]} == {
        "the stacks of the session's other processes are too long"
    }
    assert [len(one.threads) for one in found.processes[:3]] == [1, 1, 1]
    assert (found.processes[0].threads_left_out, found.left_out) == (3, 2)


def test_one_that_cannot_be_read_hides_no_other_and_one_that_ended_is_not_there(long):
    first, second = answer_of(100, 102, 101).processes
    assert (first.unseen, first.command) == ("it is just starting", "python main.py")
    assert (second.node_pid, second.unseen, len(second.threads)) == (101, "", 1)


def test_of_many_that_are_slow_to_read_the_last_are_said_to_be_left(long, monkeypatch):
    monkeypatch.setattr(stack_service, "_BEGINS_WITHIN_S", -1.0)
    [only] = answer_of(101).processes
    assert only.unseen == "the session's other processes took too long to read"
