"""What SECURITY.md says of settings, commands and files is so."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import click
import pytest

import controlplane.startup.config
import nodeagent.config
from cli.root import root
from controlplane.access.access_table import TABLE
from nodeagent.shim import seccomp

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
QUOTED = sorted(set(re.findall(r"`([^`]+)`", PAGE)))
AGENT = nodeagent.config.Settings.__struct_fields__
SETTINGS = {*AGENT, *controlplane.startup.config.Settings.__struct_fields__}


def agent(**changes: str) -> nodeagent.config.Settings:
    return nodeagent.config.Settings(
        node="n", server="unix:/s", data=Path("/d"), token_file=Path("/t"), **changes
    )


@pytest.mark.parametrize("name", [one for one in QUOTED if re.match(r"[a-z]+(_[a-z*]+)+\b", one)])
def test_a_setting_that_is_named_exists(name: str):
    setting, _, value = name.partition(" = ")
    assert [one for one in SETTINGS if fnmatchcase(one, setting)]
    if value:
        assert getattr(agent(**{setting: value.strip('"')}), setting) == value.strip('"')


@pytest.mark.parametrize("line", [one for one in QUOTED if one.startswith("nsml ")])
def test_a_command_that_is_named_exists(line: str):
    group: click.Command = root
    for word in line.split()[1:]:
        if not word.islower() or word.startswith("-") or not isinstance(group, click.Group):
            break
        found = group.get_command(click.Context(group), word)
        assert found is not None, line
        group = found


@pytest.mark.parametrize("place", [one for one in QUOTED if "/" in one and " " not in one])
def test_a_file_that_is_named_exists(place: str):
    assert (ROOT / place).exists()


def test_the_defaults_keep_what_the_page_says():
    assert agent().session_network == "auto"
    assert agent().host_network == "never"
    assert agent().allowed_images == ("*",)
    assert "169.254.169.254" in agent().metadata_addresses


def test_each_method_has_a_row_and_those_that_change_something_are_in_the_trail():
    changing = [method for method, row in TABLE.items() if row.change is not None]
    reading = {"Get", "List", "Find", "Read", "Watch", "Search", "Follow", "Explain"}
    verbs = {re.findall("[A-Z][a-z]+", method.rpartition("/")[2])[0] for method in changing}
    assert len(changing) > 30
    assert verbs.isdisjoint(reading)


def test_the_filter_refuses_what_the_changelog_says():
    named = {
        "io_uring_setup",
        "bpf",
        "perf_event_open",
        "keyctl",
        "add_key",
        "userfaultfd",
        "mount",
    }
    assert named <= set(seccomp.REFUSED)
