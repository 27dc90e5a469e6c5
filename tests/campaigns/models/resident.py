"""A fork of this process that does one case after another, and is replaced where it dies, hangs or grows.

A fork per case copies what the process holds, and starts OpenVINO's threads again: five times what reading a small
model takes. What kills a resident is tried again on a fresh one, so that no case answers for the ones before it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

LIMIT_S = 60.0
LIMIT_BYTES = 4 << 30
KEPT_BYTES = 600 << 20  # a resident that has grown by so much is replaced after its case
MOST_CASES = 2000
LOOK_S = 0.02  # between looks at the memory of one that is at work
PARSING_S = 5.0  # after which one that OpenVINO has not come back to from parsing these few bytes is ended
PARSES = b"_ov_api.py"
TOO_SLOW, TOO_LARGE, PARSES_ON = 1000, 1001, 1002  # no exit status
Tasks = Mapping[str, Callable[..., Any]]


class Resident:
    """Does tasks in a fork, `said` being the file that takes what is written meanwhile.

    tasks: by name; they take texts and return what JSON can hold.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._pid = 0
        self._used = 0
        self._begun_bytes = 0

    def ask(self, task: str, *given: str, said: Path) -> tuple[Any, int]:
        """Return what a task answers, and 0; or None, and how the fork ended: an exit status, negative for a signal."""
        answer, status = self._ask_once(task, given, said)
        if status < 0 and self._last_used > 1:
            answer, status = self._ask_once(task, given, said)
        return answer, status

    def close(self) -> None:
        """End the fork."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._forget()

    def _ask_once(self, task: str, given: tuple[str, ...], said: Path) -> tuple[Any, int]:
        if not self._pid:
            self._begin()
        self._used += 1
        self._last_used = self._used
        with contextlib.suppress(BrokenPipeError):
            self._orders.write(json.dumps([task, given, str(said)]) + "\n")
            self._orders.flush()
        status = self._wait(said)
        if status:
            return None, status
        line = self._answers.readline()
        if not line.endswith("\n"):
            return None, self._forget()
        if self._used >= MOST_CASES or self._bytes() > self._begun_bytes + KEPT_BYTES:
            self.close()
        return json.loads(line), 0

    def _begin(self) -> None:
        orders, answers = os.pipe(), os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(orders[1])
            os.close(answers[0])
            _serve(self._tasks, orders[0], answers[1])
        os.close(orders[0])
        os.close(answers[1])
        self._orders, self._answers = os.fdopen(orders[1], "w"), os.fdopen(answers[0])
        self._used, self._begun_bytes = 0, self._bytes()

    def _forget(self) -> int:
        """Return how the fork ended."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        self._answers.close()
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        return os.waitstatus_to_exitcode(status)

    def _bytes(self) -> int:
        with contextlib.suppress(psutil.Error):
            memory = psutil.Process(self._pid).memory_info()
            return int(memory.rss - memory.shared)
        return 0

    def _wait(self, said: Path) -> int:
        """Return 0 once there is an answer or an end; if a limit is exceeded, end the fork and return which."""
        begun = time.monotonic()
        while not select.select([self._answers], [], [], LOOK_S)[0]:
            taken_s = time.monotonic() - begun
            large = self._bytes() > self._begun_bytes + LIMIT_BYTES
            parses = taken_s > PARSING_S + 1 and PARSES in said.read_bytes()
            if taken_s > LIMIT_S or large or parses:
                self.close()
                return PARSES_ON if parses else TOO_LARGE if large else TOO_SLOW
        return 0


def _serve(tasks: Tasks, orders: int, answers: int) -> None:
    """Do what is asked for until nobody asks; does not return."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
        with os.fdopen(orders) as asked, os.fdopen(answers, "w") as answered:
            for line in asked:
                task, given, said = json.loads(line)
                words = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(words, 1)
                os.dup2(words, 2)
                os.close(words)
                logging.getLogger().handlers.clear()
                faulthandler.dump_traceback_later(PARSING_S, exit=False, file=2)
                answer = tasks[task](*given)
                faulthandler.cancel_dump_traceback_later()
                answered.write(json.dumps(answer) + "\n")
                answered.flush()
        status = 0
    except BaseException:  # noqa: BLE001  told by the status and the words
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(status)
