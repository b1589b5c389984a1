"""The alerts and the board of deploy/monitoring ask for figures that a control plane has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from controlplane.domain.conditions import ConditionName
from controlplane.gateway.rpcs import CallCounts
from controlplane.nodes.node_states import NodeState
from controlplane.startup.prometheus_metrics import figures, take
from controlplane.startup.web import known_of
from tests.unit.controlplane.rig import platform
from tools.monitoring_board import PANELS, board

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "deploy/monitoring"
RULES = yaml.safe_load((FOLDER / "nsml.rules.yml").read_text())["groups"][0]["rules"]
_SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_count", "_sum"),
    "info": ("_info",),
}
_METRIC = re.compile(r"\bnsml_[a-z_]+")
_MATCHER = re.compile(r'(\w+)=(~?)"([^"]*)"')
_WORDS = {"max", "min", "sum", "by", "or", "absent", "increase", "rate", "topk", "time", "up"} | {
    "histogram_quantile"
}

EXPRESSIONS = [
    *(rule["expr"] for rule in RULES),
    *(expr for *_, queries, _ in PANELS for expr, _ in queries),
]


@pytest.fixture
async def names() -> set[str]:
    async with platform() as rig:
        await (await rig.agent("a")).connect()
        found = figures(take(known_of(rig.plane.core), CallCounts(())))
        return {f"{one.name}{suffix}" for one in found for suffix in _SUFFIXES.get(one.type, ("",))}


async def test_every_figure_is_there(names: set[str]) -> None:
    asked = {name for expr in EXPRESSIONS for name in _METRIC.findall(expr)}
    assert len(asked) > 15
    assert asked - names == set()


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_an_expression_reads_as_one(expr: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert expr.count(opening) == expr.count(closing)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)|nsml_[a-z_]+|\d[\d.e+]*", " ", expr)
    assert set(re.findall(r"[a-z_]+", bare)) <= _WORDS


def test_every_condition_has_an_alert() -> None:
    """A node that is silent or has no room has figures of its own."""
    matched = {
        name
        for rule in RULES
        for label, _, value in _MATCHER.findall(rule["expr"])
        if label == "name"
        for name in value.split("|")
    }
    assert matched <= {one.value for one in ConditionName}
    of_their_own = {
        ConditionName.NODES_SILENT: "NsmlNodeSilent",
        ConditionName.JOIN_REFUSED: "NsmlJoinRefused",
    }
    assert set(of_their_own.values()) <= {rule["alert"] for rule in RULES}
    assert {one.value for one in ConditionName} - matched == {one.value for one in of_their_own}
    states = [
        value
        for rule in RULES
        for label, _, value in _MATCHER.findall(rule["expr"])
        if label == "state"
    ]
    assert set(states) <= {one.value for one in NodeState}


def test_every_alert_says_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "what"}
        assert re.fullmatch(r"\d+m", rule.get("for", "1m"))


def test_the_board_is_the_one_that_is_shipped() -> None:
    assert json.loads((FOLDER / "nsml.grafana.json").read_text()) == board()
