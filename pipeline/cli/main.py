"""The entry point: finds the command, and turns every error into one line of cause and one of remedy."""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Sequence

import click

from pipeline.cli.printable import PrintableFormatter, printable
from pipeline.core.errors import OF_THE_SYSTEM, PlacewrightError, StoreError

COMMANDS = {
    "tune": "pipeline.cli.stages:tune",
    "coarsen": "pipeline.cli.stages:coarsen",
    "embed": "pipeline.cli.stages:embed",
    "group": "pipeline.cli.stages:group",
    "place": "pipeline.cli.stages:place",
    "measure": "pipeline.cli.stages:measure",
    "batch": "pipeline.cli.jobs:batch",
    "bench": "pipeline.cli.bench:bench",
    "calibrate": "pipeline.cli.calibrate:calibrate",
    "predict": "pipeline.cli.calibrate:predict",
    "search": "pipeline.cli.search:search",
    "simulate": "pipeline.cli.search:simulate",
    "bound": "pipeline.cli.search:bound",
    "worth": "pipeline.cli.worth:worth",
    "split": "pipeline.cli.split:split",
    "emit": "pipeline.cli.deploy:emit",
    "where": "pipeline.cli.deploy:where",
    "compare": "pipeline.cli.deploy:compare",
    "gate": "pipeline.cli.gate:gate",
    "report": "pipeline.cli.report:report",
    "train": "pipeline.cli.train:train",
    "devices": "pipeline.cli.inspect_commands:devices",
    "zoo": "pipeline.cli.inspect_commands:zoo",
    "list": "pipeline.cli.inspect_commands:list_",
    "explain": "pipeline.cli.inspect_commands:explain",
    "schema": "pipeline.cli.inspect_commands:schema",
    "doctor": "pipeline.cli.inspect_commands:doctor",
    "prepare": "pipeline.cli.prepare:prepare",
    "cache": "pipeline.cli.cache:cache",
}
KEEPS_NOTHING = ("search", "simulate", "bound", "worth")
INTERRUPTED = 130
BUG = 1


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; a misspelt name is answered with the nearest."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"Unknown command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="placewright", prog_name="placewright")
def cli() -> None:
    """Find the device for every operation of a neural network by measuring.

    \b
    placewright tune model.xml                 the whole way, on what this machine has
    placewright tune zoo:resnet50 --out run/   a model that is built in
    placewright explain coarsen.metis          what a part does, and its parameters
    """  # noqa: D301  click wants the real backspace character


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])
    try:
        taken = None if arguments is None else list(arguments)
        code = cli.main(args=taken, prog_name="placewright", standalone_mode=False)
    except SystemExit:
        return 0  # so click ends when whoever read our output has gone
    except PlacewrightError as error:
        return _report_error(error.cause, error.remedy, error.exit_code, debug=debug)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "placewright"
        return _report_error(error.format_message(), f"See `{command} --help`.", error.exit_code, debug=debug)
    except click.ClickException as error:
        return _report_error(error.format_message(), "", error.exit_code, debug=debug)
    except (KeyboardInterrupt, click.Abort):
        words = sys.argv[1:] if arguments is None else arguments
        return _report_error("Interrupted.", _after_interrupt(words), INTERRUPTED, debug=debug)
    except OSError as error:
        if error.errno not in OF_THE_SYSTEM:
            return _report_bug(error, debug=debug)
        where = f"{error.filename} cannot be read or written" if error.filename else "A file cannot be read or written"
        remedy = "Check the disk, its free space and its permissions, then run the same command again."
        return _report_error(f"{where}: {error.strerror}.", remedy, StoreError.exit_code, debug=debug)
    except Exception as error:  # noqa: BLE001  the last line of defence: a bug of ours, said as such
        return _report_bug(error, debug=debug)
    return code if isinstance(code, int) else 0


def _after_interrupt(words: Sequence[str]) -> str:
    """Return what to do after an interrupt of the command line `words`."""
    kept = any(word.partition("=")[0] == "--checkpoint" for word in words)
    if not kept and next((word for word in words if word in COMMANDS), "") in KEEPS_NOTHING:
        return "Run it again (it starts from scratch); a smaller --budget or --evaluations ends a search sooner."
    return "Run the same command again: it resumes where it stopped."


def _report_bug(error: Exception, *, debug: bool) -> int:
    return _report_error(
        f"This is a bug in placewright: {error!r}.", "Run again with --debug and report it.", BUG, debug=debug
    )


def _report_error(cause: str, remedy: str, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    click.echo(printable(f"error: {' '.join(cause.split())}"), err=True)
    if remedy:
        click.echo(printable(f"  fix: {' '.join(remedy.split())}"), err=True)
    return code


def main() -> None:
    """Run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what its encoding lacks is spelled out
            stream.reconfigure(errors="backslashreplace")
    # What torch-geometric does when it is imported; newer versions of torch tell everybody, not only developers.
    warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
    sys.exit(run_command_line())
