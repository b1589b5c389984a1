"""Three nodes that fetch one dataset together, and pass it on meanwhile, each killed again and again.

Whatever has its name is whole, and in the end all of them have it. NSML_SEED repeats one seed.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

import grpc.aio
import pytest

from controlplane.access.authority import make_authority
from nsml.client.trust import make_key, signing_request
from nsml.common.clock import SystemClock
from tests.integration.test_killed_fetches import Killing, check_named, made
from tests.unit.nodeagent.storage.test_datasets import until

NAMES = ("a", "b", "c")


async def run(seed: int, lab: Path, *, kills: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    platform = Killing()
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    version = made(rng)
    root = version.manifest.digest
    platform.blobs[root] = version.manifest.encode()
    for path, offset, ref in version.chunks:
        platform.blobs[ref.digest] = version.files[path][offset : offset + ref.size]
    authority = make_authority(SystemClock())
    (lab / "offers").mkdir()
    (lab / "authority.pem").write_bytes(authority.pem)
    for name in NAMES:
        make_key(lab / f"{name}.key")
        signed = authority.sign_node(name, signing_request(lab / f"{name}.key", name))
        (lab / f"{name}.pem").write_bytes(signed.certificate)

    async def started(name: str) -> asyncio.subprocess.Process:
        arguments = (str(port), str(lab), name, root)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.peering_program", *arguments)
        )

    async def killed(process: asyncio.subprocess.Process) -> None:
        process.kill()
        await process.wait()

    def is_done(name: str) -> bool:
        return (lab / f"{name}.done").exists()

    nodes = {name: await started(name) for name in NAMES}
    try:
        for _ in range(kills):
            name = rng.choice(NAMES)
            # at the moment when the platform has sent so much more, or all that it will
            sent = len(platform.sent) + rng.randrange(1, 200)
            await until(lambda sent=sent: len(platform.sent) >= sent or all(map(is_done, NAMES)))
            await killed(nodes[name])
            for one in NAMES:
                if (lab / one).exists():
                    check_named(lab / one, {root: version})
            nodes[name] = await started(name)
        await until(lambda: all(map(is_done, NAMES)))
    finally:
        for process in nodes.values():
            await killed(process)
        await server.stop(None)
    for name in NAMES:
        assert check_named(lab / name, {root: version}) == {root}


SEEDS = [int(os.environ["NSML_SEED"])] if "NSML_SEED" in os.environ else [1]


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(n, marks=pytest.mark.variant) for n in (2, 3))]
)
async def test_nodes_are_killed_while_they_fetch_from_one_another(
    seed: int, tmp_path: Path
) -> None:
    await run(seed, tmp_path, kills=2)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 120)]
)
async def test_the_same_for_long(seed: int, tmp_path: Path) -> None:
    await run(seed, tmp_path, kills=12)
