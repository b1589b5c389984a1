"""Aspects of a session that a new one from its record may not repeat, by name. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from nsml.common.units import counted
from nsml.spec.gpu_models import is_meant
from nsml.spec.images import full_name, parts_of
from nsml.v1 import nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.resources_pb2 import ISOLATION_CONTAINER
from nsml.view.datasets import names_in
from nsml.view.program_changes import MADE, step_text, what
from nsml.view.sessions import (
    driver_text,
    driver_versions,
    images_text,
    initial_text,
    python_versions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsml.packages.requirements import Requirements
    from nsml.v1.nodes_pb2 import Node
    from nsml.v1.sessions_pb2 import Session, SessionSpec

_SHOWN = 5
_REPLAYED = (pb.PROGRAM_CHANGE_KIND_SET, pb.PROGRAM_CHANGE_KIND_LOAD)
"""Kinds of changes that affected the training."""
_IN_SERVICE = (nodes_pb2.NODE_STATE_READY, nodes_pb2.NODE_STATE_NOT_READY)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
"""First words of command lines for which nodes make an environment (nodeagent/replica/preparation_steps.py)."""
_NOT_RECORDED = "not recorded"
_NOT_REPORTED = "one that is not reported"
_OF_DEFAULT_IMAGE = "that of their default image"


class Unpinned(NamedTuple):
    """Something that may differ in the new session."""

    what: str
    why: str


def pinned_image(session: Session) -> str:
    """Return the requested image as NAME@DIGEST, if it ran in one of that name; "" if unknown."""
    ran_in = {one.image for one in session.replicas}
    asked = session.spec.image
    if not asked or len(ran_in) != 1:
        return ""
    [image] = ran_in
    try:
        is_it = bool(parts_of(image)[2]) and full_name(image) == full_name(asked)
    except ValueError:  # the id of an image that is in no registry
        return ""
    return image if is_it else ""


def is_of_nodes(source: Session) -> bool:
    """Return whether anything determined by nodes is recorded: then `not_pinned` needs them."""
    return bool(driver_versions(source) or python_versions(source))


def not_pinned(
    source: Session,
    made: Session,
    required: Requirements | None,
    nodes: Sequence[Node] | None = None,
) -> list[Unpinned]:
    """Return what may differ between `made` and `source`, from whose record it was made.

    `required`: requirements of the code; None if unreadable. `nodes`: all of the platform; None if
    unknown.
    """
    candidates = None if nodes is None else [one for one in nodes if _may_run(one, made.spec)]
    return [
        *_start(source, made),
        *_in_place(made),
        *_image(source, made, required),
        *_python(source, made, required, candidates),
        *_packages(source, made, required),
        *_gpus(source, made, candidates),
        *_datasets(source, made),
        *_secrets(source, made),
        Unpinned("network", "what the program fetches while it runs is not recorded"),
        *_changes(source),
    ]


def _start(source: Session, made: Session) -> Iterator[Unpinned]:
    """The initial checkpoint of a restored session, if it was not restored."""
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
    if not asked and ran_in:
        beside = "" if made.spec.environment_lock else ", with its default packages if it has some"
        yield Unpinned("image", f"the node's default{beside}; {source.name} ran in {ran_in}")
    elif asked and not _has_digest(asked):
        text = f"{source.name} ran in {ran_in}" if ran_in else "its digest is not known"
        yield Unpinned("image", f"{asked} is a tag; {text}")


def _python(
    source: Session, made: Session, required: Requirements | None, nodes: Sequence[Node] | None
) -> Iterator[Unpinned]:
    """Python and its packages, if not from an image."""
    asked = made.spec.image or (required.image if required is not None else "")
    if made.spec.dockerfile or asked or images_text(source):
        return
    if not _is_given_python(source.spec, required):
        yield Unpinned("Python", "that of the node, if the program calls it: it is given none")
        return
    now = None if nodes is None else {_python_of(one) for one in nodes}
    if text := _compared(source, python_versions(source), now):
        yield Unpinned("Python", text)
    if not made.spec.environment_lock:
        yield Unpinned("default packages", f"those of the node, where it has some: {_NOT_RECORDED}")


def _is_given_python(spec: SessionSpec, required: Requirements | None) -> bool:
    """Return whether a node makes an environment for it: not for a plain command line without requirements."""
    if not spec.argv or _PYTHON.fullmatch(spec.argv[0]) or spec.environment_lock:
        return True
    return bool(spec.bundle_digest) and (
        required is None or bool(required.lines) or required.conda is not None
    )


def _python_of(node: Node) -> str:
    if node.isolation == ISOLATION_CONTAINER:
        return _OF_DEFAULT_IMAGE
    return node.python_version or _NOT_REPORTED


def _compared(source: Session, ran: Iterable[str], now: Iterable[str] | None) -> str:
    """Describe what a session ran with, and what nodes have now; "" if they have nothing else."""
    before = sorted(ran)
    if not before:
        return _NOT_RECORDED if source.attempt else f"{source.name} has not run"
    words = f"{source.name} ran with {' and '.join(before)}"
    if now is None:
        return f"{words}; what nodes have now is not known"
    after = sorted(now)
    if not after:
        return f"{words}; no node that could run this one is in service"
    if set(after) <= set(before):
        return ""
    return f"{words}, nodes now have {' and '.join(after)}"


def _may_run(node: Node, spec: SessionSpec) -> bool:
    """Return whether a session may be placed on a node, judging by state, pod and GPUs."""
    is_open = node.state in _IN_SERVICE and (not spec.pod or node.pod == spec.pod)
    has_gpus = not spec.resources.gpu_thousandths or any(_drivers_of(node, spec))
    return is_open and has_gpus


def _drivers_of(node: Node, spec: SessionSpec) -> Iterator[str]:
    """Yield drivers by available GPU."""
    for use in node.devices:
        device = use.device
        if not device.withheld and is_meant(device.model, spec.gpu_model):
            yield driver_text(device) or _NOT_REPORTED


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
    elif required.conda or (required.lines and not required.are_hashed):
        text = "those that the requirements need in turn are not locked"
        yield Unpinned("packages", f"{text}{_without_lock(source)}")


def _without_lock(source: Session) -> str:
    """Return why its packages differ from the other session's, unless by choice."""
    if source.HasField("environment_lock"):
        return ""
    return f" (no lock of {source.name} is kept)"


def _gpus(source: Session, made: Session, nodes: Sequence[Node] | None) -> Iterator[Unpinned]:
    if not made.spec.resources.gpu_thousandths:
        return
    models = sorted({device.model for one in source.replicas for device in one.devices})
    if not models:
        yield Unpinned("GPU model", f"{source.name} has had no GPU")
    elif not made.spec.gpu_model:
        yield Unpinned(
            "GPU model", f"any; {source.name} ran on {', '.join(models)} (--gpu-model MODEL)"
        )
    if not models or source.simulated:
        return
    now = None if nodes is None else {d for one in nodes for d in _drivers_of(one, made.spec)}
    if text := _compared(source, driver_versions(source), now):
        yield Unpinned("GPU driver", text)


def _datasets(source: Session, made: Session) -> Iterator[Unpinned]:
    """Datasets of which the two sessions read different parts."""
    roots = _roots(source)
    for name, root in _roots(made).items():
        if roots.get(name, root) != root:
            yield Unpinned(
                "dataset", f"{name}: who reads its parts differs between {source.name} and this one"
            )


def _roots(session: Session) -> dict[str, str]:
    """Return the digest of each dataset version read by a session, by `OWNER/NAME@NUMBER`."""
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
