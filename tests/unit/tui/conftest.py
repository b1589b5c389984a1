"""Dashboards on a platform that keeps the contract."""

import asyncio
import time
from functools import partial

import pytest
from textual._context import active_app
from textual.css.stylesheet import Stylesheet

from nsml.client.connect import connect
from nsml.client.contexts import Context
from nsml.common.clock import SystemClock
from tests.unit.nsml.client.contract_server import TOKEN, ContractServer
from tui.app import Dashboard

TURNS = 3
"""So many of the loop in a row must find nothing to do before a dashboard counts as at rest."""


async def _rest(_least_s=0.0, most_s=1.0):
    """Wait until nothing is left to do but what waits for time, a thread or the network, and all is drawn."""
    app, loop, ends_at = active_app.get(), asyncio.get_running_loop(), time.monotonic() + most_s
    idle = 0
    while idle < TURNS and time.monotonic() < ends_at:
        await asyncio.sleep(0)
        idle += 1
        if loop._ready:
            idle = 0
        elif app._screen_stack and app.screen._update_timer._active.is_set():
            app.screen._on_timer_update()
            idle = 0


@pytest.fixture(autouse=True)
def _rest_is_seen_in_the_loop(monkeypatch):
    """Textual takes a processor that idles for rest: on a busy machine that is a second for each key."""
    monkeypatch.setattr("textual.app.wait_for_idle", _rest)
    monkeypatch.setattr("textual.pilot.wait_for_idle", _rest)


_parse_rules = Stylesheet._parse_rules
_parsed = {}


def _parse_once(sheet, css, read_from, is_default_rules=False, tie_breaker=0, scope=""):
    """Parse the same rules once for all dashboards of a process: each of them would parse 15,000 tokens."""
    source = css, read_from, is_default_rules, tie_breaker, scope
    key = source, frozenset(sheet._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, *source)
    return _parsed[key]


@pytest.fixture(autouse=True)
def _rules_are_parsed_once(monkeypatch):
    monkeypatch.setattr(Stylesheet, "_parse_rules", _parse_once)


@pytest.fixture
def server():
    with ContractServer() as running:
        yield running


@pytest.fixture
def dashboard(make_dashboard):
    return make_dashboard()


@pytest.fixture
def make_dashboard(server, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    context = Context(name="test", server=server.address, token_file=str(token))
    return partial(
        Dashboard,
        lambda: connect(context),
        clock=SystemClock(),
        platform="test",
        sign_in_with="nsml login gpu.lab",
        token=context.token,
    )


WITHIN_S = 60.0


def said(app):
    """What is on the screen."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot, holds):
    """Wait until something holds of what is on the screen."""
    ends_at = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < ends_at, said(pilot.app)
        await pilot.pause(0.02)


async def shows(pilot, *texts):
    """Wait until all of these are on the screen."""
    await until(pilot, lambda: all(text in said(pilot.app) for text in texts))
