"""A dashboard with the demo at one moment: the same whenever it is looked at."""

import importlib
import pkgutil

from textual.dom import DOMNode

import tui
from nsml.common.clock import SystemClock
from nsml.v1 import sessions_pb2 as pb
from nsml.view.filtering import Filter
from tui.app import Dashboard
from tui.demo.story import Demo
from tui.story import Player

AT = 1_767_607_200.0
"""Unix seconds."""


class Stopped(SystemClock):
    """A clock by which no story goes on."""

    def monotonic(self):
        return 0.0


def nowhere():
    raise RuntimeError("a story has no platform")


def demo(**options):
    """A dashboard of it."""
    player = Player(Demo(AT), Stopped())
    return Dashboard(nowhere, clock=player, platform="garden", player=player, **options)


def running(app):
    """Its sessions that run and have reported, oldest first."""
    found = [row.session for row in reversed(app.model.rows(Filter(""), AT))]
    return [one for one in found if one.state == pb.SESSION_STATE_RUNNING]


def parts():
    """Every class of the dashboard that can have bindings: screens, widgets and the app."""
    for module in pkgutil.walk_packages(tui.__path__, "tui."):
        if not module.name.startswith("tui.web"):  # what serves it shows nothing
            importlib.import_module(module.name)
    found, left = [], [DOMNode]
    while left:
        for part in left.pop().__subclasses__():
            left.append(part)
            if part.__module__.startswith("tui."):
                found.append(part)
    return sorted(set(found), key=lambda part: (part.__module__, part.__qualname__))
