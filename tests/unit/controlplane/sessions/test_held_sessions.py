"""A held session: its owner is told why, also where an older version held it, and can end or release it."""

from __future__ import annotations

import grpc
import pytest

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Cause, End, Session
from controlplane.store.interface import Put, Transaction
from controlplane.stored import etcd_codec
from controlplane.stored.v1 import records_pb2
from nsml.v1 import nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.rig import Rig, one_leads, serving, surroundings, until


async def test_its_owner_is_told_why_and_can_end_it() -> None:
    end = End(cause=Cause.NODE_LOST, message="the machine was started again")
    held = session(state=SessionState.HELD, attempt=3, bad_attempts=3, end=end)
    record = records_pb2.SessionRecord.FromString(etcd_codec.encode_session(held))
    record.ClearField("held_cause")
    put = Put(key=etcd_codec.session_key(held.id), value=record.SerializeToString())
    async with surroundings() as on, serving(on) as rig:
        kim = await rig.user("kim")
        await on.store.commit(Transaction(success=(put,)))
        await until(lambda: _is_known(rig, held), "the session is known")
        shown = await kim.sessions.GetSession(pb.GetSessionRequest(session=held.id))
        assert shown.session.held_cause == pb.HELD_CAUSE_NODE_LOSSES
        cluster = await kim.nodes.GetCluster(nodes_pb2.GetClusterRequest())
        assert (cluster.sessions_queued, cluster.sessions_held) == (0, 1)
        ask = pb.ExplainSessionRequest(session=held.id, what_if=pb.WhatIf(pod="p"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kim.sessions.ExplainSession(ask)
        assert "it is held: too many bad attempts in a row" in str(refused.value.details())
        answer = await kim.sessions.StopSession(pb.StopSessionRequest(session=held.id))
        assert answer.session.state == pb.SESSION_STATE_STOPPED
        assert answer.session.held_cause == pb.HELD_CAUSE_UNSPECIFIED


async def test_its_owner_releases_it_and_it_is_placed_again() -> None:
    end = End(cause=Cause.DATA_FAILED, message="no room on its disk")
    held = session(state=SessionState.HELD, attempt=3, bad_attempts=3, end=end)
    put = Put(key=etcd_codec.session_key(held.id), value=etcd_codec.encode_session(held))
    async with surroundings() as on, serving(on) as rig:
        kim, lee = await rig.user("kim"), await rig.user("lee")
        await on.store.commit(Transaction(success=(put,)))
        await until(lambda: _is_known(rig, held), "the session is known")
        request = pb.RequeueSessionRequest(session=held.id)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await lee.sessions.RequeueSession(request)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        answer = await kim.sessions.RequeueSession(request)
        assert answer.session.state == pb.SESSION_STATE_QUEUED
        assert answer.session.held_cause == pb.HELD_CAUSE_UNSPECIFIED
        assert not answer.session.HasField("end")
        await (await rig.agent()).connect()

        async def is_placed() -> bool:
            shown = await kim.sessions.GetSession(pb.GetSessionRequest(session=held.id))
            return shown.session.attempt == 4

        await until(is_placed, "it is placed again")


async def _is_known(rig: Rig, held: Session) -> bool:
    return await one_leads(rig) and rig.plane.core.state.session(held.id) is not None
