"""Which command goes to which worker, and what happens when one fails: on an engine that is made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fleet.dispatch import AGREE, DEATHS, FleetDispatcher
from pipeline.fleet.engine import ANY, Command, FleetWorker, Reply, Say
from pipeline.fleet.health import FAILURES, Health
from pipeline.stages.host import HostMachine
from pipeline.system.workers import Answer

FINE: Answer = {"ran": True}
WRONG: Answer = {"error": {"cause": "It is broken.", "remedy": "Mend it."}}
GONE: Answer = {"error": {"cause": "The worker is gone.", "remedy": ""}, "died": True}

Act = Callable[[str, str], Answer]


@dataclass
class MadeUp:
    """Executes commands in the order in which they come; `act` says what a worker answers to a command."""

    there: list[FleetWorker]
    act: Act = lambda worker, name: FINE
    retries: bool = True
    say: Say = lambda _: None
    asked: list[tuple[str, str]] = field(default_factory=list)
    at_work: list[tuple[FleetWorker, Command]] = field(default_factory=list)
    coming: list[FleetWorker] = field(default_factory=list)

    def workers(self) -> Sequence[FleetWorker]:
        return self.there

    def machines(self, devices: Sequence[str]) -> Sequence[HostMachine]:
        raise NotImplementedError

    def ask(self, worker: str, command: Command) -> None:
        found = next(w for w in self.there if w.name == worker)
        self.asked.append((worker, command.name))
        self.at_work.append((found, command))
        on_node = [c for w, c in self.at_work if w.node == found.node]
        assert len(on_node) == 1 or not any(c.alone for c in on_node), "something runs beside a measurement"
        assert sum(w == found for w, _ in self.at_work) <= found.slots
        assert command.fingerprint in (ANY, found.fingerprint)

    def wait(self, patience_s: float) -> Sequence[Reply]:
        if not self.at_work:
            self.there += self.coming
            self.coming = []
            return []
        worker, command = self.at_work.pop(0)
        answer = self.act(worker.name, command.name)
        return [Reply(command.name, worker.name, answer, "died" in answer)]

    def __enter__(self) -> MadeUp:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def workers(n: int, *, slots: int = 1, fingerprint: str = "a") -> list[FleetWorker]:
    return [FleetWorker(f"w{i}", f"node{i}", fingerprint, slots) for i in range(n)]


def command(name: str, **more: Any) -> Command:
    return Command(name, f"job: {name}", {}, **more)


def outcomes(engine: MadeUp, commands: Sequence[Command], said: list[str] | None = None) -> dict[str, Answer]:
    """Return the last word on every command."""
    started: list[str] = []
    engine.say = (said if said is not None else []).append
    dispatcher = FleetDispatcher(engine, started.append)
    for c in commands:
        dispatcher.add(c)
    found: dict[str, Answer] = {}
    for settled in dispatcher.settle():
        assert settled.name not in found
        found[settled.name] = settled.answer
    assert not engine.at_work
    assert len(started) == len(engine.asked)
    return found


def commands(n: int, **more: Any) -> list[Command]:
    return [command(f"c{i}", rank=i, **more) for i in range(n)]


def test_commands_are_spread_over_the_workers_in_the_order_of_their_ranks() -> None:
    engine = MadeUp(workers(2))
    found = outcomes(engine, list(reversed(commands(6))))
    assert found == {f"c{i}": FINE for i in range(6)}
    assert [name for _, name in engine.asked] == [f"c{i}" for i in range(6)]
    assert Counter(w for w, _ in engine.asked) == {"w0": 3, "w1": 3}


def test_what_measures_goes_to_a_machine_of_its_kind_that_is_quiet() -> None:
    engine = MadeUp([FleetWorker(f"w{i}", f"node{i // 2}", "ab"[i // 2], 2) for i in range(4)])
    found = outcomes(engine, [*commands(9), *(command(f"m{i}", fingerprint="b", alone=True) for i in range(3))])
    assert all(answer == FINE for answer in found.values())
    assert {w for w, name in engine.asked if name.startswith("m")} <= {"w2", "w3"}


def test_what_needs_no_quiet_machine_goes_before_what_measures() -> None:
    engine = MadeUp(workers(1))
    outcomes(engine, [command("m", rank=0, alone=True), *(command(f"c{i}", rank=1) for i in range(3))])
    assert [name for _, name in engine.asked] == ["c0", "c1", "c2", "m"]


def test_the_worker_with_the_least_to_do_for_its_size_is_next() -> None:
    engine = MadeUp([FleetWorker("small", "node0", "a", 2), FleetWorker("large", "node1", "a", 4)])
    outcomes(engine, commands(6))
    assert [w for w, _ in engine.asked] == ["small", "large", "large", "small", "large", "large"]


def test_what_no_machine_can_execute_fails_in_words_and_the_rest_is_done() -> None:
    found = outcomes(MadeUp(workers(1)), [command("here"), command("there", fingerprint="b")])
    assert found["here"] == FINE
    assert "No worker that is there can execute this." in found["there"]["error"]["cause"]
    assert "these devices" in found["there"]["error"]["remedy"]


def test_a_worker_that_comes_later_is_given_what_waits_for_it() -> None:
    engine = MadeUp(workers(1), coming=[FleetWorker("late", "node9", "b", 1)])
    assert outcomes(engine, [command("there", fingerprint="b")]) == {"there": FINE}


def test_an_error_is_believed_when_several_workers_agree() -> None:
    engine = MadeUp(workers(AGREE + 1), lambda worker, name: WRONG if name == "c1" else FINE)
    found = outcomes(engine, commands(4))
    assert found == {"c0": FINE, "c1": WRONG, "c2": FINE, "c3": FINE}
    assert len({w for w, name in engine.asked if name == "c1"}) == AGREE


def test_a_death_and_an_error_do_not_agree() -> None:
    answers = {"w0": WRONG, "w1": GONE, "w2": WRONG}
    engine = MadeUp(workers(4), lambda worker, name: answers.get(worker, FINE))
    assert outcomes(engine, commands(1)) == {"c0": FINE}


def test_an_error_of_the_only_machine_of_its_kind_is_believed_at_once() -> None:
    engine = MadeUp([*workers(1), FleetWorker("other", "node9", "b", 1)], lambda *_: WRONG)
    outcomes(engine, [command("c", fingerprint="b")])
    assert engine.asked == [("other", "c")]


def test_where_nothing_is_tried_again_every_failure_is_the_last_word() -> None:
    engine = MadeUp(workers(2), lambda *_: GONE, retries=False)
    assert outcomes(engine, commands(3)) == {f"c{i}": GONE for i in range(3)}
    assert len(engine.asked) == 3


def test_a_worker_that_dies_on_a_command_does_not_condemn_it() -> None:
    engine = MadeUp(workers(2), lambda worker, name: GONE if (worker, name) == ("w0", "c0") else FINE)
    said: list[str] = []
    assert outcomes(engine, commands(1), said) == {"c0": FINE}
    assert engine.asked == [("w0", "c0"), ("w1", "c0")]
    assert any("w0 died; retrying: The worker is gone." in line for line in said)


def test_the_only_worker_may_die_three_times() -> None:
    deaths = iter([GONE] * (DEATHS - 1))
    engine = MadeUp(workers(1), lambda *_: next(deaths, FINE))
    assert outcomes(engine, commands(1)) == {"c0": FINE}
    assert len(engine.asked) == DEATHS


def test_a_command_that_kills_every_worker_ends_with_its_last_words() -> None:
    engine = MadeUp(workers(2), lambda worker, name: GONE if name == "c0" else FINE)
    assert outcomes(engine, commands(3)) == {"c0": GONE, "c1": FINE, "c2": FINE}
    assert sum(name == "c0" for _, name in engine.asked) == DEATHS


@pytest.mark.parametrize("answer", [WRONG, GONE])
def test_a_worker_that_fails_everything_is_quarantined_and_nothing_fails(answer: Answer) -> None:
    engine = MadeUp(workers(3), lambda worker, _: answer if worker == "w0" else FINE)
    said: list[str] = []
    assert outcomes(engine, commands(30), said) == {f"c{i}": FINE for i in range(30)}
    assert sum(w == "w0" for w, _ in engine.asked) == FAILURES
    assert sum("w0 is given no more work" in line for line in said) == 1


def test_commands_that_are_broken_quarantine_nobody() -> None:
    engine = MadeUp(workers(2), lambda worker, name: WRONG if name < "c2" else FINE)
    said: list[str] = []
    found = outcomes(engine, commands(30), said)
    assert {name for name, answer in found.items() if answer == WRONG} == {n for n in found if n < "c2"}
    assert not any("no more work" in line for line in said)
    assert {w for w, _ in engine.asked[-4:]} == {"w0", "w1"}


def test_when_all_workers_are_doubted_they_go_on_and_the_commands_are_at_fault() -> None:
    found = outcomes(MadeUp(workers(2), lambda *_: WRONG), commands(12))
    assert all(answer == WRONG for answer in found.values())


def test_a_failure_that_is_confirmed_is_held_against_nobody() -> None:
    health = Health()
    for i in range(FAILURES):
        health.failed(f"c{i}", "w0")
    assert not health.is_trusted("w0")
    health.confirmed("c0")
    assert health.is_trusted("w0")


@given(st.data())
def test_whatever_fails_every_command_is_settled_once_and_what_can_be_done_is(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 4), "workers")
    fleet = [
        FleetWorker(f"w{i}", f"node{data.draw(st.integers(0, 1))}", data.draw(st.sampled_from("ab")), 1 + i % 2)
        for i in range(n)
    ]
    bad = data.draw(st.sets(st.sampled_from([w.name for w in fleet]), max_size=n), "bad")
    kind = data.draw(st.sampled_from([WRONG, GONE]), "how")
    tasks = [
        command(f"c{i}", rank=i, fingerprint=data.draw(st.sampled_from(["", "a", "b"])), alone=data.draw(st.booleans()))
        for i in range(data.draw(st.integers(0, 12), "commands"))
    ]
    engine = MadeUp(fleet, lambda worker, _: kind if worker in bad else FINE)
    found = outcomes(engine, tasks)
    assert found.keys() == {t.name for t in tasks}
    if not bad:
        kinds = {w.fingerprint for w in fleet}
        assert all((found[t.name] == FINE) == (t.fingerprint in {ANY, *kinds}) for t in tasks)
    if kind is GONE and len(bad) == 1:  # one worker that always dies fails nothing that another could do
        good = {w.fingerprint for w in fleet if w.name not in bad}
        assert all(found[t.name] == FINE for t in tasks if good and t.fingerprint in {ANY, *good})


def test_a_command_that_is_tried_again_is_told_by_the_step_that_failed() -> None:
    answers = iter([{**GONE, "doing": "embed"}, {**GONE, "doing": ""}, FINE])
    engine = MadeUp(workers(3), lambda worker, name: next(answers))
    said: list[str] = []
    chain = Command("c", "job: coarsen, embed, group", {}, subject="job")
    assert outcomes(engine, [chain], said) == {"c": FINE}
    assert said[0].startswith("job: w0 died during `embed`; retrying: ")
    assert said[1].startswith("job: coarsen, embed, group: w1 died; retrying: "), "it died before it began"
