"""A control plane reduced to what decides: its election, what is live, and the Committer.

Usage: python -m tests.integration.committing_program ENDPOINT MEMBER TTL_S RECORD
Leads when it is elected, and then counts on in one record, again and again: the processors of the
node RECORD. Prints a JSON object a line: {"event": "standing"|"elected"|"committed"|"lost"|"refused", "at": s,
"term": N, "count": N}; "committed" for each decision whose result came back.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from controlplane.domain.errors import NotLeader
from controlplane.domain.values import Node, Resources
from controlplane.state.committer import Committer, Deposed
from controlplane.state.draft import Draft
from controlplane.state.live_state import LiveState
from controlplane.store.election import Candidate, Leadership, LeadershipLost
from controlplane.store.etcd import EtcdStore
from nsml.common.clock import SystemClock

BLOCKED_S = 0.02


def say(event: str, *, term: int = 0, count: int = 0) -> None:
    said = {"event": event, "at": time.monotonic(), "term": term, "count": count}
    print(json.dumps(said), flush=True)


def count_on(draft: Draft, record: str) -> int:
    node = draft.node(record) or Node(name=record, boot_id="boot", capacity=Resources())
    count = node.capacity.cpu_thousandths + 1
    draft.put_node(replace(node, capacity=Resources(cpu_thousandths=count)))
    # Blocking on purpose: a pause mostly falls here, and the decision goes out before the loop has
    # had a chance to notice that the lease is over.
    time.sleep(BLOCKED_S)
    return count


async def decide(committer: Committer, term: int, decision: Callable[[Draft], int]) -> None:
    while True:
        say("committed", term=term, count=await committer.decide(decision))


async def main(endpoint: str, member: str, ttl_s: float, record: str) -> None:
    decision = partial(count_on, record=record)
    clock = SystemClock()
    async with EtcdStore([endpoint], clock=clock) as store:
        state = LiveState(store, clock)
        committer = Committer(store=store, state=state, clock=clock, leader=lambda: "")
        following = asyncio.create_task(state.follow())
        leadership = Leadership(
            store, Candidate(member=member, address=""), clock=clock, ttl_s=ttl_s
        )
        working: set[asyncio.Task[None]] = set()
        say("standing")
        with contextlib.suppress(LeadershipLost):
            async with leadership:
                await state.reached(leadership.term)
                say("elected", term=leadership.term)
                working.add(asyncio.create_task(committer.run(leadership.fence)))
                await asyncio.sleep(0)  # it leads from its first step on
                working.add(asyncio.create_task(decide(committer, leadership.term, decision)))
                await asyncio.wait(working)
        # What works here is not told of the lost lease: the fence alone has to end it.
        for ended in await asyncio.gather(*working, return_exceptions=True):
            if not isinstance(ended, Deposed | NotLeader):
                raise TypeError(ended)
        say("lost", term=leadership.term)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        try:
            await committer.decide(decision)
        except NotLeader:
            say("refused", term=leadership.term)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]))
