"""What goes wrong slowly or unseen, from what is known of it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec
import pytest

from controlplane.access.authority import make_authority
from controlplane.health import warnings
from controlplane.startup.config import Settings
from controlplane.state.members import Member
from nsml.common.clock import SystemClock

DAY_S = 86_400.0
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()


def member(name: str, **settings: str) -> Member:
    return Member(name=name, version="1", settings=settings)


def test_settings_that_differ_are_named_with_who_has_which() -> None:
    found = warnings.differing_settings(
        [
            member("cp1", time_limits="high=24h", lease_s="3.0"),
            member("cp2", lease_s="3.0"),
            member("cp3", time_limits="high=24h", lease_s="3.0"),
        ]
    )
    assert found == {"time_limits": "cp1: high=24h; cp2: not set; cp3: high=24h"}
    assert warnings.differing_settings([member("cp1", lease_s="3.0")]) == {}
    assert warnings.differing_settings([]) == {}


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        ({}, {}),
        ({"time_limits": ["high=24h", "normal=7d"]}, {"time_limits": "high=24h, normal=7d"}),
        ({"user_sessions": 5, "defragment": False}, {"defragment": "False", "user_sessions": "5"}),
        ({"member": "cp1", "hosts": ["a"], "listen": "0.0.0.0:1", "log_level": "debug"}, {}),
        ({"history": "postgresql://u:secret@h/d", "etcd_ca": "/x"}, {}),
    ],
)
def test_what_control_planes_have_in_common_is_shared(
    given: dict[str, object], shared: dict[str, str]
) -> None:
    settings = msgspec.convert({"data": "/d", **given}, Settings, dec_hook=lambda kind, x: kind(x))
    assert settings.shared == shared


def test_a_clock_is_wrong_from_half_a_minute_on() -> None:
    off = {"a": 29.0, "b": 7200.0, "c": -31.0, "d": 0.0}
    assert warnings.wrong_clocks(off, {"cp1": 3.0, "cp2": -7200.0}) == {
        "node b": "2h ahead",
        "node c": "31s behind",
        "control plane cp2": "2h behind",
    }


def test_certificates_are_warned_of_before_they_end() -> None:
    nodes = {"a": NOW + 13 * DAY_S, "b": NOW + 15 * DAY_S, "c": NOW - DAY_S, "d": 0.0}
    others = {"etcd_ca": NOW + 29 * DAY_S, "authority": NOW + 31 * DAY_S}
    assert warnings.ending_certificates(nodes, others, NOW) == {
        "etcd_ca": "ends on 2026-01-30, in 29d",
        "node a": "ends on 2026-01-14, in 13d",
        "node c": "ended on 2025-12-31",
    }


def test_refused_joins_are_shown_for_ten_minutes() -> None:
    assert warnings.refused_joins(0, 0.0, "", NOW) == {}
    [evidence] = warnings.refused_joins(3, NOW - 599, "node a: no", NOW).values()
    assert evidence == "3 refusals since the start of this control plane; the last: node a: no"
    assert warnings.refused_joins(3, NOW - 600, "node a: no", NOW) == {}


def test_the_first_end_in_a_file_counts(tmp_path: Path) -> None:
    authority = make_authority(SystemClock())
    chain = authority.issue_server(["localhost"])
    file = tmp_path / "chain.pem"
    file.write_bytes(authority.pem + chain.chain)
    assert warnings.file_end(file) == chain.expires_at.timestamp()
    file.write_text("nothing")
    with pytest.raises(ValueError):
        warnings.file_end(file)


def test_files_with_certificates_are_found_in_the_settings() -> None:
    given = {
        "data": "/d",
        "etcd_ca": "/e.pem",
        "history": "postgresql://u@h/d?sslmode=verify-full&sslrootcert=/db.pem",
    }
    settings = msgspec.convert(given, Settings, dec_hook=lambda kind, x: kind(x))
    assert settings.certificates == {
        "etcd_ca": Path("/e.pem"),
        "history (sslrootcert)": Path("/db.pem"),
    }
