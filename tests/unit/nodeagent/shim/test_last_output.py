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
