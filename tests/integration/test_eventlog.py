"""The store's history as lines, out of a real etcd: what chaos is held against."""

import json
import secrets
import subprocess
import sys

from controlplane.domain.values import AllocatedReplica, Allocation, DeviceShare
from controlplane.state.draft import Draft
from controlplane.state.live_state import LiveState
from controlplane.store.election import WORD_KEY, Candidate, Leadership
from controlplane.store.interface import Delete, Put, Transaction
from controlplane.store.open import open_store
from controlplane.stored import etcd_codec
from nsml.common.clock import SystemClock
from tests.support.etcd import etcd_server

__all__ = ["etcd_server"]


def lines(endpoint: str, root: str) -> list[dict]:
    command = [sys.executable, "-m", "controlplane.eventlog", endpoint, "--root", root]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_every_change_is_told_with_the_term_that_decided_it(etcd_server):
    root, clock = f"t{secrets.token_hex(4)}/", SystemClock()
    share = DeviceShare(uuid="GPU-1", thousandths=500)
    held = AllocatedReplica(
        session_id="s1", attempt=2, rank=0, devices=(share,), cpu_thousandths=1, memory_bytes=1,
        placed_at=1.0,
    )  # fmt: skip
    async with open_store(etcd_server.endpoint, clock=clock, root=root) as store:
        who = Candidate(member="cp1", address="")
        async with Leadership(store, who, clock=clock) as leadership:
            draft = Draft(LiveState(store=store, clock=clock))
            draft.put_allocation(Allocation(node="n1", replicas=(held,)))
            assert (await store.commit(draft.transaction(leadership.fence))).succeeded
            secret = Put(key="secret/kim/KEY", value=b"hidden")
            await store.commit(Transaction(success=(secret,)))
            await store.commit(Transaction(success=(Delete(key=etcd_codec.allocation_key("n1")),)))
            term = leadership.term
    elected, placed, hidden, gone, left = lines(etcd_server.endpoint, root)
    assert elected == {
        "revision": term, "key": "leader", "created": term, "value": {"member": "cp1"}
    }  # fmt: skip
    assert placed["value"] == {
        "term": term,
        "replicas": [{"session": "s1", "attempt": 2, "rank": 0, "devices": {"GPU-1": 500}}],
    }
    assert hidden["value"] == {}
    assert (gone["key"], gone["value"]) == ("alloc/n1", None)
    assert (left["key"], left["value"]) == ("leader", None)
    assert elected["revision"] < placed["revision"] < gone["revision"] < left["revision"]


def test_a_cluster_that_does_not_answer_is_told(tmp_path):
    command = [sys.executable, "-m", "controlplane.eventlog", f"unix://{tmp_path}/none:1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("eventlog: ")


async def test_what_a_leader_leaves_to_the_next_one_is_not_shown(etcd_server):
    root, clock = f"t{secrets.token_hex(4)}/", SystemClock()
    async with open_store(etcd_server.endpoint, clock=clock, root=root) as store:
        who = Candidate(member="cp1", address="")
        async with Leadership(store, who, clock=clock) as leadership:
            leadership.leave(b'{"connected": ["n1"]}')
    words = [one["value"] for one in lines(etcd_server.endpoint, root) if one["key"] == WORD_KEY]
    assert words[0] == {}
