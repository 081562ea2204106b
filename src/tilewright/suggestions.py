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
    import difflib  # only errors need it

    folded = {n.lower(): n for n in reversed(list(known))}
    matches = difflib.get_close_matches(name.lower(), folded, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(folded[m] for m in matches)}" if matches else ""
