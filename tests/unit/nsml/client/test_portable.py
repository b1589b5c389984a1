"""The client is for every laptop: it works where Unix has left out of Python what it needs."""

import subprocess
import sys
from pathlib import Path

from tests.unit.nsml.client.contract_server import TOKEN

ROOT = Path(__file__).parents[4]

HIDE = """
import sys, asyncio, socket  # asyncio has a Windows half of its own
for name in ("fcntl", "pwd", "grp", "termios", "tty", "resource"):
    sys.modules[name] = None
if hasattr(socket, "AF_UNIX"):  # asyncio's own pair stays: Windows makes it of TCP
    pair, unix = socket.socketpair, socket.AF_UNIX
    socket.socketpair = lambda *_: pair(unix)
    del socket.AF_UNIX
import os
for name in ("getuid", "geteuid", "getpwuid", "fork", "O_NOFOLLOW", "O_DIRECTORY", "fchmod"):
    if hasattr(os, name):
        delattr(os, name)
"""


def hidden(script, *arguments, env=None):
    return subprocess.run(
        [sys.executable, "-c", HIDE + script, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )


def test_every_module_imports():
    done = hidden(
        """
import importlib, pathlib
for folder in ("nsml/client", "nsml/view", "nsml/content"):
    for file in sorted(pathlib.Path(folder).glob("*.py")):
        importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__"))
print("all")
"""
    )
    assert done.stdout == "all\n", done.stderr


def test_the_command_line_works(server, tmp_path):
    server.state.add("kim/mnist/1")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    env = {
        "NSML_SERVER": server.address,
        "NSML_TOKEN_FILE": str(tmp_path / "token"),
        "NSML_CONFIG_DIR": str(tmp_path),
        "PATH": "",
    }
    done = hidden("from cli.main import main; main()", "ps", "-o", "name", env=env)
    assert (done.stdout, done.stderr) == ("kim/mnist/1\n", "")
