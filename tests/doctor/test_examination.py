"""Whatever a probe does, each check gets its verdict, in order, and no process is left."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from demoloco.doctor.checks import LANES, SWARM, Probe
from demoloco.doctor.examination import Finding, checks_for, examine
from demoloco.doctor.plan import Plan
from demoloco.doctor.words import Level
from tests.doctor import test_judging as facts

STUB = (sys.executable, "-I", "-S", str(Path(__file__).with_name("stub_child.py")))
GOOD = {
    "clock": facts.CLOCK,
    "home": facts.HOME,
    "ports": facts.PORTS,
    "disk": facts.DISK,
    "memory": facts.MEMORY,
    "files": {"soft": 4096, "hard": 4096},
    "packages": facts.PACKAGES,
    "torch": facts.TORCH,
    "tcp": facts.TCP,
}
SWARM_FACTS = {
    "peer": facts.PEER,
    "dial_back": facts.BACK,
    "link": facts.LINK,
    "nat": facts.nat("8.8.8.8"),
}


def told(**others: Any) -> dict[str, Any]:
    words = {name: {"tells": {name: found}} for name, found in GOOD.items()}
    return {**words, "swarm": {"tells": SWARM_FACTS}, **others}


async def examined(folder: Path, words: dict[str, Any], seconds: float = 20) -> list[Finding]:
    home = folder / "words"
    home.write_text(json.dumps(words))
    plan = Plan(home=str(home), listen=(), peer="somebody")
    lanes = [[Probe(name=one.name, seconds=seconds) for one in lane] for lane in LANES]
    async with aclosing(examine(plan, lanes, STUB)) as findings:
        return [finding async for finding in findings]


def stubs() -> list[psutil.Process]:
    mine = psutil.Process().children(recursive=True)
    return [one for one in mine if one.status() != psutil.STATUS_ZOMBIE]


async def test_all_is_well_where_all_facts_are(tmp_path: Path) -> None:
    found = await examined(tmp_path, told())
    assert [one.name for one in found] == [check.name for check in checks_for(_with_peer())]
    assert [one.name for one in found if one.verdict.level is not Level.OK] == []
    assert found[0].facts == {"clock": facts.CLOCK, "peer": facts.PEER}


def _with_peer() -> Plan:
    return Plan(home="", listen=(), peer="somebody")


def test_without_a_peer_nothing_is_asked_of_one() -> None:
    names = [check.name for check in checks_for(Plan(home="", listen=()))]
    assert names[-1] == "nat"
    assert not {"peer", "dial_back", "link"} & set(names)


async def test_a_probe_that_breaks_is_a_failed_check_and_no_more(tmp_path: Path) -> None:
    found = await examined(tmp_path, told(torch={"dies": "Traceback\nthe driver is gone"}))
    wrong = {one.name: one.verdict for one in found if one.verdict.level is not Level.OK}
    assert list(wrong) == ["torch"]
    assert wrong["torch"].level is Level.FAIL
    assert wrong["torch"].summary == "the check broke: the driver is gone"
    assert "demoloco.doctor.child" not in wrong["torch"].fix  # the stub's own command line
    assert " torch '{" in wrong["torch"].fix


async def test_a_probe_that_hangs_is_ended(tmp_path: Path) -> None:
    found = await examined(tmp_path, told(disk={"hangs": True}), seconds=1)
    wrong = {one.name: one.verdict for one in found if one.verdict.level is not Level.OK}
    assert list(wrong) == ["disk"]
    assert wrong["disk"].summary == "the check took longer than 1 s"
    assert stubs() == []


async def test_what_a_probe_told_before_it_died_counts(tmp_path: Path) -> None:
    half = {name: SWARM_FACTS[name] for name in ("peer", "nat")}
    found = await examined(tmp_path, told(swarm={"tells": half, "dies": 3}))
    wrong = {one.name: one.verdict.summary for one in found if one.verdict.level is not Level.OK}
    assert wrong == {
        "dial_back": "the check broke: exit code 3",
        "link": "the check broke: exit code 3",
    }


@pytest.mark.parametrize("mumbles", ["[1]", "{}", '{"name": "tcp"}', '{"name": 1, "facts": 2}'])
async def test_lines_that_are_no_facts_are_passed_over(tmp_path: Path, mumbles: str) -> None:
    found = await examined(tmp_path, told(tcp={"mumbles": mumbles}))
    wrong = {one.name: one.verdict.summary for one in found if one.verdict.level is not Level.OK}
    assert wrong == {"tcp": "the check told nothing"}


async def test_facts_of_another_shape_are_a_failed_check(tmp_path: Path) -> None:
    found = await examined(tmp_path, told(memory={"tells": {"memory": {"total": 1}}}))
    wrong = {one.name: one.verdict.summary for one in found if one.verdict.level is not Level.OK}
    assert wrong == {"memory": "the check broke: KeyError('available_bytes')"}


async def test_a_program_that_is_not_there_fails_all_checks(tmp_path: Path) -> None:
    plan = Plan(home=str(tmp_path), listen=())
    async with aclosing(examine(plan, LANES, ("/nowhere/python", "-m", "x"))) as findings:
        found = [finding async for finding in findings]
    assert {one.verdict.level for one in found} == {Level.FAIL}
    assert {one.verdict.summary for one in found} == {
        "the check cannot be started: No such file or directory"
    }


async def test_who_leaves_early_leaves_no_process(tmp_path: Path) -> None:
    home = tmp_path / "words"
    home.write_text(json.dumps(told(torch={"hangs": True}, home={"hangs": True})))
    plan = Plan(home=str(home), listen=())
    lanes = [[Probe(name="clock", seconds=60), Probe(name="home", seconds=60)], [SWARM]]
    async with aclosing(examine(plan, lanes, STUB)) as findings:
        assert (await anext(findings)).name == "clock"
    assert stubs() == []
