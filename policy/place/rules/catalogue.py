"""Rules of thumb that other placers ask, each with the operations it places in a second on a few devices, roughly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.shared.partition import has_metis, tell_once
from policy.place.base.search import Method
from policy.place.lists.cpop import Cpop
from policy.place.lists.critical_path import CriticalPath
from policy.place.lists.etf import Etf
from policy.place.lists.heft import Heft
from policy.place.lists.m_etf import MEtf
from policy.place.lists.m_sct import MSct
from policy.place.lists.m_topo import MTopo
from policy.place.lists.peft import Peft
from policy.place.rules.expert import Expert
from policy.place.rules.metis import Metis

RULES: Mapping[str, tuple[Method, float]] = {  # the quick ones first
    "expert": (Expert(), 3e5),
    "heft": (Heft(), 2e5),
    "m_topo": (MTopo(), 3e5),
    "cpop": (Cpop(), 1.5e5),
    "peft": (Peft(), 1.5e5),
    "metis": (Metis(), 1e5),
    "critical_path": (CriticalPath(), 5e4),
    "etf": (Etf(), 1e4),
    "m_etf": (MEtf(), 1e4),
    "m_sct": (MSct(), 1e3),
}
LINEAR_RULES: Mapping[str, tuple[Method, float]] = {  # those in linear time, on large graphs
    "expert": (Expert(), 3e5),
    "m_topo": (MTopo(), 2e5),
    "heft": (Heft(), 1e5),
    "cpop": (Cpop(), 1e5),
}


def installed_rules(asked_by: str) -> Iterator[tuple[str, tuple[Method, float]]]:
    """Yield the entries of RULES whose packages are installed; say once who leaves out which."""
    for name, rule in RULES.items():
        if name == "metis" and not has_metis():
            tell_once(f"pymetis is not installed: {asked_by} leaves the placer metis out.")
        else:
            yield name, rule
