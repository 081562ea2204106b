r"""Text from files, such as names, made safe to show: on a terminal, in a log, on a page.

A name may hold what moves a terminal's cursor, sets its title or turns the direction of writing. Everything
that is shown to people goes through here, where such characters become what Python's `repr` would write:
`\x1b`.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Text on one line: control and format characters, line ends among them, as escapes.

    >>> print(printable("a\x1b[2J\n" + chr(0x202E) + "é"))
    a\x1b[2J\n\u202eé
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


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
