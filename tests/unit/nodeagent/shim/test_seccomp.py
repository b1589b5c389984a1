"""The filter of system calls, run here as the kernel would, for each architecture."""

import errno
import os
import socket
import struct
import subprocess
import sys

import pytest

from nodeagent.shim import seccomp

ALLOWED = "allowed"
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
WHICH = {"x86_64": 0, "aarch64": 1}
CALLS = {
    "read": (0, 63), "clone": (56, 220), "ptrace": (101, 117), "execve": (59, 221),
    "process_vm_readv": (310, 270), "seccomp": (317, 277), "futex": (202, 98), "mbind": (237, 235),
    "personality": (135, 92), "socket": (41, 198),
}  # fmt: skip


def verdict(
    machine: str, number: int, argument: int = 0, architecture: int | None = None
) -> object:
    """What becomes of a call."""
    code = seccomp.program(machine)
    architecture = ARCHITECTURES[machine] if architecture is None else architecture
    data = struct.pack("=IIQ6Q", number, architecture, 0, argument, *[0] * 5)
    at = loaded = 0
    for _ in range(4096):
        operation, where_true, where_false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if operation == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:
            action, number = value & 0xFFFF0000, value & 0xFFFF
            if action == 0x50000:
                return errno.errorcode[number]
            return {0x7FFF0000: ALLOWED, 0x80000000: "killed"}[action]
        else:
            holds = {
                0x15: loaded == value,
                0x25: loaded > value,
                0x35: loaded >= value,
                0x45: bool(loaded & value),
            }[operation]
            at += where_true if holds else where_false
    raise AssertionError("the filter has no end")


@pytest.fixture(params=list(WHICH))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_refused_and_nothing_else(machine: str) -> None:
    which = WHICH[machine]
    refused = {pair[which] for pair in seccomp.REFUSED.values()} - {None}
    missing = {pair[which] for pair in seccomp.MISSING.values()}
    for number in range(seccomp.LAST_KNOWN + 2):
        expected = "EPERM" if number in refused else ALLOWED
        if number in missing or number > seccomp.LAST_KNOWN:
            expected = "ENOSYS"
        # a personality that is no question, a family that is no network's
        assert verdict(machine, number) == expected, number


def test_programs_may_debug_and_fork(machine: str) -> None:
    numbers = {name: pair[WHICH[machine]] for name, pair in CALLS.items()}
    assert {name: verdict(machine, number, 0) for name, number in numbers.items()} == dict.fromkeys(
        numbers, ALLOWED
    )


@pytest.mark.parametrize(
    ("call", "argument", "expected"),
    [
        ("clone", 0x3D0F00, ALLOWED),  # a thread
        ("clone", 0x10000000, "EPERM"),
        ("clone", 0x40000011, "EPERM"),
        ("clone", 0x02000000, "EPERM"),
        ("socket", 1, ALLOWED),
        ("socket", 10, ALLOWED),
        ("socket", 38, "EAFNOSUPPORT"),
        ("socket", 40, "EAFNOSUPPORT"),
        ("personality", 0xFFFFFFFF, ALLOWED),
        ("personality", 0x40000, ALLOWED),
        ("personality", 0x400000, "EPERM"),
    ],
)
def test_calls_that_hang_on_an_argument(
    machine: str, call: str, argument: int, expected: str
) -> None:
    assert verdict(machine, CALLS[call][WHICH[machine]], argument) == expected


def test_other_architectures_end_the_program_and_x32_is_not_there(machine: str) -> None:
    assert verdict(machine, 0, architecture=0x40000003) == "killed"
    assert verdict(machine, 0, architecture=0x40000028) == "killed"
    assert verdict(machine, 0x40000000) == "ENOSYS"
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program("riscv64")


@pytest.mark.skipif(os.uname().machine not in ARCHITECTURES, reason="no filter for this machine")
def test_the_filter_is_assembled_once() -> None:
    assert seccomp.assemble() is seccomp.assemble()


def test_what_forks_shims_has_assembled_it_before_the_first() -> None:
    code = (
        "import os; from nodeagent.shim import seccomp, zygote\n"
        "zygote.serve = lambda _: os.write(1, str(len(seccomp._assembled)).encode())\n"
        "zygote.main()"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = theirs.fileno()
        done = subprocess.run(
            [sys.executable, "-c", code, str(number)],
            capture_output=True,
            check=True,
            pass_fds=[number],
        )
    assert done.stdout == (b"1" if os.uname().machine in ARCHITECTURES else b"0")
