"""Parameters that have a new name: calls with the old keyword still work, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed_keyword(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets callers pass the parameter `new` under its old name.

    >>> @renamed_keyword("path", "lr_sum")
    ... def finish(lr_sum):
    ...     return lr_sum
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     finish(path=0.5)
    0.5
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                warnings.warn(
                    f"the parameter {old} of {function.__qualname__} is called {new} now",
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
