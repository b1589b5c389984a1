"""doctor storage."""

import json

from nsml.v1 import content_pb2


def test_what_is_repaired_is_told_with_its_source_and_what_is_left_with_reasons(nsml, state):
    state.broken = [
        content_pb2.BrokenContent(
            kind="datasets",
            owner="kim",
            names=["kim/d@1"],
            digest="ab" * 32,
            lost=3,
            repaired=[content_pb2.RepairedBlob(digest="01" * 32, source="pack p1")],
        ),
        content_pb2.BrokenContent(
            kind="checkpoints",
            names=["kim/d/1 best"],
            digest="cd" * 32,
            repaired=[content_pb2.RepairedBlob(digest="02" * 32, source="pack p1")],
        ),
    ]
    done = nsml("doctor", "storage", "--repair", check=False)
    assert done.code == 1
    assert "2 from node n" in done.stdout
    assert "1 from pack p1" in done.stdout
    assert "\x1b" not in done.stdout
    assert "abababababab: n2: it has nothing of that" in done.stderr
    assert "nsml dataset push NAME PATH" in done.stderr
    assert "nsml model ls" not in done.stderr  # that is whole again
    items = json.loads(nsml("doctor", "storage", "--repair", "-j", check=False).stdout)["items"]
    assert [one["lost"] for one in items] == [1, 0]
    assert items[0]["lost_digests"] == ["ef" * 32]
    assert items[1]["repaired"] == [{"digest": "02" * 32, "from": "pack p1"}]
    state.broken = []
    assert nsml("doctor", "storage", "--repair").code == 0


def test_nodes_are_asked_to_the_last_though_their_reasons_are_the_same(nsml, state):
    state.broken = [content_pb2.BrokenContent(kind="datasets", digest="ab" * 32, lost=1)]
    state.nodes_in_vain, state.holder = 100, 6
    assert nsml("doctor", "storage", "--repair").code == 0
    assert state.broken[0].lost == 0


def test_what_is_damaged_and_belongs_to_nothing_is_told_after_a_repair_too(nsml, state):
    state.damaged_alone = 2
    done = nsml("doctor", "storage", "--repair", check=False)
    assert done.code == 1
    assert "2 blobs are damaged, and nothing refers to them" in done.stderr


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
