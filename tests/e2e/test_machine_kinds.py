"""Jobs for every kind of machine of a fleet, and the chains of stages that a batch sends: engines are made up."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import UsageError
from pipeline.fleet.batch import COLUMNS, run_batch
from pipeline.fleet.jobs import Job, read_jobs
from pipeline.result.result import Result
from pipeline.stages import worker
from pipeline.store.store import Store
from tests.e2e.test_batch import SETS, jobs_file
from tests.engines import ProcessEngine, failing
from tests.reports import Page

pytestmark = pytest.mark.usefixtures("read_here")

KINDS = {"aaaaaaaa11111111": "Processor A", "bbbbbbbb22222222": "Processor B"}


def every_kind(folder: Path, *models: str, machines: str = '"every"', more: str = "") -> list[Job]:
    """Return the jobs of a file whose jobs ask for every kind of machine."""
    path = jobs_file(folder, *models, devices=SETS[:1])
    path.write_text(f"{path.read_text(encoding='utf-8')}machines = {machines}\n{more}", encoding="utf-8")
    return read_jobs(path)


def batch(folder: Path, jobs: list[Job], engine: ProcessEngine, said: list[str] | None = None) -> list[dict[str, Any]]:
    say = (said if said is not None else []).append
    return run_batch(jobs, folder / "out", Store(folder / "store"), engine=engine, say=say).rows


def test_a_job_for_every_kind_of_machine_is_a_row_for_each_and_one_page(tmp_path: Path, made_up_profile: None) -> None:
    engine = ProcessEngine(worker.execute_tasks, KINDS)
    rows = batch(tmp_path, every_kind(tmp_path, "chain.xml"), engine)
    assert [(r["job"], r["machine"]) for r in rows] == [
        ("chain-aaaaaaaa", "aaaaaaaa11111111"),
        ("chain-bbbbbbbb", "bbbbbbbb22222222"),
    ]
    assert all(r["best"] == "A" and not r["failed"] for r in rows)
    for row in rows:
        assert Result.load(tmp_path / "out" / row["job"]).record.fingerprint == row["machine"]
    profiled = {w for w, command in engine.asked if command.alone}
    assert profiled == {f"w-{kind}" for kind in KINDS}
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as cells:
        assert [tuple(r) for r in csv.DictReader(cells)] == [COLUMNS] * 2
    page = Page((tmp_path / "out" / "batch.html").read_text(encoding="utf-8"))
    for words in ("chain on 2 kinds of machine", "Fastest on", "Processor A", "Processor B", "aaaaaaaa11111111"):
        assert words in page.text
    assert "chain-aaaaaaaa/report.html" in [a.get("href") for _, a in page.tags]


def test_a_kind_without_the_devices_is_a_row_with_the_cause(tmp_path: Path, made_up_profile: None) -> None:
    engine = ProcessEngine(worker.execute_tasks, KINDS, lacking=["bbbbbbbb22222222"])
    fine, failed = batch(tmp_path, every_kind(tmp_path, "chain.xml"), engine)
    assert fine["best"] == "A"
    assert failed["job"] == "chain-bbbbbbbb"
    assert failed["machine"] == "bbbbbbbb22222222"
    assert "Machines of the kind bbbbbbbb22222222 do not have the devices" in failed["failed"]
    assert "do not have the devices" in Page((tmp_path / "out" / "batch.html").read_text(encoding="utf-8")).text


def test_where_no_kind_has_the_devices_each_says_why(tmp_path: Path) -> None:
    rows = batch(
        tmp_path, every_kind(tmp_path, "chain.xml"), ProcessEngine(worker.execute_tasks, KINDS, lacking=list(KINDS))
    )
    assert ["There is no such device" in r["failed"] for r in rows] == [True, True]


def test_a_second_batch_does_nothing_again_and_another_kind_only_its_own(tmp_path: Path, made_up_profile: None) -> None:
    jobs = every_kind(tmp_path, "chain.xml")
    (only,) = batch(tmp_path, jobs, ProcessEngine(worker.execute_tasks, dict([*KINDS.items()][:1])))
    engine = ProcessEngine(worker.execute_tasks, KINDS)
    first, second = batch(tmp_path, jobs, engine)
    assert first == only
    assert {w for w, command in engine.asked if command.fingerprint} == {"w-bbbbbbbb22222222"}
    again = ProcessEngine(worker.execute_tasks, KINDS)
    assert batch(tmp_path, jobs, again) == [first, second]
    assert again.asked == []


def test_jobs_that_name_no_machines_run_on_one(tmp_path: Path, made_up_profile: None) -> None:
    jobs = every_kind(tmp_path, "chain.xml", machines='"one"')
    (row,) = batch(tmp_path, jobs, ProcessEngine(worker.execute_tasks, KINDS))
    assert (row["job"], row["machine"]) == ("chain", "aaaaaaaa11111111")
    assert "kinds of machine" not in (tmp_path / "out" / "batch.html").read_text(encoding="utf-8")


def test_a_run_goes_on_on_the_kind_of_machine_on_which_it_began(tmp_path: Path, made_up_profile: None) -> None:
    jobs = every_kind(tmp_path, "chain.xml", machines='"one"')
    (first,) = batch(tmp_path, jobs, ProcessEngine(worker.execute_tasks, dict([*KINDS.items()][1:])))
    engine = ProcessEngine(worker.execute_tasks, KINDS)
    assert batch(tmp_path, jobs, engine) == [first]
    assert first["machine"] == "bbbbbbbb22222222"
    assert engine.asked == []


@pytest.mark.parametrize("value", ['"all"', "true", '["every"]', "3"])
def test_a_wrong_word_for_machines_is_refused_with_the_right_one(value: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"machines of job 1 is .* must be 'one' or 'every'") as raised:
        every_kind(tmp_path, "chain.xml", machines=value)
    assert 'machines = "every"' in raised.value.remedy


# Chains


def stages(engine: ProcessEngine) -> list[list[str]]:
    return [[task["stage"] for task in command.document["tasks"]] for _, command in engine.asked]


def seeded(folder: Path, seeds: str = "[0]") -> list[Job]:
    return every_kind(folder, "chain.xml", machines='"one"', more=f"seeds = {seeds}\n")


def test_stages_of_one_job_alone_go_to_a_worker_together(tmp_path: Path, made_up_profile: None) -> None:
    engine = ProcessEngine(worker.execute_tasks)
    rows = batch(tmp_path, seeded(tmp_path), engine)
    assert rows[0]["best"] == "A"
    assert stages(engine) == [["read", "coarsen"], ["profile"], ["embed", "group", "place", "measure"]]
    manifest = json.loads((tmp_path / "out" / "chain" / "manifest.json").read_text())
    assert all(stage["ran"] for stage in manifest["stages"].values())


def test_what_other_jobs_need_ends_a_chain(tmp_path: Path, made_up_profile: None) -> None:
    engine = ProcessEngine(worker.execute_tasks)
    batch(tmp_path, seeded(tmp_path, "[0, 1]"), engine)
    found = stages(engine)
    assert found[0] == ["read"]
    assert found.count(["profile"]) == 1
    assert sum("measure" in each for each in found) == 2
    reads = [command.reads for _, command in engine.asked]
    makes = [command.makes for _, command in engine.asked]
    there: set[str] = set()
    for read, made in zip(reads, makes, strict=True):
        assert there.issuperset(read)
        there |= {*made}


def test_machines_of_several_kinds_do_not_bind_what_any_of_them_may_do(tmp_path: Path, made_up_profile: None) -> None:
    engine = ProcessEngine(worker.execute_tasks, KINDS)
    batch(tmp_path, seeded(tmp_path), engine)
    assert stages(engine) == [["read", "coarsen"], ["profile"], ["embed", "group", "place"], ["measure"]]
    assert [bool(command.fingerprint) for _, command in engine.asked] == [False, True, False, True]


def test_a_failure_in_a_chain_keeps_what_was_done_before_it(tmp_path: Path, made_up_profile: None) -> None:
    jobs = seeded(tmp_path)
    (row,) = batch(tmp_path, jobs, ProcessEngine(failing("measure", worker.execute_tasks)))
    assert row["failed"] == "The stage measure is broken. Mend it."
    manifest = json.loads((tmp_path / "out" / "chain" / "manifest.json").read_text())
    assert {"read", "place"} <= manifest["stages"].keys()
    engine = ProcessEngine(worker.execute_tasks)
    (row,) = batch(tmp_path, jobs, engine)
    assert row["best"] == "A"
    assert stages(engine) == [["measure"]]
