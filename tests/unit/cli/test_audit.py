"""`nsml admin audit`: who changed what."""

from __future__ import annotations

import json


def test_rows_of_all_pages_are_shown_and_filtered(nsml):
    rows = json.loads(nsml("admin", "audit", "-j").stdout)["items"]
    assert [(row["actor"], row["method"], row["outcome"]) for row in rows] == [
        ("kim", "NodeService/DrainNode", "NOT_FOUND"),
        ("root", "AccountService/CreateUser", ""),
    ]
    assert all(row["calls"] == 1 for row in rows)
    shown = nsml("admin", "audit", "--uploads").stdout
    assert "PutBlobs" in shown
    assert "OK (7 calls)" in shown
    assert "PutBlobs" in nsml("admin", "audit", "--method", "ContentService/PutBlobs").stdout
    assert "lee" in nsml("admin", "audit", "--user", "root", "--since", "24h").stdout
    assert "lee" not in nsml("admin", "audit", "--user", "kim").stdout
    assert "lee" not in nsml("admin", "audit", "-n", "1").stdout
