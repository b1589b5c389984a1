"""How many examples a property is tried with."""

import os

IS_THOROUGH = bool(os.environ.get("NSML_THOROUGH"))


def examples(thorough: int) -> int:
    """Return all where there is time (`make soak`), else an eighth: each run tries other ones."""
    return thorough if IS_THOROUGH else max(thorough // 8, 10)
