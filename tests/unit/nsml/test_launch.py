"""Command lines of launchers, and what runs on rank 0 for the whole gang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsml import _gang, _labelled
from nsml import _remote_start as remote
from nsml._launchers import LAUNCHERS, CannotLaunch, command_of, executable, variables_of
from nsml.spec.run_flags import LAUNCHER

ROOT = Path(__file__).parents[3]
REPLICA = {
    "NSML_WORLD_SIZE": "2",
    "NSML_RANK": "1",
    "NSML_GPU_NUM": "4",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "21000",
    "NSML_HOSTFILE": "/nsml/hostfile",
}
ALONE = {**REPLICA, "NSML_WORLD_SIZE": "1", "NSML_GPU_NUM": "0"}
PROGRAM = ["train.py", "--lr", "0.1"]


def test_the_words_of_the_flag_are_the_launchers() -> None:
    assert set(LAUNCHER.words) == {"none", *LAUNCHERS}


@pytest.mark.parametrize(
    ("launcher", "line"),
    [
        ("torchrun", "torchrun train.py --lr 0.1"),
        (
            "accelerate",
            (
                "accelerate launch --num_machines 2 --machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 21000"
                " --num_processes 8 --mixed_precision no --dynamo_backend no --multi_gpu train.py --lr 0.1"
            ),
        ),
        (
            "deepspeed",
            (
                "deepspeed --hostfile /nsml/hostfile --no_ssh --node_rank 1 --master_addr 10.0.0.1 --master_port 21000"
                " train.py --lr 0.1"
            ),
        ),
        ("mpirun", "mpirun --hostfile /nsml/hostfile --tag-output --map-by slot -n 8 python -u train.py --lr 0.1"),
        ("ray", "python -u train.py --lr 0.1"),
        ("jax", "python -u train.py --lr 0.1"),
    ],
)  # fmt: skip
def test_each_launcher_gets_its_command_line(launcher: str, line: str) -> None:
    assert " ".join(command_of(launcher, PROGRAM, REPLICA)) == line


def test_one_process_needs_no_multi_gpu() -> None:
    assert "--multi_gpu" not in command_of("accelerate", PROGRAM, ALONE)


def test_the_users_own_configuration_says_how_accelerate_trains() -> None:
    words = command_of("accelerate", PROGRAM, {**REPLICA, "ACCELERATE_CONFIG_FILE": "fsdp.yaml"})
    assert words[2:4] == ["--config_file", "fsdp.yaml"]
    assert "--num_processes" in words
    assert not {"--multi_gpu", "--mixed_precision"} & set(words), "these are in the file"


def test_an_entry_is_not_read_as_an_option() -> None:
    assert command_of("torchrun", ["-x.py"], REPLICA) == ["torchrun", "./-x.py"]


def test_accelerate_uses_the_cpu_only_without_gpus() -> None:
    assert variables_of("accelerate", REPLICA) == {}
    for without in (ALONE, {**REPLICA, "NSML_SIMULATED": "1"}):
        assert variables_of("accelerate", without) == {"ACCELERATE_USE_CPU": "true"}


def test_lines_of_accelerates_processes_are_told_apart() -> None:
    several = {**ALONE, "PET_NPROC_PER_NODE": "4"}
    found = variables_of("accelerate", several)
    assert found["PET_TEE"] == "3"
    words = command_of("accelerate", PROGRAM, {**several, **found})
    assert words[words.index("--tee") + 1] == "3"


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, "nsml: process 3 (local rank 1) ended with exit code 3\n"),
        (
            "import os; os.kill(os.getpid(), 9)",
            137,
            "nsml: process 3 (local rank 1) ended with signal 9\n",
        ),
        ("pass", 0, ""),
    ],
)
def test_a_process_of_deepspeed_that_fails_is_named(program: str, code: int, said: str) -> None:
    line = "from nsml import _labelled; import os, sys; sys.exit(_labelled.run(sys.argv[1:], os.environ))"
    text = f"print('a\\nb', end='', flush=True); {program}"
    ended = subprocess.run(
        [sys.executable, "-c", line, sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(ROOT), "RANK": "3", "LOCAL_RANK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (code, said)
    assert ended.stdout == "[rank3]: a\n[rank3]: b\n"


def test_lines_are_passed_on_when_they_are_complete() -> None:
    pieces = [b"one\ntw", b"o\r", b"\n 1%\r", b" 2%\rx", b"y" * (64 << 10), b"end"]
    assert list(_labelled.lines_of(pieces)) == [
        b"one\n",
        b"two\r\n",
        b" 1%\r",
        b" 2%\r",
        b"x" + b"y" * (64 << 10) + b"\n",
        b"end\n",
    ]


def test_variables_of_the_session_stay() -> None:
    several = {**REPLICA, "PET_NPROC_PER_NODE": "4"}
    assert variables_of("torchrun", several)["PET_TEE"] == "3"
    assert "PET_TEE" not in variables_of("torchrun", {**several, "PET_TEE": "0"})
    assert variables_of("torchrun", {**REPLICA, "PET_NPROC_PER_NODE": "1"}) == {}
    assert variables_of("jax", {**REPLICA, "NSML_ECHO": "wandb"}) == {"NSML_ECHO": "wandb,jax"}


def test_a_missing_launcher_is_named_with_its_package() -> None:
    with pytest.raises(CannotLaunch) as error:
        executable(["deepspeed", "train.py"])
    assert "not installed" in str(error.value)
    assert "deepspeed" in error.value.advice


def test_mpirun_finds_replicas_of_one_node_apart() -> None:
    addresses = [("10.0.0.1", 21000), ("10.0.0.1", 21001), ("10.0.0.2", 21002)]
    text = _gang.mpi_hosts(addresses, 2)
    assert text == "localhost slots=2\nnsml-rank-1 slots=2\nnsml-rank-2 slots=2\n"
    of_one_node = _gang.mpi_variables("agent", ["10.0.0.1", "10.0.0.1"])
    of_two = _gang.mpi_variables("agent", ["10.0.0.1", "10.0.0.2"])
    assert of_one_node["OMPI_MCA_btl"] == "^sm,vader"
    assert "OMPI_MCA_btl" not in of_two
    assert of_two["OMPI_MCA_plm_rsh_agent"] == of_two["PRTE_MCA_plm_ssh_agent"] == "agent"


def test_daemons_of_mpirun_use_the_interface_of_their_own_node() -> None:
    assert set(_gang.interface_variables("eth0").values()) == {"eth0"}
    assert _gang.interface_variables("") == {}
    line = 'prted --daemonize --prtemca oob_tcp_if_include "eth0" --prtemca ess env'
    assert remote._INTERFACE.sub(" ", line) == "prted --daemonize --prtemca ess env"
    of_four = "orted -mca oob_tcp_if_include eth0 -mca ess env"
    assert remote._INTERFACE.sub(" ", of_four) == "orted -mca ess env"


def test_ray_is_told_what_the_session_has() -> None:
    words = _gang.ray_options(
        {"NSML_GPU_NUM": "2", "NSML_CPU_NUM": "3.5", "NSML_MEMORY_BYTES": str(4 << 30)}
    )
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert (given["--num-gpus"], given["--num-cpus"]) == ("2", "3")
    assert int(given["--memory"]) + int(given["--object-store-memory"]) == 4 << 30
    assert "0" in _gang.ray_options({"NSML_GPU_NUM": "2", "NSML_SIMULATED": "1"})


def test_a_replica_without_the_secret_says_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    ended = subprocess.run(
        [sys.executable, "-m", "nsml._launch", "mpirun", "train.py"],
        cwd=tmp_path,
        env={**os.environ, **REPLICA, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 127
    assert "no secret in common" in ended.stderr
    assert "try: nsml run --rerun" in ended.stderr


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "nsml._launch", "torchrun", "train.py"],
        cwd=tmp_path,
        env={**os.environ, **REPLICA, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (
        127,
        "nsml: no such entry file: train.py",
    )


def test_deepspeed_processes_get_the_devices_of_the_session(tmp_path: Path) -> None:
    """DeepSpeed numbers them from 0, which are others' where all of a node's devices can be seen."""
    (tmp_path / "train.py").write_text(
        "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'], sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "nsml._launch", "--local_rank=1", "deepspeed-process", *PROGRAM],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "0,1",
            "NSML_VISIBLE_DEVICES": "GPU-a,GPU-b",
            "RANK": "3",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "[rank3]: GPU-a,GPU-b ['--local_rank=1', '--lr', '0.1']"
