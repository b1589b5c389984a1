"""Parts of datasets: files with stricter access than their dataset, such as the labels of a test set.

A version is pushed as one tree. It is divided here on the server, so that no client can forget to: each part has its
own manifest, and so have the files open to all users, and the files for the owner's sessions. Access is checked by
manifest, as everywhere (controlplane/content/content.py): knowing the digest of another manifest gives no access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import InvalidRequest, LimitReached
from controlplane.domain.values import PartAccess
from controlplane.history.values import DatasetParts, DatasetRoot, RootKind
from nsml.content.errors import PathRefused
from nsml.content.paths import split_path
from nsml.content.tree_parts import REST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.content.content import Content
    from controlplane.content.subtrees import Subtree
    from controlplane.domain.identity import UserCaller

MOST_PARTS: Final = 32
"""Per dataset."""
MOST_PART_PATH_BYTES: Final = 1_024
"""Limit of its path, which is indexed."""

Divided = tuple[DatasetRoot, DatasetParts]
"""The open root, and the others."""


def check_parts(parts: Mapping[str, PartAccess]) -> None:
    """Raise InvalidRequest for an invalid path of a part."""
    for path in parts:
        try:
            split_path(path)
        except PathRefused as error:
            raise InvalidRequest(
                f"{path[:80]!r} is not the path of a part",
                why=error.reason,
                attempt="the path of a file or folder in the dataset, such as test/test_label",
            ) from error
        if len(path.encode()) > MOST_PART_PATH_BYTES:
            raise InvalidRequest(f"the path of a part has at most {MOST_PART_PATH_BYTES} bytes")


async def divided(
    content: Content, caller: UserCaller, root: str, access: Mapping[str, PartAccess]
) -> Divided | None:
    """Divide a tree by all parts of its dataset; None if no part has files.

    Raises:
        LimitReached: too many parts.
    """
    if not access:
        return None
    if len(access) > MOST_PARTS:
        raise LimitReached(f"a dataset has at most {MOST_PARTS} parts")
    opened, owners = (
        frozenset({REST, *(path for path, one in access.items() if one <= most)})
        for most in (PartAccess.OPEN, PartAccess.OWNER)
    )
    paths = [REST, *sorted(access)]
    groups = list(dict.fromkeys([opened, owners, *(frozenset({path}) for path in paths)]))
    made = dict(zip(groups, await content.subtrees(caller, root, access, groups), strict=True))
    found = {path: made[frozenset({path})] for path in paths}
    parts = [_root(RootKind.PART, one, path) for path, one in found.items() if one.file_count]
    if all(one.path == REST for one in parts):
        return None
    further = [_root(RootKind.OWNER, made[owners])] if made[owners] != made[opened] else []
    whole = DatasetRoot(
        kind=RootKind.WHOLE,
        digest=root,
        size_bytes=sum(one.size_bytes for one in parts),
        file_count=sum(one.file_count for one in parts),
    )
    roots = (*parts, *further, whole)
    return _root(RootKind.PART, made[opened]), DatasetParts(access=dict(access), roots=roots)


def check_divided(made: Divided | None, asked: Mapping[str, PartAccess]) -> None:
    """Raise InvalidRequest if a requested part has no files, or no files are left for others."""
    has_files = {one.path for one, _ in made[1].parts()} if made else set()
    for path in sorted(asked.keys() - has_files):
        raise no_files(path)
    if made and not made[0].file_count:
        raise InvalidRequest(
            "nobody else could read any file of the dataset",
            attempt="another path, or nsml dataset share NAME --private for the whole of it",
        )


def no_files(path: str) -> InvalidRequest:
    """Return the error for a part without files."""
    return InvalidRequest(
        f"the dataset has no file {path}, and none below it",
        attempt="a path as it is in the dataset, such as test/test_label",
    )


def _root(kind: RootKind, made: Subtree, path: str = "") -> DatasetRoot:
    return DatasetRoot(
        kind=kind,
        path=path,
        digest=made.digest,
        size_bytes=made.size_bytes,
        file_count=made.file_count,
    )
