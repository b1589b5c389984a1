"""The areas of the control plane: each is in the list, and what areas share is made once."""

from __future__ import annotations

import importlib
from pathlib import Path

import controlplane
from controlplane.access.access_table import TABLE
from controlplane.core.core import Core
from controlplane.core.dependencies import MemberConfig
from controlplane.plane import FEATURES, ControlPlane
from tests.support.platforms import ensure_cluster
from tests.unit.controlplane.rig import surroundings

STANDARD = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
"""Offered by the server itself."""


class Services:
    """Takes generic handlers, as a server does, and keeps the names of their services."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        del handlers  # the generated code says all of it a second time, below

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        assert handlers
        self.names.append(service)


def test_every_area_is_in_the_list_once() -> None:
    modules = [
        importlib.import_module(f"{controlplane.__name__}.{path.parent.name}.feature")
        for path in Path(controlplane.__file__).parent.glob("*/feature.py")
        if path.parent.name != "core"
    ]
    assert sorted(module.__name__ for module in modules) == sorted(
        wire.__module__ for wire in FEATURES
    )
    assert all(module.wire in FEATURES for module in modules)


async def test_areas_offer_each_service_of_the_access_table_once() -> None:
    async with surroundings() as on:
        cluster = await ensure_cluster(on, "embedded")
        plane = ControlPlane(on, MemberConfig(member="one", version="test"), cluster)
        server = Services()
        plane.add_services(server)
    assert sorted(server.names) == sorted({method.split("/")[1] for method in TABLE} - STANDARD)


async def test_what_areas_share_is_made_once() -> None:
    def part(core: Core) -> list[Core]:
        return [core]

    async with surroundings() as on:
        cluster = await ensure_cluster(on, "embedded")
        plane = ControlPlane(on, MemberConfig(member="one", version="test"), cluster)
        other = Core(on, MemberConfig(member="two", version="test"), cluster)
        made = plane.core.shared(part)
        assert made == [plane.core]
        assert plane.core.shared(part) is made
        assert other.shared(part) == [other]
