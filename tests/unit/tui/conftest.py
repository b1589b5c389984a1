"""Dashboards on a platform that keeps the contract."""

import time
from functools import partial

import pytest

from nsml.client.connect import connect
from nsml.client.contexts import Context
from nsml.clock import SystemClock
from tests.unit.nsml.client.contract_server import TOKEN, ContractServer
from tui.app import Dashboard


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
    context = Context(name="test", server=server.address, token_file=str(token))
    return partial(Dashboard, lambda: connect(context), clock=SystemClock(), platform="test")


WITHIN_S = 30.0


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
