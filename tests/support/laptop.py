"""A machine without nsml, from which OpenSSH reaches sessions by a jump host."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Laptop:
    """A key, and a folder with the files of ssh; `lines` are those of `nsml ssh-config --jump`."""

    def __init__(self, folder: Path, lines: str) -> None:
        folder.mkdir()
        self.key = folder / "key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", folder.name, "-f", str(self.key)],
            check=True,
        )
        config, known_hosts = lines.split("\n\n")
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(known_hosts)
        everywhere = {
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "BatchMode": "yes",
        }
        self.config = folder / "config"
        more = "".join(f"    {name} {word}\n" for name, word in everywhere.items())
        self.config.write_text(f"{config}\n\nHost *\n{more}")
        # as on such a machine: nothing of nsml, no agent
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}

    @property
    def public_key(self) -> str:
        return str(self.key.with_suffix(".pub"))

    def run(self, program: str, *words: str, given: str = "") -> Done:
        """Run a program of OpenSSH to its end."""
        done = subprocess.run(
            [program, "-F", str(self.config), *words],
            capture_output=True,
            text=True,
            env=self.environment,
            input=given,
            check=False,
            timeout=120,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def connected(self, *words: str, command: str) -> Iterator[subprocess.Popen[str]]:
        """ssh with a command that has begun in a session; gone at the end."""
        process = subprocess.Popen(
            ["ssh", "-F", str(self.config), *words, f"echo begun; {command}"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if process.stdout.readline() != "begun\n":
                raise AssertionError(process.stderr.read())
            yield process
        finally:
            process.kill()
            process.communicate()
