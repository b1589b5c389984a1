"""How many examples a property is tried with."""

import os

IS_THOROUGH = bool(os.environ.get("NSML_THOROUGH"))


def examples(thorough: int) -> int:
    """So many where there is time for them (`make soak`), else a third: each run tries other ones."""
    return thorough if IS_THOROUGH else max(thorough // 3, 10)
