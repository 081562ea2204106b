"""Operations on numpy arrays that may run in a thread which the end of the interpreter cuts short."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def distinct(values: Array) -> Array:
    """The values of an array without repetitions, ascending, as a vector.

    `numpy.unique` waits for the interpreter in a C++ destructor. Before Python 3.14 a daemon thread ends
    there once the interpreter does, and C++ lets no thread end in a destructor: the process is aborted.

    >>> distinct(np.array([[3, 1], [1, 2]])).tolist()
    [1, 2, 3]
    """
    ordered = np.sort(values, axis=None)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def grouped(values: Array) -> tuple[Array, Array, Array]:
    """The distinct values of a vector, where each stands first, and for each element which of them it is.

    >>> [a.tolist() for a in grouped(np.array([3, 1, 3]))]
    [[1, 3], [1, 0], [1, 0, 1]]
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    number = np.empty(len(ordered), np.intp)
    number[order] = np.cumsum(is_first) - 1
    return ordered[is_first], order[is_first], number
