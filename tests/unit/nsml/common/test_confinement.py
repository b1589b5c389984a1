"""What a process that was confined still can: neither read files of its account, nor touch other processes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import os, signal, socket, subprocess, sys
from nsml.common.confinement import confine
try:
    confine()
except OSError:
    sys.exit(77)
parent, file, folder = sys.argv[1:]

def tried(what, act):
    try:
        act()
    except OSError as error:
        print(what, type(error).__name__)
    else:
        print(what, "done")

tried("read", lambda: open(file).read())
tried("list", lambda: os.listdir(folder))
tried("write", lambda: open(os.path.join(folder, "made"), "w"))
tried("remove", lambda: os.unlink(file))
tried("execute", lambda: os.execv("/bin/sh", ["sh", "-c", "exit 0"]))
tried("memory", lambda: open(f"/proc/{parent}/mem", "rb"))
tried("environment", lambda: open(f"/proc/{parent}/environ", "rb").read())
tried("descriptors", lambda: os.listdir(f"/proc/{parent}/fd"))
tried("resolve", lambda: socket.getaddrinfo("localhost", 22))
import sqlite3, xml.dom.minidom
print("imports done")
"""


def test_a_confined_process_has_neither_files_nor_processes_of_its_account(tmp_path: Path) -> None:
    secret = tmp_path / "platform.key"
    secret.write_text("secret")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(os.getpid()), str(secret), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("this kernel has no Landlock")
    refused = "PermissionError"
    said = dict(line.split() for line in done.stdout.splitlines())
    assert said == {
        **dict.fromkeys(("read", "list", "write", "remove", "execute"), refused),
        **dict.fromkeys(("memory", "environment", "descriptors"), refused),
        "resolve": "done",
        "imports": "done",
    }, done.stderr
    assert secret.read_text() == "secret"
