r"""Text from files, such as names, made safe to show: on a terminal, in a log, on a page.

A name may hold what moves a terminal's cursor, sets its title or turns the direction of writing. Everything
that is shown to people goes through here, where such characters become what Python's `repr` would write:
`\x1b`.
"""

from __future__ import annotations

_MAX_WORD, _MAX_LINE = 600, 1500
"""Characters, a path's as a rule, and of a message."""


def printable(text: str) -> str:
    r"""Text on one line: control and format characters, line ends among them, as escapes.

    >>> print(printable("a\x1b[2J\n" + chr(0x202E) + "é"))
    a\x1b[2J\n\u202eé
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def bounded(text: str) -> str:
    """A message as `printable` that can be read however long the names are that it quotes: the middle of
    long words, and of all of it, is left out.

    >>> bounded(f"node {'x' * 10**6}: no input.")[:9], len(bounded("x " * 10**6)) <= 1500
    ('node xxxx', True)
    """
    text = printable(_without_middle(text, 4 * _MAX_LINE))
    return _without_middle(" ".join(_without_middle(word, _MAX_WORD) for word in text.split(" ")), _MAX_LINE)


def _without_middle(text: str, max_length: int) -> str:
    if len(text) <= max_length:
        return text
    half = (max_length - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def printable_lines(text: str) -> str:
    r"""Text of several lines that we laid out: as `printable`, but for line ends.

    >>> printable_lines("a\nb\tc")
    'a\nb\\tc'
    """
    return "\n".join(map(printable, text.split("\n")))


def html_text(text: str) -> str:
    """Text within a page or a quoted attribute.

    >>> html_text('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    import html

    return html.escape(printable(text))


def json_text(text: str) -> str:
    r"""A document as Python's `json` writes it, without the one control character that it leaves as it is."""
    return text.replace("\x7f", "\\u007f")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
