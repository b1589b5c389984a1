"""Which checkpoints are kept, as a text."""

from __future__ import annotations

import pytest

from nsml.spec.checkpoint_retention import Best, CheckpointRetention, canonical, retention_of


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
