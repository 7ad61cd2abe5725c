"""The runs of the benchmark, one after the other, as plain facts.

Rule: whatever a figure needs is in the facts, and nothing is reckoned twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.daemons import sets
from benchmarks.wan import theirs
from benchmarks.wan.cases import HOSTS, JOIN_SETTING, JOINER, SLOWDOWN, Setting
from benchmarks.wan.course import Round, median, training_share
from benchmarks.wan.limit import exchange_limit
from benchmarks.wan.ours import BATCH_SIZE, Outcome, Party, Plan

Facts = dict[str, Any]
Say = Callable[[str], None]

PINNED_K = 64
SPEEDUP_MILLIONS = 25.0
SPEEDUP_MBIT = 20.0
LARGE_MILLIONS = 50.0
PATIENCE = 600.0
"""Seconds after which a step of theirs is given up."""
COMPRESSIONS = ("float16", "uniform8")


@dataclass(frozen=True)
class Choice:
    """What is run."""

    settings: Sequence[Setting]
    sizes: Sequence[float]  # million parameters
    quick: bool
    tcp: str  # congestion control, of all

    @property
    def speedup_millions(self) -> float:
        return self.sizes[0] if self.quick else SPEEDUP_MILLIONS

    @property
    def speedup_settings(self) -> list[Setting]:
        found = [one for one in self.settings if one.mbit <= SPEEDUP_MBIT]
        return found[:1] if self.quick else found

    def plan(self, millions: float, **more: Any) -> Plan:
        """Longer rounds, of fewer and longer steps, for larger models: what a step computes beside
        its pause grows with them, and four nodes share this machine."""
        steps, seconds = (8, 3.0) if millions >= LARGE_MILLIONS else (8 if self.quick else 16, 0.5)
        warm, rounds = (2, 3) if self.quick else (3, 5)
        return Plan(millions, steps, seconds, warm, rounds, **more)


def nothing() -> Facts:
    """What is known before the first run."""
    return {"ours": [], "pinned": [], "hivemind": [], "slowdown": None, "join": None}


def measure(choice: Choice, say: Say, found: Facts, keep: Callable[[Facts], None]) -> Facts:
    """`found`: what is measured already; `keep` is called with all of it after each part, for a
    whole run takes more than an hour."""

    def take(name: str, rows: Iterator[Facts]) -> None:
        for row in rows:
            found[name].append(row)
            keep(found)

    for millions in choice.sizes:
        settings = _lacking(found["ours"], choice.settings, millions)
        whole = millions == choice.sizes[0]  # the smallest also shows the thin node and the joiner
        extras = whole and not (found["slowdown"] and found["join"])
        if not settings and not extras:
            continue
        with ExitStack() as held:
            spare = (JOINER,) if whole else ()
            party = Party(held, choice.plan(millions), HOSTS, spare, choice.tcp)
            say(f"{millions:g} M parameters: {len(HOSTS)} nodes start")
            party.start()
            take("ours", _on_each(party, settings, say))
            if extras:
                say("a thin node among fast ones")
                found["slowdown"] = _slowdown(party, 5 if choice.quick else 12)
                say("a node joins")
                found["join"] = asdict(_join(party))
                keep(found)
    settings = _lacking(found["pinned"], choice.speedup_settings, choice.speedup_millions)
    if settings:
        with ExitStack() as held:
            pinned = choice.plan(
                choice.speedup_millions, settings=(*sets(ladder=PINNED_K, k=PINNED_K),)
            )
            party = Party(held, pinned, HOSTS, (), choice.tcp)
            say(f"{pinned.millions:g} M parameters, k = {PINNED_K}: {len(HOSTS)} nodes start")
            party.start()
            take("pinned", _on_each(party, settings, say))
    take("hivemind", _baselines(choice, found["hivemind"], say))
    return found


def _lacking(
    rows: Sequence[Facts], settings: Sequence[Setting], millions: float, **more: Any
) -> list[Setting]:
    """Those of which there is no such row."""
    known = [row["link"] for row in rows if row.items() >= {"millions": millions, **more}.items()]
    return [setting for setting in settings if setting.name not in known]


def _on_each(party: Party, settings: Sequence[Setting], say: Say) -> Iterator[Facts]:
    for setting in settings:
        say(f"{setting.name}: our rounds")
        yield facts_of(setting, party.plan, party.play(setting.links))


def facts_of(setting: Setting, plan: Plan, outcome: Outcome) -> Facts:
    """One row: medians over nodes and rounds."""
    whole = [one for one in outcome.rounds if one.whole(HOSTS)]
    limits = [exchange_limit(one, setting.links, setting.trip_seconds) for one in whole]
    exchange = median(one for each in whole for one in each.exchange_seconds())
    shares = [training_share(outcome.rounds, host, plan.step_seconds, BATCH_SIZE) for host in HOSTS]
    return {
        "link": setting.name,
        "mbit": setting.mbit,
        "millions": plan.millions,
        "rounds": len(outcome.rounds),
        "whole_rounds": len(whole),
        "round_seconds": round_seconds(outcome.rounds, HOSTS),
        "exchange_seconds": exchange,
        "limit_seconds": median(limits),
        "ratio_to_limit": exchange / median(limits),
        "apply_seconds": median(one for each in whole for one in each.apply_seconds()),
        "training_share": median(shares),
        "k": sorted({k for one in outcome.rounds for k in one.k.values()}),
        "packet_bytes": median(size for one in outcome.rounds for size in one.sizes.values()),
        "bytes_up_per_round": max(outcome.bytes_per_round(host, "up") for host in HOSTS),
        "bytes_down_per_round": max(outcome.bytes_per_round(host, "down") for host in HOSTS),
        "overrun": outcome.overrun,
    }


def round_seconds(rounds: Sequence[Round], hosts: Sequence[str]) -> float:
    """From one round kept to the next, over all of them; median of these hosts."""
    first, last = rounds[0], rounds[-1]
    spans = [last.kept[host] - first.kept[host] for host in hosts if host in last.kept]
    return median(spans) / (last.number - first.number)


def _slowdown(party: Party, rounds: int) -> Facts:
    """The same nodes, the first of them fast and then thin."""
    fast, thin = SLOWDOWN
    found: Facts = {}
    for name, setting_links in (("fast", fast), ("thin", thin)):
        outcome = party.play(setting_links, rounds)
        found[f"{name}_round_seconds"] = round_seconds(outcome.rounds, HOSTS[1:])
        found[f"{name}_overrun"] = outcome.overrun
    return found


def _join(party: Party) -> Any:
    for host in HOSTS:
        party.lab.set_link(host, **JOIN_SETTING)
    return party.join(JOINER, JOIN_SETTING)


def _baselines(choice: Choice, known: Sequence[Facts], say: Say) -> Iterator[Facts]:
    """hivemind on the links of the speed-up, at its size; elsewhere at the smallest."""
    for setting in choice.settings:
        thin = setting in choice.speedup_settings
        if choice.quick and not thin:
            continue
        millions = choice.speedup_millions if thin else choice.sizes[0]
        for compression in COMPRESSIONS:
            if not _lacking(known, [setting], millions, compression=compression):
                continue
            say(f"{setting.name}: hivemind, {millions:g} M parameters in {compression}")
            steps = 2 if setting.mbit >= SPEEDUP_MBIT and not choice.quick else 1
            found = theirs.play(
                setting.links, millions, compression, steps, PATIENCE, congestion_control=choice.tcp
            )
            facts = asdict(found) | {"steps": found.seconds, "seconds": found.median}
            row = {"link": setting.name, "millions": millions, "compression": compression}
            yield row | facts
