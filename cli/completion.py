"""``jointopt completion``."""

from __future__ import annotations

import click


@click.command(short_help="Complete words on the command line.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL for commands, options and values; evaluate it when the shell starts.

    \b
    Examples:
      echo 'eval "$(jointopt completion bash)"' >> ~/.bashrc
      jointopt completion fish > ~/.config/fish/completions/jointopt.fish
    """
    from click.shell_completion import get_completion_class

    from jointopt.cli.main import jointopt

    found = get_completion_class(shell)
    if found is None:  # which click lists shells for
        raise click.UsageError(f"click knows no completion for {shell}.")
    click.echo(found(jointopt, {}, "jointopt", "_JOINTOPT_COMPLETE").source())
