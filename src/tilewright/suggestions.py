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
