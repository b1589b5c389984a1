"""Libraries that read S3 read more of a streamed dataset than its node keeps: unmodified, on a real platform."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.e2e.programs import write_program
from tests.support.in_process import Platform
from tests.support.said import last_line
from tests.support.torch_environment import NEWER_LITDATA, require_torch

CACHE_BYTES = 64 << 20
SHARDS, SAMPLES, SAMPLE_BYTES = 9, 8, 1 << 20
"""Of each format of the dataset: more than a node keeps."""
LOADS_S = 240
"""So long may a session take, most of it to load torch on a busy machine, in seconds."""
READERS = {
    "webdataset": """\
import webdataset
webdataset.gopen_schemes["s3"] = lambda url, mode="rb", bufsize=0, **_: nsml.open(url, mode)
urls = [f"s3://data/tars/{shard}.tar" for shard in range(SHARDS)]
read["WebDataset"] = [
    (one["__key__"], one["bin"]) for one in webdataset.WebDataset(urls, shardshuffle=False)
]
""",
    "webdataset presigned": """\
import boto3, webdataset
from botocore.config import Config
client = boto3.client("s3", config=Config(signature_version="s3v4"))
urls = [
    client.generate_presigned_url("get_object", Params={"Bucket": "data", "Key": f"tars/{shard}.tar"})
    for shard in range(SHARDS)
]
read["WebDataset"] = [
    (one["__key__"], one["bin"]) for one in webdataset.WebDataset(urls, shardshuffle=False)
]
""",
}
"""Programs that read samples 0, 1, ... with a library that reads S3, and need no torch."""
TORCH_READERS = {
    "torch": """\
import webdataset
from torch.utils.data import DataLoader
from torchdata.nodes import IterableWrapper, Loader, Prefetcher
webdataset.gopen_schemes["s3"] = lambda url, mode="rb", bufsize=0, **_: nsml.open(url, mode)
urls = [f"s3://data/tars/{shard}.tar" for shard in range(SHARDS)]
tars = webdataset.WebDataset(urls, shardshuffle=False).to_tuple("__key__", "bin")
read["DataLoader"] = DataLoader(tars, batch_size=None, num_workers=2)
read["torchdata"] = Loader(Prefetcher(IterableWrapper(tars), 2))
""",
    "streaming": """\
from streaming import StreamingDataset
found = StreamingDataset(remote="s3://data/mds", local="mds", batch_size=1, shuffle=False)
read["MosaicML"] = [(one["i"], one["b"]) for one in found]
""",
    "litdata": """\
import io, tarfile
from litdata import StreamingDataset, StreamingRawDataset
read["litdata"] = [(one["i"], one["b"]) for one in StreamingDataset("s3://data/lit", cache_dir="lit")]
raw = StreamingRawDataset("s3://data/tars", cache_dir="raw")
tars = [tarfile.open(fileobj=io.BytesIO(raw[place])) for place in range(len(raw))]
read["litdata raw"] = [(one.name[:4], tar.extractfile(one).read()) for tar in tars for one in tar]
""",
    "newer litdata": """\
import sys
sys.path.insert(0, NEWER_LITDATA)
import litdata
from litdata.streaming import downloader
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
assert litdata.__file__.startswith(NEWER_LITDATA)
read["litdata"] = [
    (one["i"], one["b"]) for one in litdata.StreamingDataset("s3://data/lit", cache_dir="lit")
]
""",
    "tables": """\
import duckdb, fsspec, polars
s3 = fsspec.filesystem("s3")
duckdb.register_filesystem(s3)
url = "s3://data/table.parquet"
read["s3fs"] = polars.read_parquet(s3.open(url)).rows()
read["Polars"] = polars.scan_parquet(url).collect().rows()
read["DuckDB over s3fs"] = duckdb.sql(f"SELECT i, b FROM '{url}'").fetchall()
""",
}
"""More of them, for the environment with torch."""
SECOND_FORMS = {"webdataset presigned", "newer litdata"}
"""Those that read as another one does, by another way to sign or another version."""
READS_SAMPLES = """\
import json
from random import Random
import nsml

SHARDS, NEWER_LITDATA = {SHARDS}, {NEWER_LITDATA!r}
read = {{}}
{reader}
found = {{}}
for name, samples in read.items():
    numbers = [int(i) for i, data in samples if data == Random(int(i)).randbytes({SAMPLE_BYTES})]
    found[name] = sorted(numbers)
