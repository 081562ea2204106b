"""What an unknown name was likely meant to be, as the end of an error's text."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """The likely meaning of an unknown name, else all names that are known.

    >>> closest("Globalbufer", ["Registers", "GlobalBuffer"])
    'did you mean GlobalBuffer'
    """
    names = list(dict.fromkeys(known))
    return likely(name, names) or (f"known are {', '.join(names)}" if names else "there are none")


def likely(name: str, known: Iterable[str]) -> str:
    """Names of which one was likely meant; empty if none is like it.

    >>> likely("Globalbufer", ["Registers", "GlobalBuffer"]), likely("L9", ["DRAM"])
    ('did you mean GlobalBuffer', '')
    """
    matches = nearest(name, known)
    return f"did you mean {' or '.join(matches)}" if matches else ""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The one or two names that are most like an unknown one; none if none is like it."""
    import difflib  # only errors need it

    folded = {n.lower(): n for n in reversed(list(known))}
    return [folded[m] for m in difflib.get_close_matches(name.lower(), folded, n=2, cutoff=0.6)]


def misspelt(name: str, known: Iterable[str]) -> str:
    """The name of which another is a slip: in the case of letters, or one letter behind the first.

    Names of operators that are merely alike mean different things.

    >>> misspelt("gellu", ["Gelu", "Selu"]), misspelt("QLinearMatMul", ["QLinearMul"])
    ('Gelu', '')
    """
    return next((other for other in known if _is_slip(name.lower(), other.lower())), "")


def _is_slip(name: str, other: str) -> bool:
    if name == other:
        return True
    longer, shorter = sorted((name, other), key=len, reverse=True)
    if not shorter or longer[0] != shorter[0] or len(longer) - len(shorter) > 1:
        return False
    if len(longer) > len(shorter):
        return any(longer[:i] + longer[i + 1 :] == shorter for i in range(1, len(longer)))
    apart = [i for i, (a, b) in enumerate(zip(longer, shorter, strict=True)) if a != b]
    if len(apart) == 2 and apart[1] == apart[0] + 1:
        return longer[apart[0]] == shorter[apart[1]] and longer[apart[1]] == shorter[apart[0]]
    return len(apart) == 1
