"""Which loggers of other libraries report to nsml, too: the variable NSML_ECHO of a session."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

VARIABLE: Final = "NSML_ECHO"
"""A list of origins, or `none`; not set: all of them."""
NONE: Final = "none"
ORIGINS: Final = (
    "wandb",
    "tensorboard",
    "mlflow",
    "transformers",
    "lightning",
    "accelerate",
    "keras",
    "ray",
    "jax",
)
"""The libraries."""


def echo_of(text: str) -> str:
    """Return a comma-separated list of origins in its usual form. Raises ValueError; its text is `what: why`."""
    names = [one.strip().lower() for one in text.split(",") if one.strip()]
    if names == [NONE]:
        return NONE
    if not names:
        raise ValueError(f"no library is named: it takes some of {', '.join(ORIGINS)}")
    for name in names:
        if name not in ORIGINS:
            near = get_close_matches(name, ORIGINS, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it takes some of {', '.join(ORIGINS)}"
            raise ValueError(f"{name[:80]!r} is no library that reports to nsml: {meant}")
    return ",".join(one for one in ORIGINS if one in names)
