"""Where a fact of the command line is checked: a user's folder and a platform of recorded answers."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.conftest import Nsml, Result


class Place:
    """The fixtures that a fact asks for, each made at its first use."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    @cached_property
    def state(self) -> Any:
        """What the platform has."""
        return self._request.getfixturevalue("state")

    @cached_property
    def session(self) -> pb.Session:
        """kim/mnist/1, which runs, has the checkpoint `best` and reported; and the dataset mnist."""
        found: pb.Session = self._request.getfixturevalue("everything")
        return found

    @cached_property
    def folder(self) -> Path:
        """The current folder, with main.py."""
        found: Path = self._request.getfixturevalue("project")
        return found

    def nsml(self, *words: str, **named: Any) -> Result:
        """Run a command line."""
        run: Nsml = self._request.getfixturevalue("nsml")
        return run(*words, **named)

    def in_style(self, *words: str, **named: Any) -> Result:
        """Run a command line in the style of NSML."""
        return self.nsml(*words, NSML_STYLE="nsml", **named)

    def run(self, *words: str, **named: Any) -> pb.SessionSpec:
        """Submit the folder and return what was asked for."""
        assert self.folder.is_dir()
        self.nsml("run", *words, **named)
        return self.newest.spec

    @property
    def newest(self) -> pb.Session:
        """The session that was made last."""
        found: pb.Session = list(self.state.sessions.values())[-1]
        return found

    def ended(self, name: str = "kim/mnist/1", **fields: Any) -> pb.Session:
        """Another session, which has ended."""
        found: pb.Session = self.state.add(name, pb.SESSION_STATE_SUCCEEDED, **fields)
        return found

    def rows(self, *words: str) -> dict[str, str]:
        """The cells of the first row of a table in the style of NSML, by the titles of their columns."""
        header, rule, first, *_ = self.in_style(*words).stdout.splitlines()
        cells, at = {}, 0
        for dashes in rule.split("  "):
            end = at + len(dashes)
            cells[header[at:end].strip()] = first[at:end].strip()
            at = end + 2
        return cells

    def json(self, *words: str, **named: Any) -> Any:
        """What a command line prints as JSON."""
        return json.loads(self.nsml(*words, **named).stdout)
