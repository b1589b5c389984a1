"""Each row of the table of compatibility with NSML is checked: SDK facts by every supported Python."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.topics import TOPICS
from nsml._install import write_sdk
from nsml.spec.nsml_compat import COMMANDS, FACTS, PROJECT, SDK, TABLES, Fact, Verdict
from tests.unit.cli.conftest import (
    Nsml,
    environ,
    everything,
    home,
    nsml,
    project,
    running_server,
    server,
    state,
)
from tests.unit.compat import command_facts, project_facts, sdk_facts, table_facts
from tests.unit.compat.place import Place
from tests.unit.nsml.test_sdk_install import every_python

__all__ = ["environ", "everything", "home", "nsml", "project", "running_server", "server", "state"]
HERE = Path(__file__).parent
MODULES = {"project": project_facts, "command": command_facts, "table": table_facts}
REST = [*PROJECT, *COMMANDS, *TABLES]


@pytest.fixture(scope="module", params=every_python())
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What each fact of the SDK came to under one Python; "" where it holds."""
    folder = tmp_path_factory.mktemp("facts")
    write_sdk(folder / "sdk")
    names = [one.test for one in SDK]
    subprocess.run(
        [request.param, str(HERE / "sdk_facts.py"), str(folder / "results"), *names],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(folder / "sdk"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NSML_RUN_DIR": str(folder / "run"),
            "NSML_SESSION_NAME": "anna/digits/3",
        },
        timeout=120,
        check=True,
    )
    found: dict[str, str] = json.loads((folder / "results").read_text())
    return found


@pytest.mark.parametrize("fact", SDK, ids=lambda fact: fact.test)
def test_the_sdk(fact: Fact, results: dict[str, str]) -> None:
    assert results[fact.test] == ""


@pytest.mark.parametrize("fact", REST, ids=lambda fact: fact.test)
def test_the_command_line(fact: Fact, request: pytest.FixtureRequest) -> None:
    check: Callable[[Place], None] = getattr(MODULES[fact.section], fact.test)
    check(Place(request))


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    assert len({(one.section, one.test) for one in FACTS}) == len(FACTS)
    named = {section: {one.test for one in FACTS if one.section == section} for section in MODULES}
    for section, module in MODULES.items():
        checks = {name for name, made in vars(module).items() if is_check(made, module.__name__)}
        assert checks == named[section]
    facts = {name for name in vars(sdk_facts) if name in {one.test for one in SDK}}
    assert facts == {one.test for one in SDK}


def is_check(made: object, module: str) -> bool:
    """Whether this is a function of the module that takes a Place alone."""
    code = getattr(made, "__code__", None)
    is_public = code is not None and not getattr(made, "__name__", "_").startswith("_")
    return is_public and getattr(made, "__module__", "") == module


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.section}-{fact.test}")
def test_a_difference_is_explained(fact: Fact) -> None:
    assert bool(fact.here) == (fact.verdict is not Verdict.SAME)


def test_the_topic_has_every_fact() -> None:
    text = " ".join(TOPICS["nsml"]().split())
    assert [one.fact for one in FACTS if one.fact not in text] == []


def test_the_topic_is_printed(nsml: Nsml) -> None:
    assert nsml("help", "nsml").stdout == TOPICS["nsml"]().rstrip("\n") + "\n"
