"""Trees as fake platforms store them, and such as have pages."""

from __future__ import annotations

from collections.abc import Mapping

from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, Manifest, build, decode
from nsml.content.pages import pages_in

LONG_FOLDER = "".join(f"{digest_of(b'%d' % number) * 3}/" for number in range(12))


def stored_tree(blobs: Mapping[str, bytes], root: str) -> tuple[Manifest, set[str]]:
    """The tree of a root, and the digests of its pages and chunks."""
    pages = [page.digest for page in pages_in(blobs[root]) or ()]
    manifest = decode(b"".join(blobs[page] for page in pages or [root]))
    return manifest, {*pages, *manifest.blobs()}


def paged_tree(
    *more: str, files: int = 12_000, chunks: int = 200, folder: str = ""
) -> tuple[Manifest, dict[str, bytes]]:
    """A tree that is large enough for pages, with all its blobs; `chunks` different ones among its files, and the files `more`.

    In LONG_FOLDER few files are enough, where they are made.
    """
    contents = [b"%d" % number for number in range(chunks)]
    refs = [ChunkRef(digest_of(one), len(one)) for one in contents]
    named = [(f"{folder}{number:05}", refs[number % chunks]) for number in range(files)]
    named += [(path, refs[0]) for path in more]
    manifest = build(
        [Entry(path=path, mode=0o644, size=ref.size, chunks=(ref,)) for path, ref in named]
    )
    root = manifest.root
    naming = manifest.naming_blobs({root.digest, *(page.digest for page in root.pages)})
    return manifest, {**{digest_of(one): one for one in contents}, **dict(naming)}
