"""Properties whose values come from their strategies alone.

Hypothesis takes one value in forty from the constants in the code. For that each process parses all loaded modules of
this project, and holds thousands of constants against every kind of value that is drawn. With as few examples as a
change has, nearly no constant meets the property that it matters to; the thorough runs draw them.
"""

from hypothesis.internal.conjecture import providers

from tests.support.examples import IS_THOROUGH


def leave_out_constants_of_code() -> None:
    """Draw none in this process from now on, unless it is thorough. Hypothesis's own list of values stays."""
    if not IS_THOROUGH:
        # As Hypothesis itself does where it cannot know which code is the project's.
        providers._get_local_constants = lambda: providers._local_constants
