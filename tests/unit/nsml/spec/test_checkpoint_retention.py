"""Which checkpoints are kept, as a text."""

from __future__ import annotations

import pytest

from nsml.spec.checkpoint_retention import (
    Best,
    CheckpointRetention,
    canonical,
    canonical_request,
    retention_of,
    with_metric,
)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("last:2", CheckpointRetention(2)),
        ("best:3:val/acc:max", CheckpointRetention(1, (Best(3, "val/acc", True),))),
        (
            " last:2\tbest:1:a:b:min best:2:loss:max ",
            CheckpointRetention(2, (Best(1, "a:b", False), Best(2, "loss", True))),
        ),
        ("all", None),
    ],
)
def test_what_a_text_means_is_what_its_canonical_form_means(
    text: str, rules: CheckpointRetention | None
) -> None:
    assert retention_of(text) == rules
    assert retention_of(canonical(text)) == rules
    assert canonical(canonical(text)) == canonical(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("best:3", "best needs a metric"),
        ("best:3:val/acc", "best needs a metric"),
        ("best:3::max", "best needs a metric"),
        ("last:0", "1 to 100,000"),
        ("best:0:a:max", "1 to 100,000"),
        ("last:999999", "1 to 100,000"),
        ("last:1000000", "words such as"),
        ("last:٣", "words such as"),
        ("last:-1", "words such as"),
        ("last:1 last:2", "twice"),
        ("best:1:a:max best:2:a:min", "twice for a"),
        ("all last:1", "nothing else"),
        ("newest:3", "words such as"),
        ("best:1:\x1b[2J:max", "cannot be printed"),
        (" ".join(f"best:1:m{n}:max" for n in range(9)), "9 words"),
        ("last:1" + " " * 1_000, "characters"),
    ],
)
def test_what_is_no_such_text_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        retention_of(text)


@pytest.mark.parametrize(
    ("text", "declared", "rules"),
    [
        ("best:3  last:2", ["", "best:1:val/acc:max"], "best:3:val/acc:max last:2"),
        ("best:3", ["all", "last:4", "best:1:loss:min best:1:a:max"], "best:3:loss:min last:1"),
        ("best:1:a:max best:2", ["best:5:loss:min"], "best:2:loss:min best:1:a:max last:1"),
        (" last:2 ", [], "last:2"),
        ("all", ["best:1:a:max"], "all"),
    ],
)
def test_a_session_may_leave_the_metric_to_its_project(text, declared, rules):
    asked = canonical_request(text)
    assert canonical_request(asked) == asked
    assert with_metric(asked, declared) == rules


@pytest.mark.parametrize(
    ("text", "declared", "why"),
    [
        ("best:3", ["last:2", "all", ""], "names no metric"),
        ("best:3 best:2:a:min", ["best:1:a:max"], "twice for a"),
        ("best:3 best:2", [], "twice without a metric"),
        ("best:0", [], "1 to 100,000"),
        ("best:3 all", [], "nothing else"),
        ("best:3 newest:1", [], "words such as"),
        ("best:3 " * 9, [], "9 words"),
    ],
)
def test_what_is_no_such_request_is_refused(text, declared, why):
    with pytest.raises(ValueError, match=why):
        with_metric(canonical_request(text), declared)
