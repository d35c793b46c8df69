"""The surroundings of a command: its standard streams, their encoding, its working folder."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import traceback
import unicodedata
from contextlib import suppress

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # by their descriptors
_ASCII = "jointopt-ascii"  # click writes UTF-8 to a stream whose encoding is called ascii
_ERRORS = "jointopt-plain"
_STAND_INS = {
    "±": "+-", "×": "x", "·": "*", "−": "-", "°": " deg ", "Δ": "d", "δ": "d", "τ": "tau", "µ": "u", "μ": "u",
    "–": "-", "—": "-", "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "…": "...", "‘": "'", "’": "'", "“": "'", "”": "'",
    "█": "#", "━": "-", "╸": "-", "╺": "-", "•": "*",
}  # fmt: skip
_GONE = "The working folder has been removed; change into one that exists."


def take_streams() -> None:
    """Make the standard streams writable in every environment.

    A descriptor that is closed becomes /dev/null: else the next file that is opened, a database among them, has its
    number, and receives what libraries print. What an encoding lacks is written as `plain` says. A SystemExit with one
    sentence where stdout is closed: whatever was asked for, its answer could not be printed.
    """
    codecs.register_error(_ERRORS, plain)
    codecs.register(_plain_ascii)
    missing = [name for number, (name, _) in enumerate(_STREAMS) if not _is_open(number)]
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if mode == "w" and isinstance(stream, io.TextIOWrapper):  # of a test or a notebook it may be another
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=_ASCII if is_ascii else None, errors=_ERRORS)
    if "stdout" in missing:
        print("Error: Standard output is closed, so no answer can be printed; expected a file, a pipe or a terminal: "
              "add >/dev/null to do without.", file=sys.stderr)  # fmt: skip
        sys.exit(2)


def _is_open(number: int) -> bool:
    """Whether a descriptor was open; it is now."""
    try:
        os.fstat(number)
    except OSError:
        handle = os.open(os.devnull, os.O_RDWR)
        os.dup2(handle, number)
        if handle != number:
            os.close(handle)
        return False
    return True


def _plain_ascii(name: str) -> codecs.CodecInfo | None:
    if name.replace("_", "-") != _ASCII:
        return None
    found = codecs.lookup("ascii")
    return codecs.CodecInfo(
        found.encode, found.decode, found.streamreader, found.streamwriter, found.incrementalencoder,
        found.incrementaldecoder, name=_ASCII,
    )  # fmt: skip


def plain(error: UnicodeError) -> tuple[str, int]:
    """Words that stand in for characters that an encoding lacks, and where to go on: an error handler of `codecs`.

    Readable ASCII, else an escape as in JSON (bytes of file names that are no UTF-8 too), which leaves JSON valid.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_stand_in, error.object[error.start : error.end])), error.end


def _stand_in(character: str) -> str:
    known = _STAND_INS.get(character)
    if known is not None:
        return known
    letters = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return letters if letters.isalnum() else json.dumps(character)[1:-1]


def os_error_sentence(error: OSError) -> str:
    """The refusal of the system, where the library has no words for it."""
    if error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror or error}."
    if isinstance(error, FileNotFoundError) and not _has_working_folder():
        return _GONE
    modules = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)]
    if modules[-1:] != ["click.utils"]:  # click prints every answer
        return f"A file: {error.strerror or error}."
    with suppress(OSError, ValueError):  # stdout leads nowhere, or Python would try again at its end, with a traceback
        handle = os.open(os.devnull, os.O_WRONLY)
        os.dup2(handle, sys.stdout.fileno())
        os.close(handle)
    return f"Standard output: {error.strerror or error}; the answer is not printed, or not to its end."


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
