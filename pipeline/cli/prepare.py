"""prepare: compiling everything before the first search."""

from __future__ import annotations

import click

from pipeline.cli import console
from pipeline.cli.options import debug_option


@click.command()
@click.option("--quiet", is_flag=True, help="Hide progress.")
@debug_option
def prepare(*, quiet: bool, debug: bool) -> None:
    """Compile all kernels now, so that no later search has to.

    It uses two cores. `make setup` runs it. Kernels that are compiled already are only loaded.
    """
    from pipeline.placing.prepare import prepare as compile_all
    from pipeline.shared.compiled import cache_root

    with console.show_progress(quiet=quiet) as progress:
        seconds = compile_all(say=progress)
    if not quiet:
        console.print_result(f"Compiled in {seconds:.0f} s; kernels are cached in {cache_root()}")
