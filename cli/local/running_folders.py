"""Data folders with running programs on this machine, wherever they are."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from cli.local.data_folder import AGENT, CONTEXT_NAME, CONTROL_PLANE, DataFolder
from nsml.client.contexts import ContextError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.app import App

_PROC = Path("/proc")


def folder_of_context(app: App) -> DataFolder | None:
    """Return the data folder of the platform that `nsml up` made the default for commands, if its programs run."""
    try:
        context = app.config.contexts.get(CONTEXT_NAME)
    except ContextError:  # what runs is stopped without it
        return None
    if context is None or not context.token_file:
        return None
    folder = DataFolder(Path(context.token_file).parent.parent)
    is_made_by_up = folder.admin_token == Path(context.token_file)
    return folder if is_made_by_up and is_running(folder) else None


def is_running(folder: DataFolder) -> bool:
    """Return whether a program of a data folder runs."""
    return any(folder.running(name) for name in (AGENT, CONTROL_PLANE))


def running_folders() -> list[DataFolder]:
    """Return the data folders with programs of this user that run, as `nsml up` and `nsml join` started them."""
    found = {file.parent: None for file in sorted(set(_settings_files()))}
    return [folder for folder in map(DataFolder, found) if is_running(folder)]


def _settings_files() -> Iterator[Path]:
    """Yield the settings files that processes of this user name: `nsml-agent --config DATA/agent.toml`."""
    for entry in os.scandir(_PROC):
        if not entry.name.isdecimal():
            continue
        try:
            if entry.stat().st_uid != os.geteuid():
                continue
            words = (_PROC / entry.name / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        for flag, value in pairwise(words):
            file = Path(os.fsdecode(value))
            if flag == b"--config" and file.name in {f"{AGENT}.toml", f"{CONTROL_PLANE}.toml"}:
                yield file
