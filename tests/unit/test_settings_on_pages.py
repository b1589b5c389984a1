"""Every setting that a page shows can be pasted into a settings file as it stands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from controlplane.startup import config as controlplane
from nodeagent import config as agent
from nsml.common.settings import SettingsError

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("*.md"),
    *ROOT.glob("*/README.md"),
    *ROOT.glob("controlplane/*/README.md"),
]
_HEREDOC = re.compile(r"^cat > (\S+\.toml) <<'END'\n(.*?)^END$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(?:toml)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([a-z0-9_]+ = [^`]+)`")
_OF_OTHERS = {"aws_access_key_id", "aws_secret_access_key", "listen_addresses", "preset", "current"}
"""The first name of what is no file of ours: the AWS tools', PostgreSQL's, the dashboard's keys, contexts."""

REQUIRED = {
    controlplane: {"data": "/nowhere"},
    agent: {"node": "gpu-1", "server": "127.0.0.1:18553", "data": "/nowhere"},
}


def files() -> list[tuple[str, str]]:
    """Whole settings files: page and text."""
    return [(page.name, text) for page in PAGES for _, text in _HEREDOC.findall(page.read_text())]


def settings() -> list[tuple[str, str]]:
    """Single settings and parts of files: page and text."""
    found = []
    for page in PAGES:
        text = page.read_text()
        blocks = [one for one in _BLOCK.findall(text) if re.match(r"[a-z0-9_]+ = ", one)]
        found += [(page.name, one) for one in (*blocks, *_INLINE.findall(text))]
    return [(page, one) for page, one in found if one.split(" ", 1)[0] not in _OF_OTHERS]


def problem(program: object, text: str, folder: Path) -> str:
    """What a program says of a settings file; "" where it takes it."""
    file = folder / "settings.toml"
    file.write_text(text)
    try:
        program.read_settings(file, {})  # type: ignore[attr-defined]
    except SettingsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("page", "text"), files())
def test_a_settings_file_is_taken_as_it_stands(page: str, text: str, tmp_path: Path) -> None:
    assert problem(controlplane, text, tmp_path) == ""


@pytest.mark.parametrize(("page", "text"), settings())
def test_a_setting_is_one_of_a_program(page: str, text: str, tmp_path: Path) -> None:
    """Of the control plane or of the agent: beside what they need in any case."""
    shown = tomllib.loads(text)
    said = []
    for program, needed in REQUIRED.items():
        others = {name: value for name, value in needed.items() if name not in shown}
        lines = "".join(f'{name} = "{value}"\n' for name, value in others.items())
        said.append(problem(program, lines + text, tmp_path))
    assert "" in said, said


def test_pages_are_read() -> None:
    assert len(files()) >= 2
    assert len(settings()) > 20
