"""Damaged packs of a real platform are repaired from what its node has: datasets, one of them streamed, and a checkpoint."""

from __future__ import annotations

import json
import random
from pathlib import Path

from nsml.content.packing import pack
from tests.e2e.programs import wait_for, write_program
from tests.e2e.test_paged_trees import damage
from tests.support.in_process import Platform

PROGRAM = """\
import pathlib, sys, time
import nsml

def save(folder):
    (pathlib.Path(folder) / "weights").write_bytes(bytes(range(256)) * 40)

nsml.open("flowing/one.bin", "rb").read()
nsml.bind(save=save)
nsml.save("best")
while True:
    time.sleep(0.1)
"""


def test_a_node_gives_back_what_the_store_has_lost(platform: Platform, tmp_path: Path) -> None:
    chance, data = random.Random(5), tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    for number in range(40):
        (data / "deep" / f"{number}.bin").write_bytes(chance.randbytes(5_000))
    (data / "large.bin").write_bytes(chance.randbytes(3 << 20))
    packed = pack(data)
    platform.nsml("dataset", "push", "mended", str(data), timeout_s=180)
    streamed = tmp_path / "streamed"
    streamed.mkdir()
    (streamed / "one.bin").write_bytes(chance.randbytes(100_000))
    platform.nsml("dataset", "push", "flowing", str(streamed), timeout_s=180)
    code = write_program(tmp_path / "code", PROGRAM)
    of_data = ("-d", "mended", "--stream", "flowing")
    run = platform.nsml("run", "-g", "0", *of_data, "-o", "name", cwd=code, timeout_s=180)
    name = run.stdout.split()[-1]

    def durable() -> bool:
        found = platform.json("model", "ls", name)["items"]
        return [one["state"] for one in found] == ["DURABLE"]

    wait_for(durable, what="the checkpoint is durable")
    (checkpoint,) = platform.json("model", "ls", name)["items"]

    chunks = sorted(packed.manifest.blobs())
    large = next(one for one in packed.manifest.entries if one.path == "large.bin")
    for digest in (chunks[0], large.chunks[1].digest, packed.manifest.root.digest):
        damage(platform, digest)
    flowing = pack(streamed).manifest
    ((in_cache, _),) = flowing.blobs().items()
    damage(platform, in_cache)
    damage(platform, checkpoint["digest"])
    assert platform.nsml("doctor", "storage", check=False, timeout_s=180).returncode == 1
    pulled = platform.nsml(
        "dataset", "pull", "mended", str(tmp_path / "broken"), check=False, timeout_s=180
    )
    assert pulled.returncode

    told = platform.nsml("doctor", "storage", "--repair", "-j", timeout_s=180).stdout
    items = {one["digest"]: one for one in json.loads(told)["items"]}
    mended = items[packed.manifest.root.digest]
    assert mended["names"] == [f"{name.split('/')[0]}/mended@1"]
    assert len(mended["repaired"]) == 3
    assert all(one["from"].startswith("node ") for one in mended["repaired"])
    assert [one["digest"] for one in items[flowing.root.digest]["repaired"]] == [in_cache]
    saved = items[checkpoint["digest"]]
    assert saved["names"] == [f"{name} best"]
    assert [one["digest"] for one in saved["repaired"]] == [checkpoint["digest"]]
    assert not [one for one in items.values() if one["lost"]]

    platform.nsml("dataset", "pull", "mended", str(tmp_path / "again"), timeout_s=180)
    assert pack(tmp_path / "again" / "mended").manifest.root.digest == packed.manifest.root.digest
    assert platform.nsml("doctor", "storage", timeout_s=180).returncode == 0
    platform.nsml("stop", name, "-y", check=False)
