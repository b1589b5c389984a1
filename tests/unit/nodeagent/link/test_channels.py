"""The node's token goes to no program of another account that listens where the control plane was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nodeagent.link.channels import Link
from nsml.client.connect import check_own_listener
from nsml.client.errors import UntrustedServer
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import checkpoints_pb2
from tests.support.listeners import listening_as, needs_root

OTHER = 1_900_000_005
STREAM = ("AgentService/Control", pb.ControlRequest, pb.ControlResponse)
CALL = (
    "CheckpointService/GetCheckpoint",
    checkpoints_pb2.GetCheckpointRequest(),
    checkpoints_pb2.GetCheckpointResponse,
)


class Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Counts the calls with a token."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.tokens += [
            value for key, value in details.invocation_metadata if key == "authorization"
        ]

        async def answer(_: bytes, __: Any) -> bytes:
            return b""

        async def stream(_: Any, __: Any) -> Any:
            yield b""

        if details.method.endswith(CALL[0]):
            return grpc.unary_unary_rpc_method_handler(answer)
        return grpc.stream_stream_rpc_method_handler(stream)


@needs_root
async def test_another_account_at_the_port_gets_no_token_of_the_node(tmp_path: Path) -> None:
    """Neither with calls nor streams nor tunnels, also where the channel is there already."""
    calls, server = Calls(), grpc.aio.server()
    server.add_generic_rpc_handlers((calls,))
    port = server.add_insecure_port("127.0.0.1:0")
    place = f"unix:{tmp_path}/s"
    server.add_insecure_port(place)
    await server.start()

    def channel(address: str, **_: bool) -> Any:
        return grpc.aio.insecure_channel(address)

    def link_to(address: str) -> Link:
        return Link([address], channel_factory=channel, token=lambda: "t", check=check_own_listener)

    link, by_socket = link_to(f"127.0.0.1:{port}"), link_to(place)
    try:
        await link.rpc().unary(*CALL)
        await link.open(*STREAM).read()
        assert len(calls.tokens) == 2
        with listening_as(port, OTHER):
            with pytest.raises(UntrustedServer) as refused:
                await link.rpc().unary(*CALL)
            assert "uid 1900000005" in refused.value.message
            assert "node's token" in refused.value.why
            for opened in (link.open, link.open_any):
                with pytest.raises(UntrustedServer):
                    opened(*STREAM)
            with pytest.raises(UntrustedServer):
                async with link.dial(*STREAM):
                    pass
            assert len(calls.tokens) == 2
            await by_socket.rpc().unary(*CALL)
        await link.open_any(*STREAM).read()
        assert len(calls.tokens) == 4
    finally:
        await link.close()
        await by_socket.close()
        await server.stop(None)
