"""All checks, and the probes that they take their facts from.

Rule: one table each; their order is the order in which people read them.
"""

from __future__ import annotations

from dataclasses import dataclass

from demoloco.doctor.judging.clock import judge_clock
from demoloco.doctor.judging.disk import judge_disk
from demoloco.doctor.judging.home import judge_home
from demoloco.doctor.judging.machine import judge_files, judge_memory, judge_tcp
from demoloco.doctor.judging.nat import judge_nat
from demoloco.doctor.judging.peer import judge_dial_back, judge_link, judge_peer
from demoloco.doctor.judging.ports import judge_ports
from demoloco.doctor.judging.software import judge_packages, judge_torch
from demoloco.doctor.words import Judge


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A child process that finds facts, within so many seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A question, and the facts that answer it; those it can do without are None if not there."""

    name: str
    needs: tuple[str, ...]
    judge: Judge
    likes: tuple[str, ...] = ()


SWARM = Probe(name="swarm", seconds=150)
QUICK = tuple(
    Probe(name=name, seconds=seconds)
    for name, seconds in (
        ("clock", 10),
        ("home", 10),
        ("ports", 20),
        ("memory", 10),
        ("files", 10),
        ("packages", 20),
        ("tcp", 10),
        ("disk", 40),
    )
)
LANES = (QUICK, (Probe(name="torch", seconds=180), SWARM))
"""Probes of one lane run one after the other: what measures the link has the machine to itself."""

OWN_CHECKS = (
    Check(name="clock", needs=("clock",), likes=("peer",), judge=judge_clock),
    Check(name="home", needs=("home",), judge=judge_home),
    Check(name="ports", needs=("ports", "home"), judge=judge_ports),
    Check(name="disk", needs=("disk",), judge=judge_disk),
    Check(name="memory", needs=("memory",), judge=judge_memory),
    Check(name="files", needs=("files",), judge=judge_files),
    Check(name="packages", needs=("packages",), judge=judge_packages),
    Check(name="torch", needs=("torch",), judge=judge_torch),
    Check(name="tcp", needs=("tcp",), judge=judge_tcp),
    Check(name="nat", needs=("nat",), likes=("dial_back",), judge=judge_nat),
)
PEER_CHECKS = (
    Check(name="peer", needs=("peer",), judge=judge_peer),
    Check(name="dial_back", needs=("dial_back",), judge=judge_dial_back),
    Check(name="link", needs=("link",), judge=judge_link),
)
OF_SWARM = ("nat", "peer", "dial_back", "link")
"""The facts that the swarm's probe tells; the others tell one thing, under their own name."""


def source_of(facts: str) -> str:
    """The probe that tells these facts."""
    return SWARM.name if facts in OF_SWARM else facts
