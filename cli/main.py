"""``jointopt``: the group of commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import errno
import gc
import importlib
import keyword
import sys
from typing import Any

import click

from jointopt import __version__
from jointopt.cli import common, surroundings
from jointopt.core.errors import JointOptError
from jointopt.core.secrets import masked

COMMANDS = (
    "check", "propose", "report", "select", "explain", "compare", "scale", "polish", "predict", "evaluate", "ingest",
    "store", "retrain", "validate", "tune", "script", "import", "export", "work", "dashboard", "exec", "clocks",
    "doctor", "calibrate", "catalog", "completion",
)  # fmt: skip


class Commands(click.Group):
    """Imports the module of a command when the command is used, never all of what it needs to run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the help."""
        return list(COMMANDS)

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
            message, exit_code = surroundings.os_error_sentence(error), 2
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
    surroundings.take_streams()
    try:
        sys.exit(jointopt())
    except OSError as error:  # of what click prints itself, such as help
        click.echo(f"Error: {surroundings.os_error_sentence(error)}", err=True)
        sys.exit(2)
    finally:
        gc.freeze()  # or Python looks at every object once more before it ends, another tenth
