"""`nsml.copy`, `nsml.cache` and `nsml.Visdom`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence, Union

    Paths = Union[str, Sequence[str]]


def copy(source: Any = None, target: Any = None) -> None:
    """Copy the state of `source` to `target` in place: a dict's entries or an object's attributes.

    Raises:
        TypeError: their types differ, or have neither.
    """
    if type(source) is not type(target):
        raise TypeError(
            f"nsml.copy needs two of a type, not {type(source).__name__} and {type(target).__name__}"
        )
    if isinstance(target, dict):
        target.update(source)
    elif hasattr(target, "__dict__"):
        target.__dict__.update(source.__dict__)
    else:
        raise TypeError(f"nsml.copy does not support {type(target).__name__}")


def cache(
    preprocess_fn: Callable[..., Any], output_path: Paths = ("./processed",), **kwargs: Any
) -> None:
    """Call `preprocess_fn(output_path=[...], **kwargs)`, which writes these files.

    Each session repeats this: output of an earlier session is not reused, so a change of
    the function or of the data never meets stale files.
    """
    paths = output_path if isinstance(output_path, str) else list(output_path)
    preprocess_fn(output_path=paths, **kwargs)


def Visdom(visdom: Any = None, **kwargs: Any) -> Any:  # noqa: N802 - the name that programs call
    """Return `visdom.Visdom(**kwargs)`; sessions have no server for it yet.

    Raises:
        NotImplementedError: in a session.
    """
    from nsml.constants import IS_ON_NSML

    if IS_ON_NSML or visdom is None:
        raise NotImplementedError(
            "nsml.Visdom is not supported yet: use nsml.report, and nsml plot to look at it"
        )
    return visdom.Visdom(**kwargs)
