"""A real platform on a bucket, whose node reads datasets there itself: what it may read, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.programs import wait_for
from tests.support.in_process import Platform
from tests.support.living_folders import files_below
from tests.support.s3 import S3Server, s3

__all__ = ["s3"]

SIZE = 6 << 20


@pytest.fixture
def platform(s3: S3Server) -> Iterator[Platform]:
    environment = {
        **s3.environment,
        "NSML_CONTROLPLANE_DIRECT_READS": "true",
        "NSML_CONTROLPLANE_OBJECTS": f"s3://{s3.bucket()}/p",
        "NSML_CONTROLPLANE_S3_ENDPOINT": s3.endpoint,
    }
    with Platform(simulate_gpus=1, environment=environment) as running:
        yield running


def made(folder: Path, seed: int) -> Path:
    """A dataset that is large enough to be fetched from the bucket."""
    rng = random.Random(seed)
    (folder / "test").mkdir(parents=True)
    for number in range(6):
        (folder / f"{number}").write_bytes(rng.randbytes(SIZE // 6))
    (folder / "test" / "label").write_bytes(rng.randbytes(100_000))
    return folder


def fetched(platform: Platform) -> tuple[int, int]:
    """Bytes of datasets that came from the control plane, and from the bucket."""
    (node,) = [one["name"] for one in platform.json("node", "ls")["items"]]
    shown = platform.json("node", "show", node)["dataset_bytes"]
    return shown["from_platform"], shown["from_bucket"]


def test_a_node_reads_from_the_bucket_only_what_it_may_read(platform: Platform) -> None:
    push, run = ("dataset", "push"), ("run", "--wait", "--no-code", "-g", "0", "--argv")
    folder = made(platform.folder / "pushed", 1)
    platform.nsml(*push, "all", str(folder))
    platform.nsml(*run, "-d", "all", "--", "test", "-f", "/data/all/test/label", timeout_s=120)
    whole = SIZE + 100_000
    wait_for(lambda: fetched(platform) == (0, whole), what="all of it came from the bucket")
    (tree,) = files_below(platform.folder / "data", "datasets/*.manifest")
    files = {p.relative_to(folder): p.read_bytes() for p in files_below(folder)}
    kept = tree.with_suffix("")
    assert {p.relative_to(kept): p.read_bytes() for p in files_below(kept)} == files
    # A URL of a pack would read the hidden file, too.
    platform.nsml(*push, "kin", str(made(platform.folder / "kin", 2)), "--hide", "test/label")
    platform.nsml(*run, "-d", "kin", "--", "test", "!", "-e", "/data/kin/test", timeout_s=120)
    wait_for(lambda: fetched(platform) == (SIZE, whole), what="none of it came from the bucket")
