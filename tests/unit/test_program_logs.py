"""Programs that serve write one JSON object a line to standard error, whoever speaks."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path

from nsml.common.log_files import copy_aside

ROOT = Path(__file__).parents[2]

SPEAKERS = """
import logging
from nsml.common.program_logs import quiet_grpc, write_json_lines
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


ENDLESS = """
import os, sys, threading
from pathlib import Path
from nsml.common.program_logs import write_json_lines
import structlog
write_json_lines(file=Path(sys.argv[1]), most_bytes=2_000)
log = structlog.get_logger()
def write(writer):
    for number in range(40):
        log.info(f"line.{writer}", number=number)
writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
for writer in writers: writer.start()
for writer in writers: writer.join()
os.write(2, b"a library's own words\\n")
os.write(1, b"printed\\n")
"""


def test_a_log_is_rotated_while_it_is_written(tmp_path: Path) -> None:
    log, aside = tmp_path / "x.log", tmp_path / "x.log.1"
    with log.open("ab") as output:
        command = [sys.executable, "-c", ENDLESS, str(log)]
        subprocess.run(command, stdout=output, stderr=output, check=True, cwd=ROOT)
    assert log.read_text().endswith("a library's own words\nprinted\n")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    for one in (log, aside):
        assert one.stat().st_size < 2_500
    lines = [*aside.read_text().splitlines(), *log.read_text().splitlines()[:-2]]
    assert all(json.loads(line)["event"].startswith("line.") for line in lines)


def test_what_is_no_log_file_is_not_rotated(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"a" * 5_000)
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(log)], capture_output=True, check=True, cwd=ROOT
    )
    assert done.stderr.count(b"\n") == 161
    assert log.stat().st_size == 5_000


def test_the_log_of_another_program_is_copied_and_emptied(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    with log.open("ab", buffering=0) as output:
        output.write(b"a" * 11)
        copy_aside(log, most_bytes=11)
        assert not (tmp_path / "etcd.log.1").exists()
        output.write(b"b")
        copy_aside(log, most_bytes=11)
        output.write(b"new")
    assert (tmp_path / "etcd.log.1").read_bytes() == b"a" * 11 + b"b"
    assert log.read_bytes() == b"new"


def test_programs_that_serve_start_without_rich() -> None:
    """structlog would import it where it is installed; of the packages here only the dashboard needs it."""
    for program, rest in (("controlplane", "startup.server"), ("nodeagent", "agent")):
        code = f"import {program}.main, {program}.{rest}, sys; print('rich' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "False\n", program
