"""The help of all commands, as docs/commands.md has it on the site: `python -m pipeline.cli.reference`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pipeline.cli.main import COMMANDS, LazyGroup, cli

WIDTH = 110


def commands_page() -> str:
    """Return a section for every command, in Markdown."""
    return "\n".join(f"## {title}\n\n```text\n{text.rstrip()}\n```\n" for title, text in help_sections())


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
