"""Configurations that programs report: whatever they write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.identity import NodeCaller
from controlplane.domain.values import SessionStage
from controlplane.history.records import MAX_DEPTH
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, StreamKey
from controlplane.records.ingest import Ingestor
from controlplane.records.reported_config import (
    MOST_KEY_CHARS,
    MOST_RUN_CHARS,
    MOST_TEXT_CHARS,
    Config,
    config_of,
    configs_in,
    restored_config,
)
from nsml.common.clock import SystemClock, inline
from nsml.spec.reported_config import MOST_BYTES, MOST_LEAVES
from tests.unit.controlplane.builders import session as made

if TYPE_CHECKING:
    from controlplane.domain.values import Session

KEY = StreamKey("s1", 2, 0, Channel.METRIC)


def told(values: Any, **fields: Any) -> bytes:
    record = {"kind": "config", "time": 1.0, "origin": "wandb", "run": "", "values": values}
    return json.dumps({**record, **fields}).encode()


def chunk(*records: bytes, first: int = 1) -> Chunk:
    return Chunk(stream=KEY, first=first, last=first + len(records) - 1, records=records)


def read(config: Config) -> dict[str, Any]:
    return {one.name: json.loads(one.value) for one in config.values}


def cleaned(values: Any) -> Config:
    return config_of("s1", ("wandb", ""), values)


def test_a_record_is_read_with_its_place() -> None:
    values = {
        "lr": 0.1,
        "optimizer": {"name": "adam", "betas": [0.9, 0.999]},
        "none": None,
        "on": True,
    }
    report = b'{"kind":"metric","time":1.0,"values":{"config":1}}'
    [config] = configs_in(chunk(report, told(values, run="second"), first=7))
    assert read(config) == values
    assert not config.is_cut
    assert [one.leaves for one in config.values] == [1, 2, 1, 1]
    first = config.values[0]
    assert (first.origin, first.run) == ("wandb", "second")
    assert (first.attempt, first.time, first.position) == (2, 1.0, 8)


@pytest.mark.parametrize(
    "fields",
    [
        *({"origin": one} for one in ("", "W&B", "w" * 33, "a b", "a\n", 5, None)),
        *({"time": one} for one in (-1, 1 << 40, "x", None)),
        *({"values": one} for one in ([1], "x", None, 3)),
        *({"run": one} for one in (5, None, ["x"])),
    ],
)
def test_what_is_no_configuration_is_skipped(fields: dict[str, Any]) -> None:
    record = told(**{"values": {"lr": 1}, **fields})
    good = told({"lr": 2})
    assert [read(one) for one in configs_in(chunk(record, good))] == [{"lr": 2}]
    assert not list(configs_in(chunk(b'{"kind":"config"', b'\xff"config"', b'["config"]')))


def test_values_too_deep_are_left_out_and_cost_no_other() -> None:
    deep: Any = 1
    lists: Any = 1
    for _ in range(MAX_DEPTH + 4):
        deep, lists = {"x": deep}, [lists]
    config = cleaned({"deep": deep, "lists": lists, "lr": 0.5})
    found = read(config)
    assert found.keys() == {"lists", "lr"}
    assert found["lr"] == 0.5
    assert config.is_cut
    assert next(one for one in config.values if one.name == "lists").is_cut
    text = b'{"kind":"config","time":1,"origin":"wandb","values":{"a":%s}}'
    for hostile in (b"[" * 200_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000):
        assert not list(configs_in(chunk(text % hostile)))


def test_of_a_million_keys_the_first_are_kept() -> None:
    config = cleaned({f"k{number}": number for number in range(1_000_000)})
    assert len(config.values) == MOST_LEAVES
    assert config.is_cut
    nested = cleaned({"all": {str(number): number for number in range(1_000_000)}, "lr": 1})
    [one] = nested.values
    assert one.leaves == MOST_LEAVES == len(json.loads(one.value))
    assert one.is_cut
    assert nested.is_cut


def test_long_texts_and_names_are_cut_and_the_sum_is_limited() -> None:
    config = cleaned(
        {"text": "x" * 1_000_000, "k" * (MOST_KEY_CHARS + 1): 1, "a": {"n" * 600: 1, "b": 2}}
    )
    found = read(config)
    assert len(found["text"]) == MOST_TEXT_CHARS + 1
    assert found["a"] == {"b": 2}
    assert len(found) == 2
    assert config.is_cut
    assert all(one.is_cut for one in config.values)
    many = cleaned({f"k{number}": "x" * MOST_TEXT_CHARS for number in range(200)})
    assert sum(one.size_bytes for one in many.values) <= MOST_BYTES
    assert many.is_cut
    assert many.values
    run = config_of("s1", ("wandb", "r" * 10_000), {"lr": 1})
    assert len(run.values[0].run) == MOST_RUN_CHARS
    assert run.is_cut


def test_numbers_that_json_has_not_are_the_texts_of_the_protocol() -> None:
    values = {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": "NaN", "e": 1 << 70}
    texts = {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": "NaN", "e": 1 << 70}
    assert read(cleaned(values)) == texts
    huge = cleaned({"a": 10**400, "b": [10**400, 1]})
    assert read(huge) == {"b": [1]}
    assert huge.is_cut


def test_control_characters_are_escaped_in_names_and_stored_by_any_database_in_texts() -> None:
    config = config_of(
        "s1", ("wandb", "a\0b\x1b"), {"a\0\x1b[2J\u202e\n": "x\0y\ud800\x1b", "l": [{"\0": "\0"}]}
    )
    one, in_list = config.values
    assert one.run == "a\\x00b\\x1b"
    assert one.name == "a\\x00\\x1b[2J\\xe2\\x80\\xae\\x0a"
    assert json.loads(one.value) == "x\ufffdy?\x1b"
    for text in (one.name, one.run, one.value, in_list.value):
        assert "\0" not in text
        text.encode()


def test_texts_of_secrets_are_hidden() -> None:
    values = {
        "api_key": "k",
        "hub": {"hub_token": "t", "url": "u"},
        "passwords": ["a", "b"],
        "list": [{"password": "p", "n": 1}],
        "empty_password": "",
        "eos_token": "</s>",
        "max_token": 5,
        "secret": {"inner": "x", "n": 2},
    }
    assert read(cleaned(values)) == {
        "api_key": "***",
        "hub": {"hub_token": "***", "url": "u"},
        "passwords": "***",
        "list": [{"password": "***", "n": 1}],
        "empty_password": "",
        "eos_token": "</s>",
        "max_token": 5,
        "secret": {"inner": "***", "n": 2},
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=30,
)


@given(st.dictionaries(st.text(st.characters()), JSON), st.text(st.characters()))
def test_whatever_is_reported_is_kept_as_it_stays(values: dict[str, Any], run: str) -> None:
    config = config_of("s1", ("wandb", run), values)
    for one in config.values:
        for text in (one.run, one.name, one.value):
            assert "\0" not in text
            text.encode()
    whole = json.dumps(read(config))
    again = restored_config("s1", "wandb", config.values[0].run if config.values else "", whole)
    assert read(again) == read(config)


@pytest.mark.parametrize(
    ("origin", "text"),
    [
        ("W&B", "{}"),
        ("", "{}"),
        ("wandb", "[1]"),
        ("wandb", "{"),
        ("wandb", "[" * 9999),
        ("wandb", "\ud800"),
    ],
)
def test_what_is_no_configuration_of_a_backup_is_refused(origin: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"its origin is none|no JSON object"):
        restored_config("s1", origin, "", text)
    with pytest.raises(ValueError, match="more than"):
        restored_config("s1", "wandb", "", " " * (3 * MOST_BYTES))


class Everything:
    def __init__(self, session: Session) -> None:
        self.session = session

    async def check(self, *_: object, **__: object) -> Session:
        return self.session


async def test_records_are_taken_at_ingestion_and_again_without_effect() -> None:
    history = await open_history(":memory:", clock=SystemClock(), run=inline)
    rights: Any = Everything(made())
    ingestor = Ingestor(history=history, rights=rights)
    first = chunk(told({"lr": 0.1, "model": "a"}), told({"lr": 0.2}))
    later = chunk(told({"lr": 0.3}), told({f"k{n}": n for n in range(3_000)}), first=3)
    for one, wanted in ((first, 3), (later, 5), (first, 5)):
        assert await ingestor.ingest(NodeCaller(node="a"), [one], None) == {KEY: wanted}
    found = (await history.reported_config.of(["s1"]))["s1"]
    values = {one.name: one.value for one in found.values}
    assert (values["lr"], values["model"], len(values)) == ("0.3", '"a"', MOST_LEAVES)
    assert found.is_cut
    await history.close()


async def test_of_sealed_sessions_nothing_is_taken() -> None:
    history = await open_history(":memory:", clock=SystemClock(), run=inline)
    rights: Any = Everything(made(spec={"stage": SessionStage.PREDICT}))
    ingestor = Ingestor(history=history, rights=rights)
    assert rights.session.spec.is_sealed
    await ingestor.ingest(NodeCaller(node="a"), [chunk(told({"lr": 0.1}))], None)
    assert await history.reported_config.of(["s1"]) == {}
    await history.close()
