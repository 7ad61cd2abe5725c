"""Three real nodes on three emulated links, one of them thin, distant and lossy. The story is told
once; each test is one claim about it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import paced
from benchmarks.daemons import Daemon, Moment, World, sets
from benchmarks.wan.course import Round, median, read
from benchmarks.wanlab.lab import Lab, why_unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
]

LINKS: Mapping[str, Mapping[str, Any]] = {
    "fiber": {"up": "100mbit", "down": "100mbit", "delay": "5ms"},
    "cable": {"up": "20mbit", "down": "100mbit", "delay": "10ms", "jitter": "4ms"},
    "thin": {"up": "2mbit", "down": "20mbit", "delay": "140ms", "loss": "1%"},
}
FAST = ("fiber", "cable")
PACE_MS = 40
INNER_STEPS = 30
OPEN_ROUNDS = 5
ROUNDS = 7
PATIENCE_SECONDS = 150.0
RUN = sets(inner_steps=INNER_STEPS, batch_size=8, evaluate_every=1, task__pace_ms=PACE_MS)
OWN = sets(threads=1, log_level="debug")


@dataclass
class Story:
    """What was seen."""

    before: list[Round]  # that all were in, while the links were open
    rounds: list[Round]  # since they are as told above
    moments: dict[str, set[Moment]]
    evaluations: dict[str, list[tuple[int, float]]]
    stats: dict[str, Any]


@pytest.fixture(scope="module")
def story(place: World) -> Story:
    shutil.copy(Path(paced.__file__), place.root)
    with ExitStack() as held:
        lab = held.enter_context(Lab(list(LINKS), seed=1))
        nodes = {host: _node(place, lab, host) for host in LINKS}
        first, *others = nodes.values()
        first.start("--task", "paced:Paced", *RUN, *OWN)
        for node in others:
            node.start("--task", "paced:Paced", "--peers", first.address, *OWN)
        for node in nodes.values():
            node.wait_for(lambda status: status.rounds_contributed >= 1, PATIENCE_SECONDS)
        together = newest(nodes)
        for node in nodes.values():
            node.wait_for_round(together + OPEN_ROUNDS, PATIENCE_SECONDS)
        for host, link in LINKS.items():
            lab.set_link(host, **link)
        begin = newest(nodes) + 1
        for node in nodes.values():
            node.wait_for_round(begin + ROUNDS, PATIENCE_SECONDS)
        rounds = read({host: node.facts() for host, node in nodes.items()})
        story = Story(
            before=[one for one in rounds if together < one.number < begin],
            rounds=[one for one in rounds if begin <= one.number <= begin + ROUNDS],
            moments={host: node.moments() for host, node in nodes.items()},
            evaluations={host: node.evaluations() for host, node in nodes.items()},
            stats=lab.stats(),
        )
        for node in nodes.values():
            node.kill()
        return story


def _node(place: World, lab: Lab, host: str) -> Daemon:
    made = place.daemon(host)
    made.place = partial(lab.inside, host)
    made.listen = f"/ip4/{lab.ip(host)}/tcp/0"
    return made


def newest(nodes: Mapping[str, Daemon]) -> int:
    return max(int(node.status.round) for node in nodes.values())


def pace(rounds: list[Round], host: str) -> float:
    """Seconds from one of its packets to the next."""
    made = [one.made[host] for one in rounds if host in one.made]
    return median(after - before for before, after in itertools.pairwise(made))


def test_all_nodes_hold_the_same_state_after_the_same_round(story: Story) -> None:
    states = {
        number: {
            m.fingerprint for seen in story.moments.values() for m in seen if m.round == number
        }
        for number in range(story.rounds[0].number, story.rounds[-1].number + 1)
    }
    shared = [number for number, found in states.items() if found]
    assert len(shared) >= ROUNDS // 2
    assert all(len(states[number]) == 1 for number in shared)


@pytest.mark.parametrize("host", LINKS)
def test_held_out_loss_falls(story: Story, host: str) -> None:
    losses = [loss for _, loss in story.evaluations[host]]
    assert len(losses) >= 4
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("host", FAST)
def test_fast_nodes_do_not_wait_for_the_thin_one(story: Story, host: str) -> None:
    """To tell of a packet, fetch it and tell of the manifest takes 0.6 s on the thin link, beside
    1.2 s of inner steps: rounds that waited for that would take 1.5 times as long as before."""
    assert pace(story.rounds, host) < 1.3 * pace(story.before, host)


def test_the_thin_node_is_in_rounds_too(story: Story) -> None:
    """What came too late for one it tells with the next."""
    inside = [one for one in story.rounds if one.samples.get("thin", 0) > 0]
    assert len(inside) >= len(story.rounds) // 4


def test_the_links_were_as_told(story: Story) -> None:
    assert sum(host["overrun"] for host in story.stats["hosts"].values()) == 0
    assert sum(path["lost"] for path in story.stats["paths"]["thin"].values()) > 0
