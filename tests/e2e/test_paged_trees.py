"""A dataset whose list of files is stored in pages, on a real platform: pushed, pulled, used, streamed, damaged and healed."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from pathlib import Path

from nsml.content.manifest import Manifest
from nsml.content.packing import pack
from tests.e2e.programs import write_program
from tests.support.in_process import Platform
from tests.support.living_folders import files_below

PROGRAM = """\
import hashlib, json, os, pathlib
import nsml

root, found = pathlib.Path("/data/long"), hashlib.sha256()
for path in sorted(root.rglob("*")):
    if path.is_file():
        found.update(str(path.relative_to(root)).encode() + path.read_bytes())
print(json.dumps([found.hexdigest()]), flush=True)
"""
STREAMS = """\
import json, os
import nsml

with nsml.open("long/" + os.environ["WANTED"], "rb") as file:
    print(json.dumps([file.read().hex()]), flush=True)
"""


def sha256_of(tree: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(tree)).encode() + path.read_bytes())
    return found.hexdigest()


def printed(platform: Platform, *run: str, cwd: Path) -> str:
    """What the program of a session has printed, which has ended well."""
    name = platform.nsml("run", "-g", "0", "--wait", "-o", "name", *run, cwd=cwd, timeout_s=180)
    lines = platform.nsml("logs", name.stdout.split()[-1]).stdout.splitlines()
    (found,) = [json.loads(line) for line in lines if line[:1] == "["]
    return found[0]


def damage(platform: Platform, digest: str) -> None:
    """Change a byte of a blob in the pack that has it: at the end of a pack stands where each one begins."""
    for path in files_below(platform.folder / "data/controlplane", "packs/*/*"):
        data = bytearray(path.read_bytes())
        at = data.rfind(bytes.fromhex(digest))
        if at >= 0:
            start, stored, _ = struct.unpack_from("<3Q", data, at + 32)
            data[start + stored // 2] ^= 1
            path.chmod(0o600)
            path.write_bytes(data)
            return
    raise AssertionError(f"no pack has {digest}")


def pages_of(manifest: Manifest) -> list[str]:
    return [page.digest for page in manifest.root.pages]


def test_a_tree_in_pages_is_pushed_used_and_healed(platform: Platform, tmp_path: Path) -> None:
    chance = random.Random(7)
    data, deep = tmp_path / "long", [chance.randbytes(100).hex() for _ in range(14)]
    data.joinpath(*deep).mkdir(parents=True)
    for number in range(700):
        place = data.joinpath(*deep[: 10 + number % 5])
        place.joinpath(f"{number}.bin").write_bytes(chance.randbytes(200))
    pages = pages_of(pack(data).manifest)
    assert len(pages) >= 2

    platform.nsml("dataset", "push", "long", str(data), timeout_s=180)
    assert "already is at version 1" in platform.nsml("dataset", "push", "long", str(data)).stdout
    platform.nsml("dataset", "pull", "long", str(tmp_path / "back"), timeout_s=180)
    assert sha256_of(tmp_path / "back/long") == sha256_of(data)

    (data / "one more").write_text("more")
    changed = pages_of(pack(data).manifest)
    assert len({*changed} - {*pages}) <= 3
    platform.nsml("dataset", "push", "long", str(data), timeout_s=180)
    (change,) = platform.json("dataset", "diff", "long@1", "long@2")["files"]
    assert (change["change"], change["path"]) == ("added", "one more")

    code = write_program(tmp_path / "code", PROGRAM)
    assert printed(platform, "-d", "long", cwd=code) == sha256_of(data)
    code = write_program(tmp_path / "streams", STREAMS)
    wanted = "/".join([*deep[:10], "0.bin"])
    found = printed(platform, "--stream", "long", "--env", f"WANTED={wanted}", cwd=code)
    assert found == (data / wanted).read_bytes().hex()

    damage(platform, min({*pages} & {*changed}))
    verified = platform.nsml("doctor", "storage", check=False, timeout_s=180)
    assert verified.returncode
    assert "root/long" in verified.stdout
    platform.nsml("dataset", "push", "long", str(data), timeout_s=180)
    assert platform.nsml("doctor", "storage", timeout_s=180).returncode == 0
