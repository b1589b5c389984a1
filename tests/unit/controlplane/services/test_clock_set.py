"""A control plane whose wall clock is set: what is decided goes by a steady one, who is let in by the wall clock."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import grpc
import pytest

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Cause, EndedAttempt, Session
from controlplane.sessions.feature import scheduling
from controlplane.store.interface import Put, Transaction
from controlplane.stored import etcd_codec
from nsml.common.clock import SystemClock
from nsml.v1 import nodes_pb2
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.rig import Rig, Stubs, one_leads, serving, surroundings, until

HOUR_S = 3_600.0
WHILE_S = 60.0
"""Longer than any of this takes, and far less than an hour."""


@dataclass
class SetClock(SystemClock):
    """The system's, whose wall clock tests set."""

    set_by: float = 0.0

    def time(self) -> float:
        return super().time() + self.set_by


async def _created_at(user: Stubs) -> float:
    submitted = await user.submit()
    return submitted.created_at.ToNanoseconds() / 1e9


@pytest.mark.parametrize("by_s", [0.9 * HOUR_S, -HOUR_S])
async def test_who_comes_after_the_clock_was_set_is_younger_by_what_went_by(by_s: float) -> None:
    clock = SetClock()
    async with surroundings(clock=clock) as on, _leading(on) as rig:
        user = await rig.user("kim")
        before = await _created_at(user)
        clock.set_by = by_s
        assert before < await _created_at(user) < before + WHILE_S
        # Others compare their clocks with the wall clock of this machine.
        answer = await user.nodes.GetCluster(nodes_pb2.GetClusterRequest())
        assert abs(answer.now.ToNanoseconds() / 1e9 - clock.time()) < WHILE_S


async def test_tokens_end_by_the_wall_clock() -> None:
    clock = SetClock()
    async with surroundings(clock=clock) as on, _leading(on) as rig:
        user = await rig.user("kim")
        await user.submit()
        clock.set_by = 2 * HOUR_S
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await user.submit()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_leader_whose_clock_is_behind_goes_on_from_what_is_written() -> None:
    """Of a former leader, whose clock went an hour ahead: nothing of it lies in the future for the next one."""
    ahead = SetClock(set_by=HOUR_S)
    async with surroundings(clock=ahead) as on:
        failed_at = ahead.time()
        failed = EndedAttempt(
            number=1,
            cause=Cause.NODE_LOST,
            placed_at=failed_at - 100,
            ended_at=failed_at,
            gpu_thousandths=1000,
            held_s=100.0,
        )
        late = session(attempts=(failed,), attempt=1, created_at=failed_at - 200)
        await _write(on.store, replace(late, not_before=failed_at + 300, bad_attempts=1))
        async with _leading(replace(on, clock=SystemClock())) as rig:
            user = await rig.user("lee")
            assert failed_at <= await _created_at(user) < failed_at + WHILE_S
            known = rig.plane.core.state.session(late.id)
            assert known is not None
            assert known.state is SessionState.QUEUED
            # It waits for what is left of its five minutes, not for more than an hour.
            why = rig.plane.core.shared(scheduling).waiting(late.id)
            assert why is not None
            [left_s] = re.findall(r"begins in (\d+) s", why.reason)
            assert 300 - WHILE_S < int(left_s) <= 300


async def _write(store, one: Session) -> None:  # type: ignore[no-untyped-def]
    put = Put(key=etcd_codec.session_key(one.id), value=etcd_codec.encode_session(one))
    await store.commit(Transaction(success=(put,)))


@contextlib.asynccontextmanager
async def _leading(on) -> AsyncIterator[Rig]:  # type: ignore[no-untyped-def]
    async with serving(on) as rig:
        await until(lambda: one_leads(rig), "it leads")
        yield rig
