"""A control plane reduced to its election: leads, commits, and says so on standard output.

Usage: python -m tests.integration.leader_program ENDPOINT MEMBER TTL_S
Prints one JSON object a line: {"event": "standing"|"elected"|"committed"|"lost"|"refused", "term": N}.
"""

import asyncio
import json
import sys
import time

from controlplane.store.election import Candidate, Leadership, LeadershipLost
from controlplane.store.etcd import EtcdStore
from controlplane.store.interface import Put, StoreError, Transaction
from nsml.common.clock import SystemClock


def say(event: str, term: int) -> None:
    print(json.dumps({"event": event, "term": term, "at": time.monotonic()}), flush=True)


async def main(endpoint: str, member: str, ttl_s: float) -> None:
    clock = SystemClock()
    async with EtcdStore([endpoint], clock=clock) as store:
        candidate = Candidate(member=member, address=f"{member}:1")
        leadership = Leadership(store, candidate, clock=clock, ttl_s=ttl_s)
        number = 0
        say("standing", 0)
        try:
            async with leadership:
                say("elected", leadership.term)
                while True:
                    number += 1
                    await leadership.commit(
                        Transaction(success=(Put(key=f"by/{member}", value=b"%d" % number),))
                    )
                    if number == 1:
                        say("committed", leadership.term)
                    # Blocking on purpose: after a pause the next commit goes out before the
                    # loop has had a chance to notice that the lease is over.
                    time.sleep(0.02)  # noqa: ASYNC251
                    await asyncio.sleep(0)
        except LeadershipLost:
            say("lost", leadership.term)
        write = Transaction(success=(Put(key=f"stale/{member}", value=b""),))
        try:
            await leadership.commit(write)
            say("accepted", leadership.term)
        except LeadershipLost:
            say("refused", leadership.term)
        except StoreError as error:
            say(f"failed: {error}", leadership.term)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
