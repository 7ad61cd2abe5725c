"""What once went wrong, each as small as it gets. The hunt is `make sim`."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.simulator.parts import Faults, digest
from benchmarks.simulator.world import World
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.rules import MIN_WEIGHT, entries_of, float32, head_of
from demoloco.types import Manifest
from tests.rounds.desk import GENESIS, Desk, PeerId, chain, manifest, offer

FOUNDER = PeerId("founder")


def test_a_node_left_alone_with_a_manifest_whose_packets_are_gone_goes_on() -> None:
    """The hunt: it looked for the other proposer whose turn it was, and fell."""
    desk = Desk("founder").start()
    gone = manifest(GENESIS, [offer("other")], "other")
    desk.hear(ev.ManifestHeard(PeerId("other"), gone))
    desk.contribute()
    assert "fetching 1 packet(s)" in desk.machine.why()
    assert desk.wants(ef.Propose) == []
    desk.wake(5.0)
    assert len(desk.wants(ef.Propose)) == 1


def test_a_false_claim_of_my_own_head_makes_nothing_to_apply() -> None:
    """It was taken for a better head: the way to it was empty, and was to be applied."""
    desk = Desk().start(*chain(1))
    desk.see("liar", replace(desk.head, samples_total=10**9))
    assert desk.wants(ef.Apply) == []


def test_a_chain_that_parts_at_the_genesis_is_reached_after_a_restart() -> None:
    """A restarted node knew its manifests, but not the genesis under them."""
    desk, won = Desk().start(*chain(1, "x")), chain(2)
    desk.see("founder", head_of(won[1]))
    desk.hear(ev.ManifestsFetched(FOUNDER, (won[1], won[0])))
    assert [fetch.packet for fetch in desk.wants(ef.Fetch)] == [m.entries[0].packet for m in won]


def test_a_proposer_that_dies_with_its_packets_does_not_stop_the_others() -> None:
    """Its manifest was the heaviest for ever, and nobody could apply it."""
    world = World(1, [1.0] * 4, Faults(transfer=(1.0, 1.0)))
    nodes = list(world.nodes.values())
    for node in nodes:
        node.start()
    world.run(60)
    before = max(node.disk.head.round for node in nodes if node.disk.head)
    dead = nodes[0]
    dead.crash()
    head = nodes[1].disk.head
    assert head is not None
    bequest = manifest(
        head, [offer(dead.name, head, samples=999)], "stranger", [node.name for node in nodes]
    )
    for node in nodes[1:]:
        node.hear(ev.ManifestHeard(dead.name, bequest))
    world.run(120)
    assert all(n.disk.head and n.disk.head.round >= before + 3 for n in nodes[1:])


def test_a_member_that_refers_to_what_nobody_has_does_not_stop_the_others() -> None:
    """A manifest on an invented parent was the target for ever."""
    world = World(2, [1.0] * 3)
    nodes = list(world.nodes.values())
    for node in nodes:
        node.start()
    world.run(60)
    before = min(node.disk.head.round for node in nodes if node.disk.head)
    invented = chain(9, "liar")[8]
    claim = replace(invented, samples_total=10**9)
    for node in nodes:
        node.hear(ev.ManifestHeard(PeerId("liar"), claim))
    world.run(240)
    assert all(n.disk.head and n.disk.head.round >= before + 3 for n in nodes)


def test_a_packet_of_no_samples_is_never_made() -> None:
    """The hunt: trained steps were waiting while the chain told all that was owed."""
    desk = Desk().start()
    heavy = manifest(GENESIS, [offer("me", samples=50)], "founder")
    desk.hear(ev.ManifestHeard(FOUNDER, heavy))
    desk.train(10)
    desk.hear(ev.Contributed(offer("me", name="late"), 1.0))
    desk.hear(ev.LeaveRequested())
    desk.hear(ev.PacketFetched(heavy.entries[0].packet, 1.0))
    desk.apply()
    assert desk.owed == 0
    assert desk.wants(ef.Contribute) == []


def test_going_back_to_an_older_snapshot_takes_back_what_was_told_since() -> None:
    """The hunt: a lost chain too deep to be taken back was not owed again."""
    desk = Desk().start()
    told = manifest(GENESIS, [desk.contribute(10)], "founder")
    desk.get(told)
    parent = head_of(told)
    after = manifest(parent, [offer("me", parent)], "me", ("me",))
    desk.see("founder", parent)
    desk.hear(ev.ManifestHeard(FOUNDER, after))
    for fetch in desk.wants(ef.Fetch):
        desk.hear(ev.PacketFetched(fetch.packet, 1.0))
    desk.hear(ev.ApplyFailed(after.digest, "another state"))
    desk.hear(ev.SnapshotFetched(GENESIS, digest("state after", GENESIS.digest), None))
    desk.hear(ev.Applied(GENESIS, digest("state after", GENESIS.digest)))
    assert desk.owed == 10


def test_packets_of_nothing_do_not_take_the_weight_of_the_others() -> None:
    """Two of three had learnt nothing: the median norm was 0, the third one's weight too, and the
    proposer fell over a manifest of its own that no rule allows."""
    offers = [offer(name) for name in ("a", "b", "c")]
    norms = dict(zip((one.packet for one in offers), (0.0, 0.0, 1.0), strict=True))
    weights = [entry.weight for entry in entries_of(offers, norms)]
    assert weights == [float32(1 / 3)] * 3


def test_a_weight_is_never_nothing() -> None:
    """float32 has no number for a share that is too small."""
    offers = [replace(offer("a"), samples=2**48), replace(offer("b"), samples=2**48), offer("c")]
    norms = dict(zip((one.packet for one in offers), (1e-20, 1e-20, 1e19), strict=True))
    assert min(entry.weight for entry in entries_of(offers, norms)) == MIN_WEIGHT


def test_what_was_lost_and_is_told_after_all_is_not_owed() -> None:
    """The hunt: the chain that was left, with packets that were gone, won again."""
    desk = Desk().start()
    left = [manifest(GENESIS, [offer("me", samples=30)], "founder")]
    left.append(manifest(head_of(left[0]), [offer("me", head_of(left[0]))], "me", ("me",)))
    desk.get(*left)
    won = chain(5, "y")
    _go(desk, won)
    desk.apply(lost=30)
    assert desk.owed == 10
    again = chain(2, "me", head_of(left[1]))
    _go(desk, again)
    (apply,) = desk.wants(ef.Apply)
    assert apply.redo == (*left, *again)
    desk.apply(lost=10**9)
    assert desk.owed == 0
    assert [note for note in desk.wants(ef.Note) if note.warning] == []


def _go(desk: Desk, manifests: list[Manifest]) -> None:
    """Up to the end of these, whose packets come."""
    desk.see("y", head_of(manifests[-1]))
    desk.hear(ev.ManifestsFetched(PeerId("y"), tuple(reversed(manifests))))
    for fetch in desk.wants(ef.Fetch):
        desk.hear(ev.PacketFetched(fetch.packet, 1.0))
