"""Builds of conda packages with the machine's micromamba, if any: the program, its channels, and the input of a build."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nodeagent.environments.errors import EnvironmentFailed
from nsml.packages.conda_reader import ALIAS, CHANNEL, DEFAULT_CHANNEL, channel_of, is_of_anaconda
from nsml.packages.locks import read_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsml.packages.requirements import CondaPackages

CHANNELS_RULE: Final = "names of channels, such as conda-forge, each with an https URL without user and password, or file:///FOLDER"
MISSING: Final = (
    "this node has no micromamba, which environment.yml needs: nsml run and nsml fork of this version ask for a node that"
    " has it; or list the packages in requirements.txt, or ask an administrator (the agent's setting micromamba)"
)
_OLDEST: Final = (2, 2)
"""2.1 is the first version that checks a lock's files by SHA-256, 2.2 the first that fills an empty folder."""
_PLACE: Final = re.compile(r"https://[^\s@]+|file:///[^\s@]+")
_ANSWERS_WITHIN_S: Final = 10.0
_MOST_BYTES: Final = 1_000


class Unusable(Exception):
    """An unusable micromamba; the message says why, for an administrator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conda:
    """The builder of conda packages: `channels` are the URLs of allowed channels, by name."""

    program: Path
    channels: Mapping[str, str]

    def replaced(self, wanted: CondaPackages) -> CondaPackages:
        """`wanted` with conda-forge in place of Anaconda's channels that this node lacks."""
        names = self._names()

        def known(channel: str) -> str:
            is_lacking = names.get(channel, channel) not in self.channels
            return DEFAULT_CHANNEL if is_lacking and is_of_anaconda(channel) else channel

        channels = dict.fromkeys(map(known, wanted.channels))
        specs = (
            f"{known(channel)}{spec.removeprefix(channel)}"
            if (channel := channel_of(spec))
            else spec
            for spec in wanted.specs
        )
        return replace(wanted, channels=tuple(channels), specs=tuple(dict.fromkeys(specs)))

    def _names(self) -> dict[str, str]:
        return {place.rstrip("/"): name for name, place in self.channels.items()}

    def places(self, wanted: CondaPackages) -> dict[str, str]:
        """The URLs of the wanted channels by name, highest priority first.

        Raises EnvironmentFailed for channels that this node lacks or does not allow.
        """
        names, found = self._names(), {}
        for one in (*wanted.channels, *(channel_of(spec) for spec in wanted.specs)):
            name = names.get(one, one)
            if one and name not in self.channels:
                raise EnvironmentFailed(
                    f"channel {one} is not allowed on this node, which allows"
                    f" {', '.join(self.channels) or 'none'}: take its packages from these in environment.yml, or ask"
                    " an administrator to allow it (the agent's setting conda_channels)"
                )
            if not one:
                continue
            found[name] = self.channels[name].rstrip("/")
            folder = _folder(found[name])
            if folder is not None and not folder.is_dir():
                raise EnvironmentFailed(
                    f"this node has no folder {folder}, which is to have channel {name}: take its packages from another"
                    " channel in environment.yml, or ask an administrator (the agent's setting conda_channels)"
                )
        for package in read_lock(wanted.lock) if wanted.lock else ():
            if package.channel and package.channel not in found:
                raise EnvironmentFailed(
                    f"the lock names channel {package.channel}, and the code does not"
                )
        return found

    def files(self, wanted: CondaPackages) -> dict[str, bytes]:
        """The installer's input. Raises EnvironmentFailed."""
        places = self.places(wanted)
        urls = {**{place: place for place in places.values()}, **places}
        specs = [
            spec.replace(f"{channel}::", f"{urls[channel]}::", 1)
            if (channel := channel_of(spec))
            else spec
            for spec in wanted.specs
        ]
        return {
            "channels.json": json.dumps(places).encode(),
            "specs.txt": "".join(f"{one}\n" for one in specs).encode(),
            "lock.txt": wanted.lock.encode(),
        }

    def folders(self) -> list[Path]:
        """Existing folders of this machine that are channels."""
        return [
            folder
            for place in self.channels.values()
            if (folder := _folder(place)) and folder.is_dir()
        ]


def find_conda(setting: str, channels: Mapping[str, str]) -> Conda | None:
    """The micromamba of the agent's setting, else on the PATH; None: there is none. Raises Unusable."""
    program = setting or shutil.which("micromamba")
    if not program:
        return None
    said = _version(program)
    found = re.match(r"([0-9]{1,6})\.([0-9]{1,6})", said)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST:
        raise Unusable(f"{program} is of version {said.strip()[:40]!r}: 2.2 or newer is needed")
    return Conda(program=Path(program).resolve(), channels=channels)


def _version(program: str) -> str:
    """The output of `--version`. Raises Unusable if the program does not run, prints without end or does not end."""
    try:
        running = subprocess.Popen(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Unusable(f"{program} does not run: {error}") from None
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)

    timer = threading.Timer(_ANSWERS_WITHIN_S, end)
    timer.start()
    with running:
        said = running.stdout.read(_MOST_BYTES) if running.stdout else b""
        if len(said) == _MOST_BYTES:
            end()
        status = running.wait()
    timer.cancel()
    if is_late.is_set():
        raise Unusable(f"{program} --version does not end: it was killed")
    if status:
        how = f"ended with exit code {status}" if status > 0 else f"was killed by signal {-status}"
        raise Unusable(f"{program} --version {how}")
    return said.decode(errors="replace")


def are_channels(setting: Mapping[str, str]) -> bool:
    """Whether a setting follows CHANNELS_RULE."""
    return all(
        CHANNEL.fullmatch(name) and ".." not in name and _PLACE.fullmatch(place)
        for name, place in setting.items()
    )


def _folder(place: str) -> Path | None:
    url = urlsplit(place)
    return Path(url.path) if url.scheme == "file" else None


DEFAULT_CHANNELS: Final = {DEFAULT_CHANNEL: f"{ALIAS}{DEFAULT_CHANNEL}"}
