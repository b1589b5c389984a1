"""Programs that serve write one JSON object a line to standard error, whoever speaks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SPEAKERS = """
import logging
from nsml.program_logs import quiet_grpc, write_json_lines
quiet_grpc()
import asyncio, grpc.aio, structlog
write_json_lines()

async def main():
    server = grpc.aio.server()
    try:
        server.add_insecure_port("127.0.0.1:{port}")  # taken: the C core says so
    except RuntimeError:
        structlog.get_logger().warning("port.taken")

asyncio.run(main())
logging.getLogger("somebody").warning("a %s word", "library's")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("somebody").exception("failed")
logging.getLogger("somebody").info("not said")
"""


def test_every_line_is_json_whoever_writes_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        program = SPEAKERS.replace("{port}", str(taken.getsockname()[1]))
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
        )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["port.taken", "library.said", "library.said"]
    assert (lines[1]["logger"], lines[1]["text"]) == ("somebody", "a library's word")
    assert "ZeroDivisionError" in lines[2]["exception"]


def test_a_control_plane_whose_port_is_taken_writes_no_raw_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file.write_text(f'data = "d"\naddress = "{address}"\ncoordination = "embedded"\n')
        done = subprocess.run(
            [sys.executable, "-m", "controlplane.main", "--config", str(file)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    raw = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(raw) == 1
    assert raw[0].startswith(f"nsml-controlplane: cannot listen on {address}")
