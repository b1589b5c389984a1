"""What a new session from the record of another may have otherwise."""

from __future__ import annotations

from nsml.v1.sessions_pb2 import DatasetReference, Session, SessionSpec
from nsml.view.reproduction import not_pinned


def session(owner: str, *datasets: tuple[str, int, str]) -> Session:
    references = [
        DatasetReference(name=name, version=version, digest=digest)
        for name, version, digest in datasets
    ]
    return Session(name=f"{owner}/x/1", owner=owner, spec=SessionSpec(datasets=references))


def test_a_dataset_of_which_the_next_user_reads_other_parts_is_named() -> None:
    source = session("kim", ("digits", 1, "all"), ("lee/own", 3, "same"), ("old", 1, "a"))
    made = session("lee", ("kim/digits", 1, "some"), ("own", 3, "same"), ("kim/old", 2, "b"))
    told = [one for one in not_pinned(source, made, None) if one.what == "dataset"]
    assert [one.why for one in told] == [
        "kim/digits@1: who reads its parts differs between kim/x/1 and this one"
    ]
