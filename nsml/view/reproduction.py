"""What of a session the next one from its record cannot repeat for certain, by name. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsml.common.units import counted
from nsml.spec.images import full_name, parts_of
from nsml.v1 import sessions_pb2 as pb
from nsml.view.datasets import names_in
from nsml.view.program_changes import MADE, step_text, what
from nsml.view.sessions import images_text, initial_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml.packages.requirements import Requirements
    from nsml.v1.sessions_pb2 import Session

_SHOWN = 5
_REPLAYED = (pb.PROGRAM_CHANGE_KIND_SET, pb.PROGRAM_CHANGE_KIND_LOAD)
"""Kinds of changes that made a difference to what was trained."""


class Unpinned(NamedTuple):
    """Something that may be another one in the new session."""

    what: str
    why: str


def pinned_image(session: Session) -> str:
    """The image that a session asked for, as NAME@DIGEST where it ran in one of that name; "" where that is not known."""
    ran_in = {one.image for one in session.replicas}
    asked = session.spec.image
    if not asked or len(ran_in) != 1:
        return ""
    [image] = ran_in
    try:
        is_it = bool(parts_of(image)[2]) and full_name(image) == full_name(asked)
    except ValueError:  # the id of one that no registry has
        return ""
    return image if is_it else ""


def not_pinned(source: Session, made: Session, required: Requirements | None) -> list[Unpinned]:
    """What may be another one in `made` than in `source`, from whose record it was made.

    `required`: what the code asks for; None where that cannot be read.
    """
    return [
        *_start(source, made),
        *_in_place(made),
        *_image(source, made, required),
        *_packages(source, made, required),
        *_gpus(source, made),
        *_datasets(source, made),
        *_secrets(source, made),
        Unpinned("network", "what the program fetches while it runs is not recorded"),
        *_changes(source),
    ]


def _start(source: Session, made: Session) -> Iterator[Unpinned]:
    """The checkpoint that a restored session began with, where it was not restored."""
    if source.spec.HasField("initial_checkpoint") and not made.spec.HasField("initial_checkpoint"):
        yield Unpinned(
            "checkpoint",
            f"{source.name} began with {initial_text(source)}, which was not restored: this one begins anew"
            " (-c CHECKPOINT)",
        )


def _in_place(made: Session) -> Iterator[Unpinned]:
    for one in made.spec.datasets:
        if one.in_place:
            how = (
                "and may have changed (--allow-changed)"
                if made.spec.allow_changed_data
                else "looked at when it starts: sizes, times, and some of the content"
            )
            yield Unpinned(
                f"dataset {one.name}@{one.version}", f"in place at {one.in_place}, {how}"
            )


def _image(source: Session, made: Session, required: Requirements | None) -> Iterator[Unpinned]:
    asked = made.spec.image or (required.image if required is not None else "") or ""
    ran_in = images_text(source)
    if made.spec.dockerfile:
        yield Unpinned(
            "image",
            f"built from {made.spec.dockerfile} again where a node has not kept it; {source.name} ran in"
            f" {ran_in or 'none'}",
        )
        return
    if not asked and not ran_in:
        yield Unpinned(
            "Python",
            "that of the node: its version is not recorded"
            if made.spec.environment_lock
            else "that of the node, with its default packages if it has some: neither is recorded",
        )
    elif not asked:
        beside = "" if made.spec.environment_lock else ", with its default packages if it has some"
        yield Unpinned("image", f"the node's default{beside}; {source.name} ran in {ran_in}")
    elif not _has_digest(asked):
        text = f"{source.name} ran in {ran_in}" if ran_in else "its digest is not known"
        yield Unpinned("image", f"{asked} is a tag; {text}")


def _has_digest(image: str) -> bool:
    try:
        return bool(parts_of(image)[2])
    except ValueError:
        return False


def _packages(source: Session, made: Session, required: Requirements | None) -> Iterator[Unpinned]:
    if not made.spec.bundle_digest or made.spec.environment_lock or made.spec.dockerfile:
        return
    if required is None:
        yield Unpinned("packages", "the requirements of the code cannot be read")
        return
    if loose := required.loose:
        more = f" and {len(loose) - _SHOWN} more" if len(loose) > _SHOWN else ""
        names = ", ".join(loose[:_SHOWN]) + more
        yield Unpinned("packages", f"no exact version: {names}{_without_lock(source)}")
    elif required.lines and not required.are_hashed:
        text = "those that the requirements need in turn are not locked"
        yield Unpinned("packages", f"{text}{_without_lock(source)}")


def _without_lock(source: Session) -> str:
    """Why its packages are not those of the other session, if that is not by choice."""
    if source.HasField("environment_lock"):
        return ""
    return f" (no lock of {source.name} is kept)"


def _gpus(source: Session, made: Session) -> Iterator[Unpinned]:
    if not made.spec.resources.gpu_thousandths:
        return
    models = sorted({device.model for one in source.replicas for device in one.devices})
    if not models:
        yield Unpinned("GPU model", f"{source.name} has had no GPU")
    elif not made.spec.gpu_model:
        yield Unpinned(
            "GPU model", f"any; {source.name} ran on {', '.join(models)} (--gpu-model MODEL)"
        )
    if not source.simulated:
        yield Unpinned("GPU driver", "not recorded")


def _datasets(source: Session, made: Session) -> Iterator[Unpinned]:
    """Datasets of which the two read different parts."""
    roots = _roots(source)
    for name, root in _roots(made).items():
        if roots.get(name, root) != root:
            yield Unpinned(
                "dataset", f"{name}: who reads its parts differs between {source.name} and this one"
            )


def _roots(session: Session) -> dict[str, str]:
    """What a session reads of each version of a dataset: `OWNER/NAME@NUMBER` to the digest."""
    versions = zip(names_in(session), session.spec.datasets, strict=True)
    return {f"{name}@{one.version}": one.digest for name, one in versions}


def _secrets(source: Session, made: Session) -> Iterator[Unpinned]:
    if names := sorted({one.name for one in made.spec.secrets}):
        whose = (
            f"those of {made.owner}, not of {source.owner}" if made.owner != source.owner else ""
        )
        text = whose or "they have the values of the start"
        yield Unpinned("secrets", f"{', '.join(names)}: {text}")


def _changes(source: Session) -> Iterator[Unpinned]:
    made = [one for one in source.changes if one.kind in _REPLAYED and one.phase in MADE]
    for one in made[-_SHOWN:]:
        where = step_text(one)
        text = f"{what(one)} at {where}" if where else what(one)
        yield Unpinned("live change", f"{text} is not repeated")
    if len(made) > _SHOWN:
        earlier = counted(len(made) - _SHOWN, "earlier change")
        yield Unpinned("live change", f"{earlier}, see nsml set {source.name}")
