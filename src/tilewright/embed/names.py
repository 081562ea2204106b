"""How text reaches C: the one module that makes comments, identifiers and file names of names.

Names of models and tensors are whatever a file says. A template takes only `CText` and numbers, and only the
functions here make `CText`, each by a list of the characters that it lets through: nothing that ends a
comment, continues a line, starts a directive, is a trigraph or turns the direction of writing is in it.
"""

from __future__ import annotations

import re
from typing import NewType

from tilewright.errors import UsageError

CText = NewType("CText", str)
"""Text that can stand where its maker says, whatever it was made of."""

MAX_NAME_CHARS = 100
"""Of an exported model's name: `NAME_open_weights` and `NAME.weights` fit every compiler and file system."""

MAX_COMMENT_CHARS = 200
"""Of a name in a comment; what is longer ends in dots."""

_COMMENT_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _.,:-/()[]=+@")

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t
class compl complex concept const const_cast consteval constexpr constinit continue co_await co_return
co_yield decltype default delete do double dynamic_cast else enum explicit export extern false float for
friend goto if imaginary import inline int long module mutable namespace new noexcept noreturn not not_eq
nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return
short signed sizeof static static_assert static_cast struct switch template this thread_local throw true
try typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile wchar_t while
xor xor_eq main errno linux unix
"""
# NAME.h beside a program would be read instead of the system's, where the folder is searched first.
_HEADERS = """
alloca assert complex ctype cpio dirent dlfcn elf errno fcntl features fenv float fmtmsg fnmatch ftw
getopt glob grp iconv inttypes iso646 langinfo libgen limits link locale malloc math memory monetary
mqueue ndbm netdb nl_types poll pthread pwd regex sched search semaphore setjmp signal spawn stdalign
stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string strings stropts
syslog tar termios tgmath threads time trace uchar ulimit unistd utime utmpx values wait wchar wctype
wordexp
"""
# `cc -c example.c` writes example.o.
_RESERVED = frozenset((*_KEYWORDS.split(), *_HEADERS.split(), "example"))


def identifier(text: str) -> CText:
    """The start of a model's identifiers, macros and file names.

    ASCII letters, digits and single underscores. `model_` stands before what begins with a digit, is a word
    of C or C++ or the name of a header, or begins as the generated code's own symbols do.

    Raises:
        UsageError: the result would have more than `MAX_NAME_CHARS`.

    >>> identifier("resnet50-v1.5"), identifier("3d net"), identifier("int"), identifier("*/")
    ('resnet50_v1_5', 'model_3d_net', 'model_int', 'model')
    """
    # One that is far too long is cut before it is worked on: the file that it came from may be huge.
    name = re.sub(r"[^A-Za-z0-9]+", "_", text[: 64 * MAX_NAME_CHARS]).strip("_") or "model"
    lower = name.lower()
    if name[0].isdigit() or lower in _RESERVED or lower.startswith(("tw_", "llvm_")):
        name = f"model_{name}"
    if len(name) > MAX_NAME_CHARS:
        raise UsageError(
            f"name {comment(name[:20])}... has {len(name)} characters; exported models have at most "
            f"{MAX_NAME_CHARS} (MAX_NAME_CHARS): give a shorter one with --name or name=."
        )
    return CText(name)


def macro(name: CText) -> CText:
    """An identifier as the start of macros."""
    return CText(name.upper())


def file_name(name: CText, suffix: str) -> str:
    """The name of one of a model's files."""
    return f"{name}.{suffix}"


def comment(text: str) -> CText:
    r"""Text within a comment: other characters as their code points, long text cut.

    >>> comment("/conv/weight:0"), comment("*\\ \n"), comment("x" * 300)[-5:]
    ('/conv/weight:0', '<U+002A><U+005C> <U+000A>', 'xx...')
    """
    shown = "".join(c if c in _COMMENT_CHARS else f"<U+{ord(c):04X}>" for c in text[:MAX_COMMENT_CHARS])
    return CText(shown + ("..." if len(text) > MAX_COMMENT_CHARS else ""))


def joined(separator: str, parts: list[CText]) -> CText:
    """Parts with a text of ours between them."""
    return CText(separator.join(parts))
