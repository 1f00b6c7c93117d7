"""`tidelog completion`: the script with which a shell completes commands, options and settings."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_COMMAND = "tidelog"
_VARIABLE = "_TIDELOG_COMPLETE"
"""Environment variable by which the shell asks; click derives the same name from the command's."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands in SHELL.

    \b
    Put it where the shell looks, and open a new one (zsh: in a folder of $fpath; fish and bash as here):
      tidelog completion bash > ~/.local/share/bash-completion/completions/tidelog
      tidelog completion zsh > ~/.zfunc/_tidelog
      tidelog completion fish > ~/.config/fish/completions/tidelog.fish

    \b
    For this shell only:
      eval "$(tidelog completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, _COMMAND, _VARIABLE).source())
