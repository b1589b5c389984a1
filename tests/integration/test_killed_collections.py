"""An object store whose control plane is killed again and again while versions come and go, what earlier versions stored is moved
into packs, and garbage is collected and packs are copied together.

What was acknowledged is whole, whatever is visible is whole, and in the end nothing takes room that nothing refers to.
NSML_SEED repeats one seed; NSML_STORAGE_KILLS: how often it is killed.
"""

import asyncio
import os
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from controlplane.objects.loose import ASIDE, NAMED
from controlplane.objects.maintenance import MANY_SMALL, SMALL_BYTES
from controlplane.objects.pack import key_of
from nsml.content.framing import frame
from tests.integration import collecting_program as program
from tests.integration.collecting_program import OWNER, open_world, tree

SEEDS = [int(os.environ["NSML_SEED"])] if "NSML_SEED" in os.environ else [1]
KILLS = int(os.environ.get("NSML_STORAGE_KILLS", "6"))
MOST_MOMENTS = 600
OLD = [-1, -2, -3]
NAMES = [f"d{number}" for number in range(program.NAMES)] + [f"old{seed}" for seed in OLD]


async def run(folder: Path, seed: int, moment: int) -> tuple[int, list[list[str]]]:
    """Run it until it dies or ends; its exit code, and what it has said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.collecting_program"),
        *(str(folder), str(seed), str(moment)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    lines = [line.split() for line in said.decode().splitlines()]
    # The rest is the log.
    return process.returncode, [one for one in lines if one[0] in {"made", "removing", "collected"}]


def store_loose(folder: Path, blobs: dict[str, bytes], under: str) -> None:
    for digest, data in blobs.items():
        path = folder / "objects" / under / digest[:2] / digest[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(frame(data))


async def begin(folder: Path) -> None:
    """As an earlier version left it: each blob a file; the trees of three datasets, and of none, one of these aside."""
    for seed, under in [*((one, NAMED) for one in [*OLD, -4]), (-5, ASIDE)]:
        store_loose(folder, tree(seed)[1], under)
    world = await open_world(folder)
    for seed in OLD:
        await world.note(f"old{seed}", seed)
    await world.history.close()


async def visible(folder: Path) -> dict[str, set[str]]:
    """The trees of all versions there are, by dataset; each was read, and is whole."""
    world = await open_world(folder)
    found = {}
    for name in NAMES:
        versions = await world.history.catalogue.dataset_versions(OWNER, name)
        found[name] = {one.version.message for one in versions}
    for one in set().union(*found.values()):
        root, blobs = tree(int(one))
        for digest, data in blobs.items():
            assert await world.objects.get(digest) == data, f"{digest} of {root}"
    await world.history.close()
    return found


async def check_room(folder: Path, left: set[str]) -> None:
    """Everything that is stored belongs to one of the trees."""
    world = await open_world(folder)
    wanted = {digest for one in left for digest in tree(int(one))[1]}
    assert {blob.digest async for blob in world.objects.list()} == wanted
    assert [blob async for blob in world.objects.list_aside()] == []
    packs = {key_of(pack.name): pack for pack in await world.history.packs.packs()}
    objects = folder / "objects"
    files = {str(path.relative_to(objects)) for path in objects.rglob("*") if path.is_file()}
    assert files - {"mark", "clock"} == packs.keys(), (
        "nothing unfinished is left, and no blob of its own"
    )
    assert sum(pack.stored < SMALL_BYTES for pack in packs.values()) < MANY_SMALL
    large = [pack for pack in packs.values() if pack.stored >= SMALL_BYTES]
    assert all(pack.used >= pack.stored // 2 for pack in large)
    await world.history.close()


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(n, marks=pytest.mark.variant) for n in (2, 3, 4))]
)
async def test_no_version_is_lost_and_no_room(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    await begin(tmp_path)
    needed: dict[str, set[str]] = defaultdict(set, {f"old{one}": {str(one)} for one in OLD})
    done: Counter[str] = Counter()
    for number in range(KILLS):
        moment = chance.randrange(1, MOST_MOMENTS)
        code, said = await run(tmp_path, chance.randrange(1 << 30), moment)
        assert code == -9
        for word, *names in said:
            done[word] += 1
            if word == "made":
                needed[names[0]].add(names[1])
            elif word == "removing":
                needed[names[0]].clear()
        print(number, moment, dict(done), flush=True)
        found = await visible(tmp_path)
        for name, wanted in needed.items():
            assert wanted <= found[name], name
    code, _ = await run(tmp_path, 0, 0)
    assert code == 0
    left = await visible(tmp_path)
    assert all(wanted <= left[name] for name, wanted in needed.items())
    await check_room(tmp_path, set().union(*left.values()))
    assert done["made"], "it did what it was killed in"
    assert done["collected"]
