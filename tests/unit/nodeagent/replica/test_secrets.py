"""What a replica was given in secret is gone once its program has it."""

from __future__ import annotations

from nodeagent.replica.secrets import taken_from
from nsml.v1 import agents_pb2 as pb


def test_nothing_is_left_of_logins_wherever_they_were_handed_on() -> None:
    assignment = pb.Assignment(
        registry_logins=[
            pb.RegistryLogin(registry="ghcr.io", user="kim", password="hush", version=1)
        ]
    )
    given = taken_from(assignment)
    preparing = given.logins
    assert preparing["ghcr.io"].password == "hush"
    assert not assignment.registry_logins
    given.forget()
    assert (preparing, given.logins) == ({}, {})
