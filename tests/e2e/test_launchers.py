"""Programs that several processes train with real torch, started as their users start them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nemesis import ENDED
from tests.e2e.programs import wait_for
from tests.support.in_process import Platform

REQUIREMENTS = "torch==2.13.0\nlightning\naccelerate\n"

PROGRAMS = {
    "reduce.py": """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(f"process {dist.get_rank()} of {dist.get_world_size()}, sum {int(total)}")
dist.destroy_process_group()
""",
    "state.py": """\
from accelerate import PartialState

state = PartialState(cpu=True)
print(f"process {state.process_index} of {state.num_processes}")
""",
    "fit.py": """\
import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


trainer = lightning.Trainer(
    accelerator="cpu", devices=int(sys.argv[1]), num_nodes=int(sys.argv[2]), strategy="ddp",
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8))
print(f"process {trainer.global_rank} of {trainer.world_size}")
""",
}


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=4, options=["--isolation", "namespace"]) as running:
        yield running


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "requirements.txt").write_text(REQUIREMENTS)
    for name, program in PROGRAMS.items():
        (folder / name).write_text(program)
    return folder


TORCHRUN = ["--argv", "--", "torchrun"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "gpus", "command", "processes"),
    [
        pytest.param(1, 2, [*TORCHRUN, "reduce.py"], 2, id="torchrun"),
        pytest.param(2, 2, [*TORCHRUN, "reduce.py"], 4, id="torchrun in a gang"),
        pytest.param(2, 1, ["-e", "reduce.py"], 2, id="a process each"),
        pytest.param(1, 2, ["-e", "state.py"], 1, id="accelerate alone"),
        pytest.param(1, 2, ["-e", "fit.py", "--", "2", "1"], 2, id="Lightning"),
        pytest.param(2, 2, ["-e", "fit.py", "--", "2", "2"], 4, id="Lightning in a gang"),
        pytest.param(2, 1, ["-e", "fit.py", "--", "1", "2"], 2, id="Lightning, one each"),
    ],
)
def test_each_device_has_a_process(
    platform: Platform, code: Path, replicas: int, gpus: int, command: list[str], processes: int
) -> None:
    options = ["-o", "name", "-g", str(gpus), "--nodes", str(replicas), "--time-limit", "10m"]
    name = platform.nsml("run", *options, *command, cwd=code).stdout.strip()

    def ended() -> dict | None:
        item = platform.json("ps", "-a")["items"][0]
        return item if item["state"] in ENDED else None

    item = wait_for(ended, timeout_s=600, what=f"{name} ended")
    logs = [platform.nsml("logs", name, "--rank", str(rank)).stdout for rank in range(replicas)]
    assert item["state"] == "SUCCEEDED", (item.get("end"), logs)
    # one process may write between the text and the end of line of another
    started = sorted(re.findall(r"process \d of \d(?:, sum \d+)?", "".join(logs)))
    total = f", sum {sum(range(processes + 1))}" if "reduce.py" in command else ""
    assert started == [f"process {one} of {processes}{total}" for one in range(processes)], logs
