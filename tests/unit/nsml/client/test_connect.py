"""No token goes to a program of another account that listens where the platform was."""

import pytest

from nsml.client.connect import connect
from nsml.client.errors import UntrustedServer
from nsml.client.streams import watch_sessions
from nsml.v1 import sessions_pb2 as pb
from tests.support.listeners import listening_as, needs_root

OTHER = 1_900_000_005


@needs_root
async def test_another_account_at_the_port_gets_no_token(context, server):
    async with connect(context) as client:
        await client.accounts.caller()
        with listening_as(server.port, OTHER):
            # The channel is there already: each call looks anew.
            with pytest.raises(UntrustedServer) as refused:
                await client.accounts.caller()
            assert "uid 1900000005" in refused.value.message
            assert refused.value.why
            assert "nsml login" in refused.value.advice
            with pytest.raises(UntrustedServer):
                await anext(watch_sessions(client, pb.SessionFilter()))
            async with connect(context._replace(server_uid=OTHER)) as trusting:
                await trusting.accounts.caller()
            unix = context._replace(server=f"unix:{server.socket}")
            async with connect(unix) as other_way:
                await other_way.accounts.caller()
        await client.accounts.caller()
