"""How the CPU kernels are compiled: without the GIL, and kept on disk where a disk will have them."""

from collections.abc import Callable
from typing import Any

from numba import njit


def _kept(function: Any, **options: Any) -> Any:
    try:
        return njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:
        # Neither the package's directory nor the user's cache can be written: compile each time.
        return njit(nogil=True, **options)(function)


compiled: Callable[[Any], Any] = _kept
"""A function that runs on one thread."""


def parallel(function: Any) -> Any:
    """A function whose `prange` loops run on all threads."""
    return _kept(function, parallel=True)
