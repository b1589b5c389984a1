"""Opens the files of an object store shared by several processes, by its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.objects.bucket_files import BucketFiles
from controlplane.objects.buckets import open_bucket
from controlplane.objects.folder_files import open_shared_folder, shared_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.objects.files import Files
    from controlplane.objects.service import BucketService
    from nsml.common.clock import Offload


def open_shared(
    url: str, run: Offload, *, service: BucketService, environment: Mapping[str, str]
) -> Files:
    """Open shared files: a bucket such as s3://BUCKET/PREFIX, or a file:///FOLDER that all mount.

    Raises:
        ValueError: the URL or configuration is invalid; the message says why.
    """
    folder = shared_folder(url)
    if folder is not None:
        return open_shared_folder(folder, url, run)
    bucket = open_bucket(url, service, environment)
    return BucketFiles(bucket.backend, run, bucket.advice)
