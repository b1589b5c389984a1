"""The line by which people know how a program failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.shim.last_output import last_output

if TYPE_CHECKING:
    from pathlib import Path

_TRACEBACK = 'Traceback (most recent call last):\n  File "/app/main.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ("", ""),
        ("\n====\n\n", ""),
        ("epoch 1\n" + _TRACEBACK + "ValueError: nan\n", "ValueError: nan"),
        (_TRACEBACK + "KeyboardInterrupt\nwandb: synced\n", "KeyboardInterrupt"),
        (
            _TRACEBACK + "KeyError: 'a'\n\nDuring handling:\n\n" + _TRACEBACK + "app.Gone: b\n",
            "app.Gone: b",
        ),
        (_TRACEBACK + "RuntimeError: Error(s)\n\tMissing key(s)\n", "RuntimeError: Error(s)"),
        ('  File "main.py", line 1\n    x =\nSyntaxError: invalid', "SyntaxError: invalid"),
        ("usage: main.py\nmain.py: error: no --lr\n", "last output: main.py: error: no --lr"),
        ("10%\r 20%\x1b[K\r\x1b[31mgone wrong\x1b[0m\n-----\n", "last output: gone wrong"),
        ("x" * 40_000 + "\n" + "y" * 500, "last output: " + "y" * 387),
        (b"\xff half a letter", "last output: \ufffd half a letter"),
    ],
)
def test_an_exception_or_the_last_line_with_a_word(
    tmp_path: Path, printed: str | bytes, line: str
) -> None:
    output = tmp_path / "output"
    output.write_bytes(printed if isinstance(printed, bytes) else printed.encode())
    assert last_output(str(output)) == line


def test_of_what_is_no_log_nothing(tmp_path: Path) -> None:
    assert last_output(str(tmp_path / "output")) == ""
    (tmp_path / "link").symlink_to("/etc/hostname")
    assert last_output(str(tmp_path / "link")) == ""


def torchrun(rank: int, code: str, others: str = "") -> str:
    return f"""\
Traceback (most recent call last):
  File "/env/bin/torchrun", line 6, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
{others or "  <NO_OTHER_FAILURES>"}
------------------------------------------------------------
Root Cause (first observed failure):
{failure(rank, code)}
============================================================
"""


def failure(rank: int, code: str) -> str:
    return f"""\
[{rank}]:
  time      : 2026-11-30_21:57:28
  host      : gpu-1
  rank      : {rank} (local_rank: {rank % 2})
  exitcode  : {code}
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"""


def printed_by(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


RAISES = printed_by("[rank3]: [rank3]: ", _TRACEBACK + "ValueError: nan")
LOST = printed_by("[rank2]: [rank2]: ", _TRACEBACK + "RuntimeError: Connection closed by peer")
ENDED = failure(2, "-15 (pid: 7)  (SIGTERM)")
LABELLED = """\
nsml: process 2 (local rank 0) ended with exit code 1
nsml: process 3 (local rank 1) ended with exit code 1
[2026-11-30 22:10:50,206] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 23365
[2026-11-30 22:10:50,210] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = 1
"""
MPI_RAISES = printed_by("[1,2]<stderr>: ", _TRACEBACK + "ValueError: nan")
MPI_ABORT = """\
[1,2]<stderr>: ------------------------------------------------
[1,2]<stderr>: MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD
[1,2]<stderr>:   Proc: [[29404,1],2]
[1,2]<stderr>:   Errorcode: 3
[1,2]<stderr>:
------------------------------------------------
prterun has exited due to process rank 2 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
"""
MPI_EXIT = """\
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-4242@1,2]
   Exit code:    3
"""
MPI_KILLED = """\
prterun noticed that process rank 2 with PID 5818 on node vm exited on
signal 9 (Killed).
"""
MPI_4_KILLED = (
    "mpirun noticed that process rank 2 with PID 0 on node vm exited on signal 9 (Killed).\n"
)


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        pytest.param(
            RAISES + LOST + torchrun(3, "1 (pid: 9) ", ENDED),
            "process 3 (local rank 1): ValueError: nan",
            id="torchrun",
        ),
        pytest.param(
            RAISES.replace("line 3, in <module>", "line 3, in <module>\n[rank3]: epoch 0")
            + torchrun(3, "1 (pid: 9) ", ENDED),
            "process 3 (local rank 1): ValueError: nan",
            id="torchrun-both-streams",
        ),
        pytest.param(
            LOST + RAISES + torchrun(2, "1 (pid: 7) ", failure(3, "1 (pid: 9) ")),
            "process 3 (local rank 1): ValueError: nan",
            id="torchrun-both-at-one-look",
        ),
        pytest.param(
            LOST + torchrun(2, "1 (pid: 7) ", failure(3, "-15 (pid: 9)  (SIGTERM)")),
            "process 2 (local rank 0): RuntimeError: Connection closed by peer",
            id="torchrun-after-another-replica",
        ),
        pytest.param(
            LOST + torchrun(3, "-9 (pid: 9)  (SIGKILL)", ENDED),
            "process 3 (local rank 1): killed by SIGKILL",
            id="torchrun-killed",
        ),
        pytest.param(
            "[rank3]: no such file\n" + LOST + torchrun(3, "3 (pid: 9) ", ENDED),
            "process 3 (local rank 1): exit 3, last output: no such file",
            id="torchrun-exit",
        ),
        pytest.param(
            _TRACEBACK + "ValueError: nan\n" + torchrun(1, "1 (pid: 9) "),
            "process 1 (local rank 1): ValueError: nan",
            id="torchrun-lines-as-they-are",
        ),
        pytest.param(
            MPI_RAISES + MPI_ABORT,
            "process 2 (replica 1, local rank 0): ValueError: nan",
            id="mpirun",
        ),
        pytest.param(
            "[1,2]<stdout>: epoch 3\n[1,1]<stdout>: epoch 4\n" + MPI_ABORT,
            "process 2 (replica 1, local rank 0): exit 3, last output: epoch 3",
            id="mpirun-exit",
        ),
        pytest.param(
            MPI_RAISES + MPI_EXIT,
            "process 2 (replica 1, local rank 0): ValueError: nan",
            id="mpirun-no-abort",
        ),
        pytest.param(
            MPI_KILLED, "process 2 (replica 1, local rank 0): killed by SIGKILL", id="mpirun-killed"
        ),
        pytest.param(
            MPI_4_KILLED,
            "process 2 (replica 1, local rank 0): killed by SIGKILL",
            id="mpirun-4-killed",
        ),
    ],
)
def test_of_the_processes_of_a_launcher_the_first_to_fail_is_named(
    tmp_path: Path, printed: str, line: str
) -> None:
    output = tmp_path / "output"
    output.write_text(printed)
    assert last_output(str(output), 2) == line
