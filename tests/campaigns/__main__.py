"""Run campaigns, and end with 1 where a failure is left.

python -m tests.campaigns [--seconds 3600] [--seed 0] [--out campaigns] [--only NAME ...] [--cases N] [--show]
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import sys
from pathlib import Path

from tests.campaigns.runner import (
    WrongError,
    count_kinds,
    load_campaigns,
    print_summary,
    read_lines,
    run_campaign,
    summary_row,
)

MOST_BYTES = 6 << 30  # a campaign that goes wrong must not take the machine with it
NAMES = (
    "files",
    "readers",
    "models",
    "graphs",
    "kills",
    "faults",
    "disks",
    "devices",
    "network",
    "numbers",
    "hostile",
    "platforms",
    "endurance",
    "versions",
)


def main() -> int:
    """Run the campaigns that are asked for, each for its share of the time; return the exit status."""
    asked = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    asked.add_argument("--seconds", type=float, default=3600.0, help="of all campaigns together")
    asked.add_argument("--seed", type=int, default=0, help="first case")
    asked.add_argument("--cases", type=int, help="most cases of a campaign")
    asked.add_argument("--out", type=Path, default=Path("campaigns"), help="folder of the journals")
    asked.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    asked.add_argument("--leave-out", nargs="+", choices=NAMES, default=())
    asked.add_argument("--show", action="store_true", help="print failures that are left, run nothing")
    given = asked.parse_args()
    os.environ["CI"] = "true"  # before anything imports openvino: no telemetry
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))  # of this process, and of each that it starts
    logging.getLogger().addHandler(logging.NullHandler())  # what readers warn of, by the thousand, is part of a case
    campaigns = load_campaigns([name for name in given.only if name not in given.leave_out])
    total = sum(campaign.share for campaign in campaigns)
    rows, concluded, wrong = [], [], []
    for campaign in campaigns:
        if given.show:
            lines = read_lines(given.out / f"{campaign.name}.jsonl")
        else:
            seconds = given.seconds * campaign.share / total
            lines = run_campaign(campaign, given.out, seconds=seconds, first=given.seed, most=given.cases)
        for line in {line.seed: line for line in lines}.values():
            if line.failed:
                print(f"{campaign.name} {line.seed}: {line.failed}\n")
        rows.append(summary_row(campaign.name, lines))
        try:
            concluded.append(campaign.conclude(count_kinds(lines)))
        except WrongError as error:
            wrong.append(f"{campaign.name}: {error}")
    print_summary(rows)
    for line in filter(None, (*concluded, *wrong)):
        print(line)
    return int(bool(wrong) or any(row[4] != "0" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
