"""Who reads gRPC's sockets."""

import subprocess
import sys

CALL = """
from nsml.common.grpc_polling import poll_in_place
poll_in_place()
import asyncio, tempfile
from pathlib import Path
import grpc, grpc.aio
async def take(pieces, _):
    async for _ in pieces:
        pass
    return b""
async def main():
    with tempfile.TemporaryDirectory() as folder:
        server = grpc.aio.server()
        handlers = {"Put": grpc.stream_unary_rpc_method_handler(take)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x.S", handlers),))
        server.add_insecure_port(f"unix:{folder}/s")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{folder}/s") as channel:
            call = channel.stream_unary("/x.S/Put")()
            for _ in range(100):
                await call.write(bytes(1 << 20))
            await call.done_writing()
            await call
        await server.stop(None)
    seen = 0
    for thread in Path("/proc/self/task").iterdir():
        lines = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
        if lines["Name"].strip() == "event_engine":
            seen += int(lines["voluntary_ctxt_switches"])
    print(seen)
asyncio.run(main())
"""


def changes_of_threads(program: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_no_pool_of_threads_hands_on_what_is_sent() -> None:
    by_a_pool = changes_of_threads(CALL.replace("\npoll_in_place()", ""))
    assert changes_of_threads(CALL) < by_a_pool / 2
