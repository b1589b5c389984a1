"""A tree that is laid out from chunks that are there already."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsml.content.extract import Extraction
from nsml.content.manifest import Manifest


def extract(manifest: Manifest, read: Callable[[str], bytes], target: Path, **options: Any) -> None:
    """`read` gives the chunk of a digest; `options` are those of Extraction."""
    with Extraction(manifest, target, **options) as extraction:
        for ref in manifest.refs():
            extraction.write(read(ref.digest))
        extraction.finish()
