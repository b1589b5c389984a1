"""What is said of programs that the system does not start."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nodeagent.shim.scripts import why_not_started


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"#!/bin/bash\r\necho hi\r\n", 0o755, r"interpreter '/bin/bash\r': it ends in CR LF"),
        (b"#! /nowhere/sh -e\n", 0o755, "interpreter '/nowhere/sh', which does not exist"),
        (b"#!/caf\xe9\n", 0o755, "which does not exist"),
        (b"#!/bin/sh\n", 0o644, "not executable (chmod +x"),
        (b"\xef\xbb\xbf#!/bin/sh\n", 0o755, "byte order mark"),
        (b"echo hi\n", 0o755, "a first line such as #!/bin/sh"),
    ],
)
@pytest.mark.parametrize("is_on_path", [True, False])
def test_the_reason_that_the_system_does_not_say(
    tmp_path: Path, content: bytes, mode: int, said: str, is_on_path: bool
) -> None:
    script = tmp_path / "train"
    script.write_bytes(content)
    script.chmod(mode)
    with pytest.raises(OSError) as refused:
        os.posix_spawn(script, [str(script)], {})
    program = "train" if is_on_path else str(script)
    path = f"/nowhere:{tmp_path}"
    assert said in why_not_started(program, path, refused.value.errno or 0)


def test_what_is_not_there_or_no_file_is_only_said_to_be_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "missing", "a\0b"):
        with pytest.raises((OSError, ValueError)) as refused:
            os.posix_spawn(str(tmp_path / name), [name], {})
        number = getattr(refused.value, "errno", 2) or 2
        assert why_not_started(str(tmp_path / name), "", number).startswith(os.strerror(number))
        assert why_not_started(name, str(tmp_path), number) == os.strerror(number)


def test_a_missing_program_by_its_path_may_be_outside_the_session() -> None:
    said = why_not_started("/home/kim/venv/bin/python", "", errno.ENOENT)
    assert said.startswith("No such file or directory (isolated sessions see")
    assert "isolated" not in why_not_started("venv/bin/python", "", errno.ENOENT)
