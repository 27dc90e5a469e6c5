"""Commands in environments that are unlike a developer's: encodings, homes, folders, signals, clocks, one processor."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaigns.cgroups import processor_group
from tests.campaigns.files import GRAPH, TOPOLOGY, toml_text
from tests.campaigns.runner import Campaign, Case, Judge, require

PATIENCE_S = 240.0
START = "import sys; from pipeline.cli.main import main; sys.argv[0] = 'placewright'; main()"
IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + START
FOLDERS = ("plain", "with space", "Übergröße", "日本", "quote'\"", "$HOME", "-dash", "[b]x[/b]", "%s", "a;b&c")
CHANGES = ("XYZ0ABC-1,J330/0,J331/0", "XYZ0ABC,J329/23,J331", "XYZ+23ABC-23,0/0,J365/0", "Antarctica/Troll")
NAMES = ("a", "ü", "日本", "→")


@dataclass
class Surroundings:
    """What a command is run with."""

    environment: dict[str, str | None] = field(default_factory=dict)
    start: str = START
    before: Callable[[], object] | None = None
    folder: str = "plain"
    cgroup: Path | None = None


def in_new_mounts(*commands: str) -> str:
    """Return a program that starts a command where something is mounted that nobody else sees."""
    shell = " && ".join((*commands, 'exec "$0" -c "$@"'))
    unshared = ["unshare", "--mount", "--map-root-user", "sh", "-c", shell]
    return f"import os, sys; os.execvp('unshare', {unshared!r} + [sys.executable, {START!r}, *sys.argv[1:]])"


def may_unshare() -> bool:
    """Return whether this user may mount something for one process."""
    return (
        subprocess.run(["unshare", "--mount", "--map-root-user", "true"], check=False, capture_output=True).returncode
        == 0
    )


def draw(case: Case, group: Path | None) -> tuple[str, Surroundings]:
    """Draw the surroundings of a case, and what is unusual about them."""
    rng, folder = case.rng, case.folder
    nowhere = str(folder / "nowhere")
    closed = folder / "closed"
    closed.mkdir(mode=0o500)
    home = folder / "home"
    home.mkdir()
    unusual: Mapping[str, Surroundings] = {
        "ASCII output": Surroundings({"PYTHONIOENCODING": "ascii"}),
        "Latin-1 locale": Surroundings(
            {"LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
        ),
        "C locale": Surroundings({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        "no home": Surroundings({"HOME": None, "XDG_CACHE_HOME": None}),
        "home is nowhere": Surroundings({"HOME": nowhere, "XDG_CACHE_HOME": None}),
        "home is a file": Surroundings({"HOME": "/dev/null", "XDG_CACHE_HOME": None}),
        "home is read-only": Surroundings({"HOME": str(closed), "XDG_CACHE_HOME": None}),
        "one processor": Surroundings(before=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})),
        "SIGINT ignored": Surroundings(start=IGNORING),
        "no temporary folder but the working directory": Surroundings({"TMPDIR": nowhere}),
        "time zone": Surroundings(
            {"TZ": str(rng.choice(["Pacific/Apia", "Asia/Kathmandu", "nonsense", ":/etc/passwd"]))}
        ),
        "folder": Surroundings(folder=str(rng.choice(FOLDERS))),
        "few open files": Surroundings(before=_few_files),
        "umask 0777": Surroundings(before=lambda: os.umask(0o777)),
        "half a processor": Surroundings(cgroup=group),
        "no shared memory": Surroundings(start=in_new_mounts("mount -t tmpfs -o ro,size=4k none /dev/shm")),
        "read-only home, for everybody": Surroundings(
            {"HOME": str(home), "XDG_CACHE_HOME": None},
            start=in_new_mounts(
                f"mount --bind {shlex.quote(str(home))} {shlex.quote(str(home))}",
                f"mount -o remount,ro,bind {shlex.quote(str(home))}",
            ),
        ),
        "summer time begins, and ends": Surroundings({"TZ": str(rng.choice(CHANGES))}),
    }
    name = list(unusual)[case.seed % len(unusual)]
    return name, unusual[name]


def _few_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text("0", encoding="ascii")


def judge_surroundings(case: Case, group: Path | None) -> str:
    """Search in drawn surroundings, as JSON and as a table, and list a store; each ends right, or with one line."""
    name, around = draw(case, group)
    if name == "half a processor" and group is None:
        return f"{name}: skipped, no group can be made"
    if "unshare" in around.start and not may_unshare():
        return f"{name}: skipped, nothing may be mounted"
    folder = case.folder / around.folder
    folder.mkdir(exist_ok=True)
    graph: dict[str, Any] = json.loads(
        json.dumps(GRAPH).replace('"a"', json.dumps(NAMES[case.rng.integers(len(NAMES))]))
    )
    (folder / "g.json").write_text(json.dumps(graph), encoding="utf-8")
    (folder / "t.toml").write_text(toml_text(TOPOLOGY), encoding="utf-8")
    commands = [
        ["search", "./g.json", "--topology", "t.toml", "--evaluations", "6", "--report", "page.html"],
        ["cache", "ls", "--store", "store"],
    ]
    environment = {**os.environ, "CI": "true", "PYTHONPATH": str(Path.cwd())} | around.environment
    for command in commands:
        ended = subprocess.run(
            [sys.executable, "-c", around.start, *command],
            cwd=folder,
            env={k: v for k, v in environment.items() if v is not None},
            preexec_fn=around.before if around.cgroup is None else partial(_join, around.cgroup),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        words = ended.stderr.decode(errors="replace")
        require("Traceback" not in words and ended.returncode in (0, 2), f"{name}, {command[0]}: {words[-900:]}")
        if name not in ("umask 0777", "no temporary folder but the working directory", "few open files"):
            require(ended.returncode == 0, f"{name}, {command[0]}: {words[-500:]}")
    return name


@contextlib.contextmanager
def begin(_: Path) -> Iterator[Judge]:
    """Give what draws surroundings."""
    with processor_group(0.5) as group:
        yield partial(judge_surroundings, group=group)


CAMPAIGN = Campaign("platforms", 0.5, begin)
