"""What training code imports: `nsml.bind`, `nsml.report`, `nsml.image`, `nsml.save` and their kin.

Nothing but the standard library is loaded, and nothing at all before a name is used (PEP 562), so
that `import nsml` costs next to nothing on any Python from 3.8 on. `docs/sdk-protocol.md` says what
the functions write, so that programs in other languages can report too.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # typing itself is not imported: it costs more than all of this package
if TYPE_CHECKING:
    from typing import Any

    from nsml import constants, decoder, encoder
    from nsml._extras import Visdom, cache, copy
    from nsml._session import (
        audio,
        bind,
        embedding,
        feature_map,
        histogram,
        image,
        infer,
        load,
        paused,
        report,
        save,
        should_stop,
        table,
        text,
        video,
    )
    from nsml.constants import (
        DATASET_NAME,
        DATASET_PATH,
        GPU_NUM,
        HAS_DATASET,
        IS_DATASET,
        IS_ON_NSML,
        MY_RANK,
        NSML_NFS_OUTPUT,
        PARALLEL_PORTS,
        PARALLEL_WORLD,
        SESSION_ID,
        SESSION_NAME,
    )

__all__ = [
    "DATASET_NAME",
    "DATASET_PATH",
    "GPU_NUM",
    "HAS_DATASET",
    "IS_DATASET",
    "IS_ON_NSML",
    "MY_RANK",
    "NSML_NFS_OUTPUT",
    "PARALLEL_PORTS",
    "PARALLEL_WORLD",
    "SESSION_ID",
    "SESSION_NAME",
    "Visdom",
    "audio",
    "bind",
    "cache",
    "constants",
    "copy",
    "decoder",
    "embedding",
    "encoder",
    "feature_map",
    "histogram",
    "image",
    "infer",
    "load",
    "paused",
    "report",
    "save",
    "should_stop",
    "table",
    "text",
    "video",
]

_IMPORTED_AT = time.monotonic()
_FUNCTIONS = {
    **dict.fromkeys(("audio", "embedding", "feature_map", "histogram"), "_session"),
    **dict.fromkeys(("image", "table", "text", "video"), "_session"),
    "bind": "_session",
    "infer": "_session",
    "load": "_session",
    "paused": "_session",
    "report": "_session",
    "save": "_session",
    "should_stop": "_session",
    "Visdom": "_extras",
    "cache": "_extras",
    "copy": "_extras",
}
_SUBMODULES = ("constants", "decoder", "encoder")


def __getattr__(name: str) -> Any:
    """Load what `name` stands for on its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    module = import_module(f"{__name__}.{_FUNCTIONS.get(name, 'constants')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
