"""Why sessions are held, in the words of one table."""

from controlplane.domain.values import HeldCause
from nsml.spec.held_causes import HELD_WORDS
from nsml.v1 import sessions_pb2 as pb


def test_each_cause_of_the_contract_is_one_of_the_control_planes_and_has_words() -> None:
    contract = {name.removeprefix("HELD_CAUSE_") for name in pb.HeldCause.keys()}  # noqa: SIM118 - no mapping
    assert contract - {"UNSPECIFIED"} == set(HeldCause) == set(HELD_WORDS)
    shorts = [words.short for words in HELD_WORDS.values()]
    assert len(set(shorts)) == len(shorts)
    for words in HELD_WORDS.values():
        for command in ("nsml stop {name} ", "nsml requeue {name} "):
            assert any(command in line for line in words.advice)
