"""The CI jobs that `gate --ci` prints: they are YAML, and their shell steps run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.cli.main import run_command_line
from pipeline.gate.gate_file import GateOptions, read_gate

GATE = """#!/bin/sh
echo "$@" > "$MARKS/gate"
mkdir -p gate && echo '## placewright gate: passed' > gate/summary.md
exit ${GATE_EXIT:-0}
"""
PIP = """#!/bin/sh
echo "$0 $@" >> "$MARKS/installed"
"""
PYTHON = """#!/bin/sh
case "$2" in
venv) mkdir -p "$3/bin" && cp "$MARKS/pip" "$3/bin/python" ;;
*) echo "python $@" >> "$MARKS/installed" ;;
esac
"""


README = Path(__file__).parents[4] / "README.md"
BEGINS = "A gate for new versions of OpenVINO in your CI"
WHEEL = """test "$*" = "-m pip wheel --no-deps --wheel-dir ci ../placewright" || exit 1
mkdir -p ci && touch ci/placewright-1.whl"""


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Return a folder of commands that note what they are asked for."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for name, text in (("placewright", GATE), ("python", PYTHON), ("pip", PIP)):
        path = (tmp_path if name == "pip" else folder) / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return folder


def run_steps(steps: list[str], tmp_path: Path, commands: Path, variables: dict[str, str]) -> int:
    """Run shell steps as a CI does, one after the other until one fails; return the last exit code."""
    more = {"MARKS": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "shown"), **variables}
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    work = tmp_path / "work"
    (work / "ci").mkdir(parents=True)
    for name in ("ci/placewright-1.whl", "model.onnx"):
        (work / name).touch()
    for step in steps:
        done = subprocess.run(
            ["bash", "-e", "-c", step], cwd=work, env={**os.environ, **more, "PATH": path}, check=False
        )
        if done.returncode:
            return done.returncode
    return 0


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> dict[object, dict[str, object]]:
    assert run_command_line(["gate", "--ci", name]) == 0
    document: dict[object, dict[str, object]] = yaml.safe_load(capsys.readouterr().out)
    return document


def check_marks(tmp_path: Path) -> None:
    installed = (tmp_path / "installed").read_text(encoding="utf-8").splitlines()
    assert [line.split()[-1] for line in installed] == ["openvino==2025.3.*", "openvino", "ci/placewright-1.whl"]
    assert "--constraint ci/constraints.txt" in installed[-1]
    assert [line.split()[0] for line in installed] == ["old/bin/python", "new/bin/python", "python"]
    asked = (tmp_path / "gate").read_text(encoding="utf-8").split()
    assert asked == ["gate", "--config", "gate.toml", "--before", "old", "--after", "new", "--out", "gate"]


def test_the_github_workflow_installs_both_versions_and_shows_the_summary(
    tmp_path: Path, commands: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = printed("github", capsys)
    assert {"schedule", "pull_request", "workflow_dispatch"} == set(document[True])  # `on` is true in YAML 1.1
    (job,) = document["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step]  # type: ignore[index]
    assert run_steps(steps, tmp_path, commands, {k: str(v) for k, v in document["env"].items()}) == 0
    check_marks(tmp_path)
    assert (tmp_path / "shown").read_text(encoding="utf-8") == "## placewright gate: passed\n"


def test_at_most_five_lines_of_the_readme_put_it_into_a_repository(tmp_path: Path, commands: Path) -> None:
    lines = re.findall(
        r"^    (.+)$", README.read_text(encoding="utf-8").partition(BEGINS)[2].partition("\n## ")[0], re.M
    )
    assert 1 <= len(lines) <= 5
    clone = tmp_path / "placewright" / ".venv" / "bin"
    clone.mkdir(parents=True)
    (tmp_path / "placewright" / "constraints.txt").touch()
    program = "import sys; from pipeline.cli.main import run_command_line; sys.exit(run_command_line(sys.argv[1:]))"
    for name, text in (("python", WHEEL), ("placewright", f'exec {sys.executable} -c "{program}" "$@"')):
        (clone / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (clone / name).chmod(0o755)
    who = {f"GIT_{whose}_{what}": "x" for whose in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    assert run_steps(["git init --quiet", *lines, "git ls-files > ../files"], tmp_path, commands, who) == 0
    committed = (tmp_path / "files").read_text(encoding="utf-8").split()
    assert committed == [".github/workflows/gate.yml", "ci/constraints.txt", "ci/placewright-1.whl", "gate.toml"]
    gate = read_gate(GateOptions((), ("NUM_STREAMS=1",), ("NUM_STREAMS=2",), tmp_path / "work" / "gate.toml"))
    assert [model.name for model in gate.models] == ["model.onnx"]


def test_the_gitlab_job_installs_both_versions_and_hands_on_the_exit_code(
    tmp_path: Path, commands: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = printed("gitlab", capsys).values()
    variables = {k: str(v) for k, v in job["variables"].items()}  # type: ignore[attr-defined]
    steps: list[str] = job["script"]  # type: ignore[assignment]
    assert run_steps(steps, tmp_path, commands, {**variables, "GATE_EXIT": "7"}) == 7
    check_marks(tmp_path)
    assert job["artifacts"]["reports"]["junit"] == "gate/junit.xml"  # type: ignore[index]
