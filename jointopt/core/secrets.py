"""Secrets in texts: what a message, a record or a log may repeat of a URL or a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
_NAMES = "password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|credentials?"
_KEY = rf"(?:[\w.-]*(?:{_NAMES}))"
_USERINFO = re.compile(r"(\w[\w+.-]*://[^/\s:@?#]*):[^/\s?#]*@(?=[^/\s@]*)")
_ASSIGNED = re.compile(rf"({_KEY}\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s&;,]+)", re.IGNORECASE)
_OPTION = re.compile(rf"--?{_KEY}", re.IGNORECASE)


def masked(text: str) -> str:
    """``text`` with the passwords of its URLs hidden, in userinfo and query, and values of keys that name a secret."""
    return _ASSIGNED.sub(rf"\1{HIDDEN}", _USERINFO.sub(rf"\1:{HIDDEN}@", text))


def masked_words(words: Iterable[str]) -> list[str]:
    """Words of a command line as a record may keep them: `masked`, and a secret option's value hidden."""
    shown: list[str] = []
    for word in words:
        follows = bool(shown) and _OPTION.fullmatch(shown[-1]) is not None and not word.startswith("-")
        shown.append(HIDDEN if follows else masked(word))
    return shown
