"""``jointopt``: the group of commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import codecs
import errno
import gc
import importlib
import io
import json
import keyword
import os
import sys
import traceback
import unicodedata
from contextlib import suppress
from typing import Any

import click

from jointopt import __version__
from jointopt.cli import common
from jointopt.core.errors import JointOptError
from jointopt.core.secrets import masked

GROUPS = {  # the commands of the help by what they are for, in its order
    "Plan": ("propose", "explain", "compare", "scale", "fleet", "goodput", "select", "report"),
    "Run": ("import", "export", "tune", "validate", "exec", "follow", "watch"),
    "Learn": ("ingest", "retrain", "predict", "evaluate", "calibrate"),
    "Tools": ("dashboard", "check", "polish", "catalog", "doctor", "script", "work", "store", "clocks", "mcp",
              "completion"),
}  # fmt: skip
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
_IN_ONE_LINE = ("Tools",)


class Commands(click.Group):
    """Imports the module of a command when the command is used, never all of what it needs to run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the help."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands of each group; of tools only the names."""
        for group, names in GROUPS.items():
            with formatter.section(group):
                if group in _IN_ONE_LINE:
                    formatter.write(click.wrap_text(", ".join(names), formatter.width, "  ", "  ") + "\n")
                    continue
                found = [(name, self.get_command(ctx, name)) for name in names]
                formatter.write_dl([(name, one.get_short_help_str(formatter.width)) for name, one in found if one])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None for an unknown one."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name + "_" * keyword.iskeyword(cmd_name)
        command: click.Command = getattr(importlib.import_module(f"jointopt.cli.{name}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what goes wrong on purpose is one line on stderr and an exit code, never a traceback."""
        common.print_log()
        try:
            return super().invoke(ctx)
        except JointOptError as error:
            message, exit_code = self._with_options(str(error), ctx), error.exit_code
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader went away, as `head` does; click ends quietly
                raise
            message, exit_code = os_error_sentence(error), 2
        except UnicodeError as error:
            message, exit_code = f"A name or a text has characters that cannot be written here: {error}.", 2
        except MemoryError:
            message, exit_code = "There is not enough memory for this; give it fewer rows or plans, or more memory.", 1
        except RecursionError:
            message, exit_code = "The input is nested too deeply to be read; expected a few levels.", 2
        except KeyboardInterrupt:
            message, exit_code = "interrupted.", 130
        finally:
            common.BARS.end()
        click.echo(f"Error: {masked(' '.join(message.split()))}", err=True)
        ctx.exit(exit_code)

    def _with_options(self, message: str, ctx: click.Context) -> str:
        """The message of a verb about one of its arguments, as one about the command's option."""
        name, must_be, _ = message.partition(" must be ")
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        flags = {one.name: one.opts[0] for one in command.params if one.opts[0].startswith("--")} if command else {}
        return message.replace(name, flags[name], 1) if must_be and name in flags else message


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="jointopt")
def jointopt() -> None:
    """Finds the parallel layout and the GPU clocks that train a language model fast and with little energy.

    \b
    Try:
      jointopt propose --model llama-3-8b --gpu h100-sxm5-80gb --gpus 64 \\
          --global-batch-size 512 --seq-length 8192
    """


def main() -> None:
    """The entry point of the ``jointopt`` script."""
    gc.set_threshold(100_000, 20, 20)  # by default it takes a tenth of a short command, over objects of imports
    take_streams()
    try:
        sys.exit(jointopt())
    except OSError as error:  # of what click prints itself, such as help
        click.echo(f"Error: {os_error_sentence(error)}", err=True)
        sys.exit(2)
    finally:
        gc.freeze()  # or Python looks at every object once more before it ends, another tenth


# The surroundings of a command: its standard streams, their encoding, its working folder.

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
