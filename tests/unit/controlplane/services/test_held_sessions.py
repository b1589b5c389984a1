"""A session that an older version held: its owner is told why, and can end it."""

from __future__ import annotations

import grpc
import pytest

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Cause, End, Session
from controlplane.operations import etcd_codec
from controlplane.store.interface import Put, Transaction
from controlplane.stored.v1 import records_pb2
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
        ask = pb.ExplainSessionRequest(session=held.id, what_if=pb.WhatIf(pod="p"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kim.sessions.ExplainSession(ask)
        assert "it is held: too many bad attempts in a row" in str(refused.value.details())
        answer = await kim.sessions.StopSession(pb.StopSessionRequest(session=held.id))
        assert answer.session.state == pb.SESSION_STATE_STOPPED
        assert answer.session.held_cause == pb.HELD_CAUSE_UNSPECIFIED


async def _is_known(rig: Rig, held: Session) -> bool:
    return await one_leads(rig) and rig.plane.core.state.session(held.id) is not None