print(json.dumps(found), flush=True)
"""
WRITES_SAMPLES = """\
import sys
from random import Random
import polars
from litdata.streaming import Cache
from streaming import MDSWriter

folder, count, size, shard_bytes = sys.argv[1], *map(int, sys.argv[2:])
samples = [{"i": i, "b": Random(i).randbytes(size)} for i in range(count)]
columns = {"i": "int", "b": "bytes"}
with MDSWriter(out=f"{folder}/mds", columns=columns, size_limit=shard_bytes) as writer:
    for sample in samples:
        writer.write(sample)
cache = Cache(f"{folder}/lit", chunk_bytes=shard_bytes)
for i, sample in enumerate(samples):
    cache[i] = sample
cache.done()
cache.merge()
polars.DataFrame(samples).write_parquet(f"{folder}/table.parquet", row_group_size=8)
"""


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Samples in tars, in one folder of what is pushed."""
    pushed = tmp_path_factory.mktemp("tars")
    (pushed / "tars").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(pushed / f"tars/{shard}.tar", "w") as tar:
            for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
                data = Random(number).randbytes(SAMPLE_BYTES)
                facts = tarfile.TarInfo(f"{number:04}.bin")
                facts.size = len(data)
                tar.addfile(facts, io.BytesIO(data))
    yield pushed
    shutil.rmtree(pushed)


@pytest.fixture(scope="module")
def formats(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same samples in the format of each library."""
    python = require_torch()
    pushed = tmp_path_factory.mktemp("formats")
    shutil.copytree(tars, pushed, dirs_exist_ok=True, copy_function=os.link)
    sizes = [SHARDS * SAMPLES, SAMPLE_BYTES, SAMPLES * SAMPLE_BYTES]
    command = [python, "-c", WRITES_SAMPLES, str(pushed), *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, last_line(done.stderr)
    yield pushed
    shutil.rmtree(pushed)


def reads_more_than_the_node_keeps(
    platform: Platform, pushed: Path, code: Path, python: str, reader: str
) -> None:
    """Push the folder, and have a session read all samples of it."""
    platform.nsml("dataset", "push", "data", str(pushed), timeout_s=120)
    values = {"SHARDS": SHARDS, "SAMPLE_BYTES": SAMPLE_BYTES, "NEWER_LITDATA": str(NEWER_LITDATA)}
    write_program(code, READS_SAMPLES.format(**values, reader=reader))
    options = ("-f", "-g", "0", "--stream", "data", "--argv", "--", python, "main.py")
    said = platform.nsml("run", *options, cwd=code, timeout_s=LOADS_S).stdout
    (found,) = (json.loads(line) for line in said.splitlines() if line[:2] == '{"')
    assert found
    assert found == {name: list(range(SHARDS * SAMPLES)) for name in found}
    chunks = platform.folder / "data/agent/streamed/chunks"
    kept = sum(one.stat().st_size for one in chunks.glob("*/*"))
    assert CACHE_BYTES // 2 < kept <= CACHE_BYTES
    assert list((platform.folder / "data/agent/datasets").iterdir()) == []


@pytest.fixture(scope="module")
def small() -> Iterator[Platform]:
    """A platform whose node keeps little of what sessions read."""
    settings = {"NSML_AGENT_STREAM_CACHE_BYTES": str(CACHE_BYTES)}
    options = ["--isolation", "none"]  # what is installed here is where other levels see nothing
    with Platform(simulate_gpus=1, options=options, environment=settings) as running:
        yield running


def _marked(readers: dict[str, str]) -> list[object]:
    marks = {name: [pytest.mark.variant] if name in SECOND_FORMS else [] for name in readers}
    return [pytest.param(name, marks=marks[name]) for name in readers]


@pytest.mark.long("pushes more than a node keeps, and reads it")
@pytest.mark.parametrize("reader", _marked(READERS))
def test_what_trains_on_s3_reads_more_than_the_node_keeps(small, tars, tmp_path, reader):
    program = READERS[reader]
    reads_more_than_the_node_keeps(small, tars, tmp_path / "code", sys.executable, program)


@pytest.mark.long("libraries that load for seconds write more than a node keeps, and read it")
@pytest.mark.parametrize("reader", _marked(TORCH_READERS))
def test_what_trains_with_torch_reads_more_than_the_node_keeps(formats, small, tmp_path, reader):
    program = TORCH_READERS[reader]
    reads_more_than_the_node_keeps(small, formats, tmp_path / "code", require_torch(), program)
