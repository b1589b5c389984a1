"""The way to other control planes, where there is none."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.access.authority import make_authority
from controlplane.access.peers import SocketPeers
from controlplane.domain.errors import Unavailable
from controlplane.store.election import Leader
from nsml.common.clock import SystemClock


@pytest.mark.parametrize("address", ["10.0.0.1:18553", "0.0.0.0:18553", "", "elsewhere", "unix:"])
async def test_one_without_a_listener_for_others_is_out_of_reach_and_no_more(address: str) -> None:
    """One that serves its users alone may lead: the others go on beside it."""
    peers = SocketPeers(make_authority(SystemClock()), "one")
    met: list[None] = []
    try:
        async with asyncio.timeout(60):
            leader = Leader(member="two", address=address, term=3, process="p")
            await peers.attend(leader, lambda: met.append(None))
        with pytest.raises(Unavailable, match="no way from here"):
            peers.channel(address, is_tls=False)
    finally:
        await peers.close()
    assert not met
