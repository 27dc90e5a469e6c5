"""What Dask's own scheduling does where a fleet needs something else: why the dispatcher chooses workers itself.

A test that fails with a newer Dask says that a part of the dispatcher may go; docs/fleet.md has the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import distributed
import pytest

from pipeline.fleet.clusters import start_local_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Give a client of three workers on one machine."""
    with start_local_cluster(3) as address, distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(3)
        yield client


def address_of(client: Any, name: str) -> str:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return next(address for address, told in workers.items() if str(told["name"]) == name)


async def declare(dask_worker: Any, resources: dict[str, float]) -> None:
    await dask_worker.set_resources(**resources)


def fail_on_first() -> None:
    if str(distributed.get_worker().name) == "0":
        raise OSError("The disk is full.")
    time.sleep(0.3)


def span(kind: str) -> tuple[str, float, float]:
    begin = time.time()
    time.sleep(0.5)
    return kind, begin, time.time()


def test_dask_tries_a_task_again_on_the_worker_that_failed_it(client: Any) -> None:
    tasks = [client.submit(fail_on_first, key=f"again-{i}", retries=3, pure=False) for i in range(12)]
    failed = sum(task.exception() is not None for task in tasks)
    assert failed > 0  # four times, and each time on the one worker that fails


def test_a_task_waits_for_ever_for_a_resource_that_a_worker_declares_later(client: Any) -> None:
    task = client.submit(span, "late", key="late", resources={"kind": 1}, pure=False)
    with pytest.raises(TimeoutError):
        task.result(timeout=1)
    client.run(declare, resources={"kind": 1.0}, workers=[address_of(client, "1")])
    with pytest.raises(TimeoutError):
        task.result(timeout=5)
    task.cancel()


def test_a_resource_of_one_worker_does_not_keep_the_others_of_its_machine_quiet(client: Any) -> None:
    client.run(declare, resources={"measure": 1.0}, workers=[address_of(client, "1")])
    measuring = [client.submit(span, "m", key=f"m-{i}", resources={"measure": 1}, pure=False) for i in range(3)]
    others = [client.submit(span, "o", key=f"o-{i}", pure=False) for i in range(12)]
    beside = [
        any(begin < end_m and begin_m < end for _, begin, end in client.gather(others))
        for _, begin_m, end_m in client.gather(measuring)
    ]
    assert any(beside)
