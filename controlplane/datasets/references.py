"""Dataset references in requests, and cursors of their lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.domain.errors import Denied, InvalidRequest
from controlplane.domain.names import check_dataset, check_user, is_user
from nsml.spec.dataset_names import is_dataset_name

if TYPE_CHECKING:
    from controlplane.history.values import DatasetListing


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReference:
    """A reference to a dataset: owner "" prefers the caller, version 0 and tag "" mean the newest, digest "" any.

    `folder`: its folder below /data in a session; "": its name.
    """

    name: str
    owner: str = ""
    version: int = 0
    digest: str = ""
    tag: str = ""
    streamed: bool = False
    folder: str = ""


def parse_dataset(
    text: str,
    version: int = 0,
    digest: str = "",
    tag: str = "",
    *,
    streamed: bool = False,
    folder: str = "",
) -> DatasetReference:
    """Parse NAME or OWNER/NAME."""
    owner, slash, name = text.rpartition("/")
    if slash:
        check_user(owner)
    if tag and version:
        raise InvalidRequest("a version is named by its number or by a tag, not by both")
    if folder and not is_dataset_name(folder):
        raise InvalidRequest(
            f"{folder[:80]!r} is no folder for a dataset", why="it has the form of a dataset's name"
        )
    return DatasetReference(
        name=check_dataset(name),
        owner=owner,
        version=version,
        digest=digest,
        tag=tag,
        streamed=streamed,
        folder=folder,
    )


def own_dataset(text: str, user: str) -> str:
    """Parse the name of this user's own dataset, with or without its owner.

    Raises:
        InvalidRequest: it is not the name of a dataset.
        Denied: it is another user's.
    """
    owner, _, name = text.rpartition("/")
    if owner == user or not owner or not is_user(owner):
        return check_dataset(name if owner == user else text)
    raise Denied(
        f"dataset {owner}/{check_dataset(name)} is {owner}'s",
        why="a version is made of a dataset of your own",
        attempt=f"nsml dataset push {name} PATH",
    )


def cursor_behind(listing: DatasetListing) -> str:
    """Return the cursor of a page that ends with this dataset."""
    return f"{listing.dataset.owner}/{listing.dataset.name}"


def after(cursor: str) -> tuple[str, str]:
    """Return name and owner of the previous page's last dataset."""
    last = parse_dataset(cursor)
    return last.name, last.owner


def cursor_behind_version(listing: DatasetListing) -> str:
    """Return the cursor of a page of versions of several datasets that ends with this one."""
    return f"{cursor_behind(listing)}@{listing.version.number}"


def after_version(cursor: str) -> tuple[str, str, int]:
    """Return name, owner and number of the previous page's last version."""
    name, _, number = cursor.partition("@")
    return *after(name), before_number(number)


def before_number(cursor: str) -> int:
    """Return the number of the previous page's last version."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 10 and int(cursor)):
        raise InvalidRequest(f"{cursor[:80]!r} is no cursor of this list")
    return int(cursor)
