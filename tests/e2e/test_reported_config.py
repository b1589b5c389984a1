"""What programs report as their configuration, written by the protocol alone, and how people see it."""

import json
from pathlib import Path

from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

WRITES = """\
import json, os, struct, sys, time, zlib

spool = os.path.join(os.environ["NSML_RUN_DIR"], "spool")
os.makedirs(spool, exist_ok=True)
number = next(n for n in range(1, 1000) if not os.path.exists(f"{spool}/{n}.records"))
out = open(f"{spool}/{number}.records", "xb", buffering=0)
out.write(b"NSMLREC1")
rate = float(sys.argv[1])
optimizer = {"name": "adam", "lr": rate}
records = [
    {"kind": "config", "origin": "wandb", "run": "", "values": {"optimizer": {"lr": 9}, "seed": 1}},
    {"kind": "config", "origin": "wandb", "run": "", "values": {"optimizer": optimizer, "api_key": "hunter2"}},
    {"kind": "metric", "step": 1, "values": {"loss": rate}, "summary": True, "origin": "wandb"},
]
for seq, record in enumerate(records, start=1):
    payload = json.dumps({**record, "time": time.time()}).encode()
    count = seq.to_bytes(8, "little")
    out.write(struct.pack("<II", len(payload), zlib.crc32(count + payload)) + count + payload)
"""


def test_a_reported_configuration_is_compared_and_goes_with_its_session(
    platform: Platform, tmp_path: Path
) -> None:
    code = write_program(tmp_path / "code", WRITES)
    for rate in ("0.1", "0.2"):
        platform.nsml("run", "-g", "0", "--wait", "-a", rate, cwd=code)
    names = [one["name"] for one in platform.json("ps", "-a")["items"]][::-1]

    def config(name: str) -> dict[str, object]:
        found = platform.json("status", "--explain", name)["reported_config"]
        return found["runs"][0]["values"] if found else {}

    wait_for(lambda: all(map(config, names)), what="both configurations are there")
    assert config(names[0]) == {
        "api_key": "***",
        "optimizer": {"name": "adam", "lr": 0.1},
        "seed": 1,
    }
    rows = {row["key"]: row for row in platform.json("diff", *names)["items"]}
    assert rows["optimizer.lr"]["kind"] == "config"
    assert rows["optimizer.lr"]["values"] == {names[0]: 0.1, names[1]: 0.2}
    assert "seed" not in rows
    shown = platform.nsml("diff", *names).stdout
    assert "Reported config" in shown
    assert "hunter2" not in shown + json.dumps(rows)
    [event] = platform.json("events", names[0])["items"]
    assert (event["metric"], event["origin"]) == ("loss", "wandb")

    archive = tmp_path / "session.tar.zst"
    platform.nsml("backup", names[0], "-o", str(archive))
    platform.nsml("rm", "-y", names[0])
    platform.nsml("restore", str(archive))
    [restored] = [one["name"] for one in platform.json("ps", "-a", "origin:restored")["items"]]
    assert config(restored)["optimizer"] == {"name": "adam", "lr": 0.1}
