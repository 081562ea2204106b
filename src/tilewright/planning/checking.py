"""What becomes of an answer in which a checker finds a fault: it is refused, in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.errors import InternalError

HOW_TO_REPORT = "please report this with what `tilewright doctor --json` prints"
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What checkers run into where an answer is not even of the form that it should have."""


def first_fault(violations: Sequence[object]) -> str:
    """The first violation, and how many there are besides.

    >>> first_fault(["order: b runs before a", "cost: stated 1, recomputed 2"])
    'order: b runs before a and 1 more'
    """
    more = f" and {len(violations) - 1} more" if len(violations) > 1 else ""
    return f"{violations[0]}{more}"


def require_right(answer: str, check: Callable[[], Sequence[object]]) -> None:
    """Refuse an answer in which a check finds a fault.

    Raises:
        InternalError: naming the answer, the first violation and how many there are.

    >>> require_right("the plan of 'net'", lambda: ())
    """
    try:
        violations = check()
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}"
        raise InternalError(f"{answer} makes no sense: {reason}; {HOW_TO_REPORT}.") from error
    if violations:
        raise InternalError(f"{answer} is wrong: {first_fault(violations)}; {HOW_TO_REPORT}.")
