"""doctor storage."""

import json

from nsml.v1 import content_pb2


def test_nothing_damaged_is_said_and_ends_well(nsml):
    done = nsml("doctor", "storage")
    assert "nothing is damaged or missing" in done.stdout + done.stderr
    assert "3 blobs" in done.stdout + done.stderr


def test_what_is_broken_is_named_with_what_helps(nsml, state):
    state.broken = [
        content_pb2.BrokenContent(
            kind="datasets",
            owner="kim",
            names=[f"kim/d\x1b[31m{number}" for number in range(5)],
            digest="ab" * 32,
            lost=2,
        ),
        content_pb2.BrokenContent(kind="logs", digest="cd" * 32, lost=1),
    ]
    done = nsml("doctor", "storage", check=False)
    assert done.code == 1
    assert "and 2 more" in done.stdout
    assert "abababababab" in done.stdout
    assert "\x1b" not in done.stdout
    assert "nsml dataset push NAME PATH" in done.stderr
    items = json.loads(nsml("doctor", "storage", "-j", check=False).stdout)["items"]
    assert [(one["kind"], one["owner"], one["lost"]) for one in items] == [
        ("datasets", "kim", 2),
        ("logs", None, 1),
    ]
