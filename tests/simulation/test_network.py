"""The simulated network behaves as grpc.aio does, where the platform relies on it."""

import asyncio
import random

import grpc
import pytest

from nsml.v1 import agents_pb2, agents_pb2_grpc, nodes_pb2, nodes_pb2_grpc
from tests.simulation.network import Network
from tests.simulation.virtual_time import Stalled, VirtualClock, run


class Nodes(nodes_pb2_grpc.NodeServiceServicer):
    async def ListNodes(self, request, context):
        await asyncio.sleep(3600)
        return nodes_pb2.ListNodesResponse(nodes=[nodes_pb2.Node(name="a")])

    async def GetCluster(self, request, context):
        metadata = dict(context.invocation_metadata())
        await context.abort(grpc.StatusCode.NOT_FOUND, metadata["who"], (("key", "value"),))


class Agents(agents_pb2_grpc.AgentServiceServicer):
    async def Ingest(self, request_iterator, context):
        async for request in request_iterator:
            cursor = agents_pb2.Cursor(next=request.sample.sequence + 1)
            yield agents_pb2.IngestResponse(acknowledged=[cursor])


def network_with_server():
    network = Network(random.Random(1))
    server = network.serve("server")
    nodes_pb2_grpc.add_NodeServiceServicer_to_server(Nodes(), server)
    agents_pb2_grpc.add_AgentServiceServicer_to_server(Agents(), server)
    return network, network.channel("laptop", "server")


def request(sequence):
    return agents_pb2.IngestRequest(sample=agents_pb2.NodeSample(sequence=sequence))


def test_an_hour_takes_no_time_and_the_answer_arrives():
    async def main():
        _, channel = network_with_server()
        clock = VirtualClock(asyncio.get_running_loop())
        before = clock.monotonic()
        answer = await nodes_pb2_grpc.NodeServiceStub(channel).ListNodes(
            nodes_pb2.ListNodesRequest()
        )
        return [node.name for node in answer.nodes], clock.monotonic() - before

    names, passed = run(main())
    assert names == ["a"]
    assert passed == pytest.approx(3600, abs=1)


def test_a_deadline_and_an_abort_reach_the_caller():
    async def main():
        _, channel = network_with_server()
        stub = nodes_pb2_grpc.NodeServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await stub.ListNodes(nodes_pb2.ListNodesRequest(), timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetCluster(nodes_pb2.GetClusterRequest(), metadata=(("who", "me"),))
        return late.value, refused.value

    late, refused = run(main())
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert refused.code() is grpc.StatusCode.NOT_FOUND
    assert refused.details() == "me"
    assert ("key", "value") in tuple(refused.trailing_metadata())


def test_a_stream_answers_in_order_and_breaks_with_its_link():
    async def main():
        network, channel = network_with_server()
        call = agents_pb2_grpc.AgentServiceStub(channel).Ingest()
        seen = []
        for sequence in range(3):
            await call.write(request(sequence))
            seen.append((await call.read()).acknowledged[0].next)
        network.cut("laptop", "server")
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError):
            await nodes_pb2_grpc.NodeServiceStub(channel).ListNodes(nodes_pb2.ListNodesRequest())
        return seen, broken.value.code(), network.broken_calls

    seen, code, broken_calls = run(main())
    assert seen == [1, 2, 3]
    assert code is grpc.StatusCode.UNAVAILABLE
    assert broken_calls == 1


def test_waiting_for_ever_is_found():
    with pytest.raises(Stalled):
        run(asyncio.Event().wait())
