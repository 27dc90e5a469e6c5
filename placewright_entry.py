"""What runs first: checks that the packages about to be imported are placewright's own, then starts the command line.

The folders of placewright are top-level packages with ordinary names, so that another distribution, or a file in a
folder of PYTHONPATH, may bear one of them. This module has a name that nothing else has, and imports none of them
before it has looked where they come from.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("pipeline", "coarsen", "embed", "policy", "runtime")
HOME = Path(__file__).resolve().parent
CONFLICT = 2  # exit code
APART = "install placewright into an environment of its own"


@dataclass(frozen=True, slots=True)
class Conflict:
    """What stands in the place of files of ours: one line of cause and one of remedy."""

    cause: str
    remedy: str


@cache
def find_conflict() -> Conflict | None:
    """Return what keeps our packages from being imported as they were installed, or None.

    Each must be found beside this file. In an environment that placewright was installed into, its files must also
    have the sizes that were listed when it was; a checkout has no such list.
    """
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if found != HOME / name / "__init__.py" and (HOME / name / "__init__.py").is_file():
            return _found_first(name, found)
    return next(_replaced_files(), None)


def _found_first(name: str, found: Path | None) -> Conflict:
    """Return the conflict of a package with the file that Python imports instead."""
    if found is None:
        return Conflict(
            f"The package {name!r} of placewright lies in {HOME / name}, but Python does not find it.",
            f"Remove what replaces Python's search for packages, or {APART}.",
        )
    other = found.parent if found.name == "__init__.py" else found
    owner = _owning_distribution(other.parent, f"{name}/", f"{name}.py")
    return Conflict(
        f"The package {name!r} of placewright lies in {HOME / name}, but Python finds {other} first"
        f"{f', of the distribution {owner}' if owner else ''}.",
        f"{f'Uninstall {owner}' if owner else 'Rename it, or take its folder off PYTHONPATH'}, or {APART}.",
    )


def _replaced_files() -> Iterator[Conflict]:
    """Yield the conflicts of our files with what was installed, or written, over them."""
    for record in HOME.glob("placewright-*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as lines:
            sizes = {name: int(size) for name, _, size in csv.reader(lines) if size}
        for name, size in sizes.items():
            if not name.startswith(tuple(f"{package}/" for package in PACKAGES)):
                continue
            path = HOME / name
            package = f"{name.removesuffix('.py')}/__init__.py"  # Python prefers it to the module of its name
            if package != name and package not in sizes and (HOME / package).is_file():
                yield _conflict_of(HOME / package, f"stands before {path} of placewright", record, package)
            elif not path.is_file():
                yield _conflict_of(path, "of placewright is missing", record, "")
            elif path.stat().st_size != size:
                yield _conflict_of(path, "is not the one that placewright installed", record, name)


def _conflict_of(path: Path, fault: str, record: Path, name: str) -> Conflict:
    """Return the conflict of one file; name: what the distribution that wrote it calls it."""
    owner = _owning_distribution(HOME, name) if name else ""
    return Conflict(
        f"The file {path} {fault} (listed in {record})"
        f"{f': the distribution {owner} has installed one there' if owner else ''}.",
        f"{f'Uninstall {owner} and install' if owner else 'Install'} placewright again (pip install "
        f"--force-reinstall), or {APART}.",
    )


def _owning_distribution(folder: Path, *names: str) -> str:
    """Return the other distribution in a folder that lists a file whose path begins with one of the names, or "".

    >>> _owner(HOME / "nowhere", "pipeline/")
    ''
    """
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        distribution = record.parent.name.removesuffix(".dist-info")
        lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        if not distribution.startswith("placewright-") and any(line.startswith(names) for line in lines):
            return distribution.replace("-", " ")
    return ""


def check_packages() -> None:
    """Check where our packages come from, for whoever imports them instead of starting the command line.

    Raises:
        ShadowedPackageError: another package, or a file of one, stands in the place of ours.
    """
    conflict = find_conflict()
    if conflict is not None:
        from pipeline.core.errors import ShadowedPackageError

        raise ShadowedPackageError(conflict.cause, conflict.remedy)


def main() -> None:
    """Run the command line and exit with its code; exit with 2 where its packages are not ours."""
    conflict = find_conflict()
    if conflict is not None:
        sys.stderr.write(f"error: {conflict.cause}\n  fix: {conflict.remedy}\n")
        sys.exit(CONFLICT)
    from pipeline.cli.main import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
