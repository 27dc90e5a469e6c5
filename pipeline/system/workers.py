"""A few processes that execute tasks one after another, so that what a task imports is imported once per process.

A worker is a process of a module that ends in `serve_commands`, and is spoken to in JSON lines over pipes. It is
started when a task has to run and no other is idle; while it is idle it sleeps in a read. One that dies fails the task
it had, with its last words, and no other.
"""

from __future__ import annotations

import json
import os
import queue
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from pipeline.core.errors import UNPARSABLE, PlacewrightError, error_document
from pipeline.system.process import Piped, describe_ending, die_with_parent, take_next

TASKS = 32  # after which a worker is replaced: what its libraries hold on to, and leak, has an end

BEGUN = "begun"  # the key of a line that is no answer yet

Answer = Mapping[str, Any]
Begin = Callable[[str], None]  # told of a step when it begins
Handler = Callable[[dict[str, Any], Begin], Answer]  # answers a command; raises PlacewrightError where it fails


def ignore_step(_: str) -> None:
    """Do nothing when a step begins."""


class Worker:
    """One process and the pipes to it. `at` names what it has been asked and not yet answered, "" if it is idle.

    `doing`: the step of it that it has told of last, "" if it tells of none.
    heard: gets the worker and every line that it writes, b"" at its end.
    """

    def __init__(self, module: str, heard: Callable[[tuple[Worker, bytes]], None]) -> None:
        self.at = self.doing = ""
        self.asked = 0
        self._quiet_until = 0
        self._piped = Piped(module, heard=lambda line: heard((self, line)))

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._piped.process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process is still there."""
        return self._piped.process.poll() is None

    def ask(self, name: str, command: Mapping[str, Any]) -> None:
        """Hand over a command; a worker that is dead is found out when its answer is read."""
        self.at, self.doing, self.asked = name, "", self.asked + 1
        self._quiet_until = self._piped.said
        self._piped.send(json.dumps(command).encode() + b"\n")

    def answer(self, line: bytes) -> Answer | None:
        """Return the answer that a line holds; None if it only tells of a step that is begun.

        Where the process has ended instead, an error with "died", and with the step as "doing".
        """
        if not line:
            return {"error": {"cause": self._end(), "remedy": ""}, "died": True, "doing": self.doing}
        try:
            answer: Answer = json.loads(line)
        except UNPARSABLE:
            answer = {}
        if not isinstance(answer, dict) or not answer:  # native code wrote into it
            return {"error": {"cause": "The answer of a process is damaged.", "remedy": ""}, "died": True, "doing": ""}
        if BEGUN in answer:
            self.doing = str(answer[BEGUN])
            return None
        self.at = ""
        return answer

    def _end(self) -> str:
        """Return how the process ended, in words, and what it said on its last task."""
        status = self._piped.process.wait()
        return f"The process {describe_ending(status, self._piped.last_words(self._quiet_until))}."

    def close(self) -> None:
        """End the process now."""
        self._piped.close()


class Workers:
    """At most `most` workers of a module. Use it as a context manager; leaving it ends them all."""

    def __init__(self, most: int, module: str) -> None:
        self.most = most
        self.module = module
        self.started = 0
        self._workers: list[Worker] = []
        self._heard: queue.SimpleQueue[tuple[Worker, bytes]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    @property
    def pids(self) -> list[int]:
        """Return the ids of the processes that are alive, as far as is known."""
        return [w.pid for w in self._workers]

    @property
    def busy(self) -> list[str]:
        """Return the names of what is being done."""
        return [w.at for w in self._workers if w.at]

    def ask(self, name: str, command: Mapping[str, Any]) -> None:
        """Hand a command to an idle worker, or to a new one; at most `most` may be busy."""
        for dead in [w for w in self._workers if not w.at and not w.alive]:
            self._drop(dead)
        worker = next((w for w in self._workers if not w.at), None)
        if worker is None:
            if len(self._workers) >= self.most:
                raise ValueError("all workers are busy")
            worker = Worker(self.module, self._heard.put)
            self.started += 1
            self._workers.append(worker)
        worker.ask(name, command)

    def wait(self, begun: Begin = ignore_step) -> list[tuple[str, Answer]]:
        """Return (name, answer) of what is done, as soon as there is one; begun: told of every step that begins."""
        done: list[tuple[str, Answer]] = []
        while not done or not self._heard.empty():
            worker, line = take_next(self._heard)
            if worker not in self._workers:
                continue
            if not worker.at:  # it died while it was idle
                self._drop(worker)
                continue
            name, answer = worker.at, worker.answer(line)
            if answer is None:
                begun(worker.doing)
                continue
            done.append((name, answer))
            if worker.at or worker.asked >= TASKS:  # dead, or due to be replaced
                self._drop(worker)
        return done

    def _drop(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.close()


def serve_commands(handlers: Mapping[str, Handler]) -> None:
    """Answer the commands on standard input, one after another: what a worker's process does.

    It ends when its input does, or when the process that started it dies.
    """
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not mix with the answers

    def write(document: Answer) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    for line in sys.stdin:
        write(answer_command(handlers, json.loads(line), lambda step: write({BEGUN: step})))


def answer_command(handlers: Mapping[str, Handler], command: dict[str, Any], begin: Begin = ignore_step) -> Answer:
    """Return what the handler of a command answers, or {"error": {"cause", "remedy", "exit_code"}}.

    handlers: key that tells a command from others -> what answers it. begin: called with the name of every step.
    """
    [key] = handlers.keys() & command.keys()
    try:
        return handlers[key](command, begin)
    except PlacewrightError as error:
        return {"error": error_document(error)}
