"""The main paths, event by event, as texts to be read.

REWRITE=1 pytest tests/rounds/test_transcripts.py writes them anew: then read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from benchmarks.simulator.parts import Faults, digest
from benchmarks.simulator.world import World
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.chain import MAX_REPLAY
from demoloco.rounds.rules import head_of
from tests.rounds.desk import GENESIS, Desk, PeerId, chain, manifest, offer
from tests.rounds.scribe import Scribe

TEXTS = Path(__file__).parent / "transcripts"
Scene = Callable[[], Scribe]


def _world(scribe: Scribe, speeds: Collection[float]) -> World:
    world = World(1, [*speeds], Faults(delay=(0.1, 0.1), transfer=(0.0, 0.0)))
    world.listen = lambda node, event, effects: scribe.write(  # type: ignore[method-assign]
        world.now, node, event, effects
    )
    return world


def _desk(scribe: Scribe, me: str = "me") -> Desk:
    desk = Desk(me)
    desk.listen = lambda event, effects: scribe.write(  # type: ignore[method-assign]
        desk.now, me, event, effects
    )
    return desk


def alone() -> Scribe:
    scribe = Scribe()
    world = _world(scribe, [1.0])
    scribe.title("The creator of a run, with nobody else: it closes its rounds alone")
    world.nodes[world.creator].start()
    world.run(12)
    return scribe


def two_nodes() -> Scribe:
    scribe = Scribe()
    world = _world(scribe, [1.0, 0.9])
    scribe.title("The creator starts; a second node takes its state and trains with it")
    for node in world.nodes.values():
        node.start()
    world.run(24)
    return scribe


def late_joiner() -> Scribe:
    scribe = Scribe(only=["node02"])
    world = _world(scribe, [1.0, 1.0, 1.0])
    first, second, third = world.nodes.values()
    first.start()
    second.start()
    world.run(75)
    scribe.title("Two nodes have trained for seven rounds when a third comes: what it sees")
    third.start()
    world.run(24)
    return scribe


def left_out() -> Scribe:
    scribe = Scribe(only=["node02"])
    world = _world(scribe, [1.0, 1.0, 0.4])
    scribe.title("A node much slower than the others: it is left out, and tells it all later")
    for node in world.nodes.values():
        node.start()
    world.run(45)
    return scribe


def dead_proposer() -> Scribe:
    scribe = Scribe()
    desk = _desk(scribe).settle_round("founder")
    scribe.begin(
        "All packets are in, and the founder, whose turn it is, is silent: the next in line"
    )
    desk.contribute()
    desk.receive(offer("founder", desk.head))
    desk.wake(3.0)
    desk.wake(2.0)
    desk.hear(ev.ManifestHeard(PeerId("me"), desk.seal()))
    desk.apply()
    desk.hear(ev.MemberLost(PeerId("founder")), after=2.0)
    return scribe


def fork() -> Scribe:
    scribe = Scribe()
    desk = _desk(scribe)
    scribe.title("A round that has my packet, and one under way; then a heavier chain without me")
    desk.start()
    mine = desk.contribute(10)
    desk.get(manifest(GENESIS, [mine], "founder"))
    desk.contribute(5)
    scribe.title("The partition heals")
    won = [manifest(GENESIS, [offer("x", samples=30)], "x")]
    parent = head_of(won[0])
    won.append(manifest(parent, [offer("x", parent)], "x", ("x",)))
    desk.see("x", head_of(won[1]))
    desk.hear(ev.ManifestsFetched(PeerId("x"), (won[1], won[0])))
    for fetch in desk.wants(ef.Fetch):
        desk.hear(ev.PacketFetched(fetch.packet, 1.0), after=0.1)
    desk.apply()
    return scribe


def leave() -> Scribe:
    scribe = Scribe(only=["node01"])
    world = _world(scribe, [1.0, 1.0])
    first, second = world.nodes.values()
    first.start()
    second.start()
    world.run(26)
    scribe.begin("A node is asked to leave while it trains: its last samples are told first")
    second.hear(ev.LeaveRequested())
    world.run(10)
    return scribe


def restart() -> Scribe:
    scribe = Scribe()
    desk = _desk(scribe)
    scribe.title("A node was killed with its packet out: it announces it again")
    pending = offer("me")
    desk.see("founder").start(pending=pending, pending_norm=1.0, owed_samples=10)
    desk.wake(3.0)
    desk.get(manifest(GENESIS, [offer("founder"), pending], "founder"))
    return scribe


def snapshot() -> Scribe:
    scribe = Scribe()
    desk, rounds = _desk(scribe), chain(MAX_REPLAY + 2)
    scribe.title("A node comes back after 258 rounds: a snapshot, then the two rounds since")
    desk.start(owed_samples=7).see("founder", head_of(rounds[-1]))
    base = rounds[-3]
    taken = ev.SnapshotFetched(head_of(base), digest("state after", base.digest), base)
    desk.hear(ev.SnapshotFailed("busy"), after=0.1)
    desk.wake(0.5)
    desk.hear(taken, after=2.0)
    desk.hear(ev.Applied(taken.head, taken.fingerprint), after=0.1)
    desk.hear(ev.ManifestsFetched(PeerId("founder"), (rounds[-1], rounds[-2])), after=0.1)
    for _ in range(2):
        (fetch,) = desk.wants(ef.Fetch)
        desk.hear(ev.PacketFetched(fetch.packet, 1.0), after=0.1)
        desk.apply()
    return scribe


SCENES: tuple[Scene, ...] = (
    alone,
    two_nodes,
    late_joiner,
    left_out,
    dead_proposer,
    fork,
    leave,
    restart,
    snapshot,
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_transcript_is_the_one_that_was_read(scene: Scene) -> None:
    path, text = TEXTS / f"{scene.__name__}.txt", scene().text()
    if os.environ.get("REWRITE") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "REWRITE=1 writes it anew; then read the diff"


def test_each_transcript_has_its_scene() -> None:
    assert {path.stem for path in TEXTS.glob("*.txt")} == {scene.__name__ for scene in SCENES}
