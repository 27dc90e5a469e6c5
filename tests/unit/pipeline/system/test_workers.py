"""Workers: few processes for many tasks; one that dies fails its task alone; none is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.core.errors import MeasurementError, ModelError, error_from_document
from pipeline.store.task import Task
from pipeline.system import workers
from pipeline.system.workers import Begin, Handler, Workers

START = subprocess.Popen
ECHO = """
    import json, os, sys
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("say"):
            print(asked["say"], file=sys.stderr, flush=True)
        for step in asked.get("begin", ()):
            print(json.dumps({"begun": step}), flush=True)
        if asked.get("die") is not None:
            os.kill(os.getpid(), asked["die"]) if asked["die"] else os._exit(3)
        if asked.get("garble"):
            print(asked["garble"], flush=True)
            continue
        print(json.dumps({"pid": os.getpid(), "long": "x" * asked.get("long", 0)}), flush=True)
"""


@pytest.fixture(autouse=True)
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers answer with their process id, or die, as they are asked."""
    script = tmp_path / "echo.py"
    script.write_text(textwrap.dedent(ECHO), encoding="utf-8")

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return START([sys.executable, str(script)], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)


def answers(pool: Workers, most: int, commands: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what became of commands named "0", "1", ..., of which `most` are at work at once."""
    waiting, found = {str(i): command for i, command in enumerate(commands)}, {}
    while waiting or pool.busy:
        while waiting and len(pool.busy) < most:
            name = next(iter(waiting))
            pool.ask(name, waiting.pop(name))
        found |= dict(pool.wait())
    return found


def test_many_tasks_are_done_by_as_few_processes_as_are_ever_needed_at_once() -> None:
    with Workers(3, "pipeline.stages.worker") as pool:
        assert not pool.pids
        found = answers(pool, 2, [{}] * 9)
        assert sorted(found) == [str(i) for i in range(9)]
        assert {a["pid"] for a in found.values()} <= set(pool.pids)
        assert pool.started == len(pool.pids) == 2


def test_no_more_than_the_most_are_busy() -> None:
    with Workers(1, "pipeline.stages.worker") as pool:
        pool.ask("a", {})
        with pytest.raises(ValueError, match="busy"):
            pool.ask("b", {})
        assert [name for name, _ in pool.wait()] == ["a"]


def test_a_worker_that_dies_fails_its_task_with_its_words_and_is_replaced() -> None:
    with Workers(1, "pipeline.stages.worker") as pool:
        found = answers(
            pool,
            1,
            [
                {"say": "of a task before"},
                {"say": "bad thing", "die": int(signal.SIGSEGV)},
                {},
                {"die": 0},
            ],
        )
        assert found["1"]["error"]["cause"] == "The process was killed by SIGSEGV; it last said: bad thing."
        assert found["3"]["error"]["cause"] == "The process ended with status 3."
        assert found["2"]["pid"] != found["0"]["pid"]
        assert pool.started == 2


def test_a_worker_that_died_while_it_was_idle_fails_no_task() -> None:
    with Workers(1, "pipeline.stages.worker") as pool:
        first = answers(pool, 1, [{}])["0"]["pid"]
        os.kill(first, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(first)] if psutil.pid_exists(first) else [])
        assert answers(pool, 1, [{}])["0"]["pid"] != first


def test_a_worker_is_replaced_after_so_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "TASKS", 2)
    with Workers(1, "pipeline.stages.worker") as pool:
        found = answers(pool, 1, [{}] * 5)
        assert [len({found[i]["pid"] for i in pair}) for pair in ("01", "23")] == [1, 1]
        assert pool.started == 3


def test_an_answer_longer_than_a_pipe_holds_arrives_whole() -> None:
    with Workers(1, "pipeline.stages.worker") as pool:
        assert len(answers(pool, 1, [{"long": 1 << 18}])["0"]["long"]) == 1 << 18


def test_leaving_ends_busy_and_idle_workers() -> None:
    with Workers(2, "pipeline.stages.worker") as pool:
        answers(pool, 2, [{}, {}])
        pool.ask("busy", {})
        processes = [psutil.Process(pid) for pid in pool.pids]
    assert not any(p.is_running() for p in processes)


def command(store: Path) -> dict[str, Any]:
    """Return a task whose input is missing, as a worker is handed it."""
    task = Task("coarsen", "none", {}, {"use": []}, 0, {"read": "0" * 64})
    return {"tasks": [asdict(task)], "store": str(store), "previous": {}, "alone": False}


def test_a_process_that_is_killed_leaves_no_workers_behind(tmp_path: Path) -> None:
    script = f"""
        import time
        from pipeline.system.workers import Begin, Handler, Workers
        with Workers(1, "pipeline.stages.worker") as pool:
            pool.ask("a", {command(tmp_path)})
            pool.wait()
            print(*pool.pids, flush=True)
            time.sleep(600)
    """
    parent = START([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        left = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(left) == 1
    assert not psutil.wait_procs(left, timeout=60)[1]


def test_a_worker_executes_one_task_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", START)
    with Workers(1, "pipeline.stages.worker") as pool:
        found = answers(pool, 1, [command(tmp_path), command(tmp_path)])
        assert "The read artifact 000000000000 is not in the store." in found["1"]["error"]["cause"]
        assert found["0"] == found["1"]
        assert pool.started == 1


def test_a_command_is_answered_by_the_handler_of_its_key_which_may_tell_of_steps() -> None:
    def add(command: dict[str, Any], begin: Begin) -> dict[str, Any]:
        begin("adding")
        return {"sum": sum(command["add"])}

    begun: list[str] = []
    handlers: dict[str, Handler] = {"add": add, "name": lambda command, _: {"hello": command["name"]}}
    assert workers.answer_command(handlers, {"add": [1, 2], "store": "s"}, begun.append) == {"sum": 3}
    assert workers.answer_command(handlers, {"name": "w"}) == {"hello": "w"}
    assert begun == ["adding"]
    with pytest.raises(ValueError, match="not enough values"):
        workers.answer_command(handlers, {"other": 1})


def test_an_error_of_another_process_keeps_its_exit_code() -> None:
    def fail(_: dict[str, Any], begin: Begin) -> dict[str, Any]:
        raise ModelError("It is damaged.", "Export it again.")

    answer = json.loads(json.dumps(workers.answer_command({"do": fail}, {"do": 1})))
    error = error_from_document(answer["error"], where="job")
    assert (error.cause, error.remedy, error.exit_code) == ("job: It is damaged.", "Export it again.", 3)
    died = error_from_document({"cause": "It was killed.", "remedy": ""}, MeasurementError)
    assert (type(died), died.exit_code) == (MeasurementError, 5)


def test_a_process_that_dies_names_the_step_that_it_had_begun() -> None:
    with Workers(1, "pipeline.stages.worker") as pool:
        begun: list[str] = []
        pool.ask("a", {"begin": ["coarsen", "embed"], "die": signal.SIGKILL})
        [(name, answer)] = pool.wait(begun.append)
        assert (name, answer["doing"], begun) == ("a", "embed", ["coarsen", "embed"])
        pool.ask("b", {"die": 0})
        [(_, answer)] = pool.wait()
        assert (answer["died"], answer["doing"]) == (True, "")


@pytest.mark.parametrize("line", ["{", "[]", "{}", "[" * 2000])
def test_a_damaged_answer_fails_its_task_alone(line: str) -> None:
    with Workers(1, "any") as pool:
        assert "damaged" in answers(pool, 1, [{"garble": line}])["0"]["error"]["cause"]
        assert "pid" in answers(pool, 1, [{}])["0"]
