"""URLs as they may be shown."""

from __future__ import annotations

import pytest

from nsml.common.urls import has_password, without_password


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://kim:canary@host/db",
        "postgresql://kim:canary@a:1,b:2/db?sslmode=verify-full",
        "postgresql://:canary@host/db",
        "postgresql://kim:ca%40canary@host/db",
        "postgresql://kim:with@canary@host/db",
        "postgresql://kim:a/canary@host/db",
        "postgresql://host/db?user=kim&password=canary",
        "postgresql://host/db?PASSWORD=canary&x=1",
        "postgresql://host/db?sslkey=k&sslpassword=canary",
        "https://key:canary@minio.lab:9000",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    assert has_password(url)
    said = without_password(f"cannot reach {url} now")
    assert "canary" not in said
    assert said.startswith("cannot reach ")
    assert said.endswith(" now")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://kim@host:5432/db?passfile=/etc/nsml/pgpass",
        "postgresql:///nsml",
        "s3://bucket/prefix",
        "https://10.0.0.1:2379,https://10.0.0.2:2379",
        "unix:///run/etcd:1",
        "",
    ],
)
def test_what_has_none_is_as_it_was(url: str) -> None:
    assert not has_password(url)
    assert without_password(url) == url
