"""The page of all commands and their options; `python -m pipeline.cli.reference > docs/commands.md`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pipeline.cli.main import COMMANDS, LazyGroup, cli

WIDTH = 110
HEAD = """# Commands

Written by `python -m pipeline.cli.reference > docs/commands.md` from what every command says with `--help`.

Shell completion is one line, for bash in `~/.bashrc` (zsh and fish: the same with `zsh_source`, `fish_source`):

    eval "$(_PLACEWRIGHT_COMPLETE=bash_source placewright)"
"""


def commands_page() -> str:
    """Return the whole page."""
    return HEAD + "".join(f"\n## {title}\n\n```text\n{text.rstrip()}\n```\n" for title, text in help_sections())


def help_sections() -> Iterator[tuple[str, str]]:
    """Yield (name, help) of every command, and of those below it."""
    top = click.Context(cli, info_name="placewright", terminal_width=WIDTH, max_content_width=WIDTH)
    group = LazyGroup("placewright")
    for name in COMMANDS:
        command = group.get_command(top, name)
        if command is not None:
            yield from _sections_of(command, click.Context(command, parent=top, info_name=name))


def _sections_of(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path.removeprefix("placewright "), command.get_help(context)
    for name, below in getattr(command, "commands", {}).items():
        yield from _sections_of(below, click.Context(below, parent=context, info_name=name))


if __name__ == "__main__":
    print(commands_page(), end="")
