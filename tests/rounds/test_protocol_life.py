"""docs/protocol.md, sentence by sentence: joining, crash and restart, timers and words."""

from __future__ import annotations

from benchmarks.simulator.parts import digest
from benchmarks.simulator.world import World
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.facts import MAX_RETRY_SECONDS
from demoloco.rounds.rules import MAX_NAMED, head_of
from demoloco.rounds.state import REUNION_SECONDS
from demoloco.types import Phase
from tests.rounds.desk import (
    GENESIS,
    Desk,
    PeerId,
    chain,
    manifest,
    member,
    offer,
)

FOUNDER = PeerId("founder")


# -- joining ---------------------------------------------------------------------------------------
def test_a_node_without_a_state_fetches_a_snapshot_from_members_that_have_one() -> None:
    """[P85]"""
    desk = Desk()
    desk.see("also new", None, Phase.JOINING)
    assert desk.wants(ef.FetchSnapshot) == []
    assert desk.machine.why() == "looking for a member that has the agreed state"
    desk.see("one", head_of(chain(1)[0])).see("two", head_of(chain(2)[1]))
    desk.hear(ev.SnapshotFailed("busy"))
    desk.wake(MAX_RETRY_SECONDS)
    assert desk.wants(ef.FetchSnapshot) == [ef.FetchSnapshot((PeerId("two"), PeerId("one")))]


def test_a_joiner_neither_trains_nor_keeps_manifests() -> None:
    """[P86]"""
    desk = Desk()
    desk.hear(ev.WorkerCame(), ev.ManifestHeard(FOUNDER, chain(1)[0]))
    assert desk.wanted == [ef.Say(Phase.JOINING, None)]
    assert desk.machine.head is None
    assert desk.machine.state.target() is None


def _joined() -> Desk:
    """It holds the snapshot of round 2; its members stand on round 4."""
    desk, rounds = Desk(), chain(4)
    desk.see("founder", head_of(rounds[3]))
    desk.hear(ev.WorkerCame())
    desk.hear(ev.SnapshotFetched(head_of(rounds[1]), digest("state"), rounds[1]))
    return desk


def test_a_joiner_stands_on_the_snapshot_and_replays_the_rest() -> None:
    """[P87]"""
    desk, rounds = _joined(), chain(4)
    assert desk.head == head_of(rounds[1])
    desk.hear(ev.ManifestsFetched(FOUNDER, (rounds[3], rounds[2])))
    assert [f.packet for f in desk.wants(ef.Fetch)] == [rounds[2].entries[0].packet]
    desk.hear(ev.PacketFetched(rounds[2].entries[0].packet, 1.0))
    assert desk.wants(ef.Apply) == [ef.Apply((), (rounds[2],))]


def test_a_joiner_owes_nothing() -> None:
    """[P88]"""
    assert _joined().owed == 0


def test_nobody_waits_for_a_joiner_in_the_round_in_which_it_comes() -> None:
    """[P89]"""
    desk = Desk("founder").settle_round()
    desk.see("joiner", desk.head)
    desk.contribute()
    assert len(desk.wants(ef.Propose)) == 1
    desk.hear(ev.ManifestHeard(FOUNDER, desk.seal()))
    desk.apply()
    desk.contribute()
    assert desk.wants(ef.Propose) == []
    assert "waiting for joiner" in desk.machine.why()


# -- crash and restart -----------------------------------------------------------------------------
def test_a_restart_stands_on_the_head_of_the_disk() -> None:
    """[P104]"""
    desk = Desk().start(*chain(3), owed_samples=4)
    assert desk.head == head_of(chain(3)[2])
    assert desk.machine.fingerprint == digest("state after", desk.head.digest)
    assert desk.owed == 4


def test_the_packet_of_the_open_round_is_announced_again_not_made_again() -> None:
    """[P105]"""
    pending = offer("me")
    desk = Desk().see("founder").start(pending=pending, pending_norm=2.0, owed_samples=10)
    assert desk.machine.state.round.mine == pending
    assert desk.wants(ef.Train) == [ef.Train(2, 10)]
    desk.wake(3.0)
    assert desk.wants(ef.Announce) == [ef.Announce((pending,))]


def test_a_stored_packet_of_another_round_is_not_announced_but_owed() -> None:
    """[P106]"""
    desk = Desk().see("founder").start(*chain(1), pending=offer("me"), owed_samples=10)
    assert desk.machine.state.round.mine is None
    desk.train(5)
    assert desk.wants(ef.Contribute)[0].samples == 15


def test_a_lost_worker_takes_what_the_checkpoint_has_not() -> None:
    """[P107]"""
    desk = Desk().start()
    desk.train(10)
    desk.hear(ev.WorkerLost(owed_samples=4))
    assert desk.owed == 4
    assert desk.machine.phase is Phase.CATCHING_UP
    assert "waiting for the worker" in desk.machine.why()
    desk.hear(ev.WorkerCame())
    assert desk.wanted[:2] == [ef.Settle(), ef.Train(1, 6)]


def test_a_restarted_node_does_not_close_alone_before_it_could_meet_the_others() -> None:
    """[P118]"""
    shared = manifest(GENESIS, [offer("me"), offer("other")], "founder")
    pending = offer("me", head_of(shared))
    desk = Desk().start(shared, pending=pending, pending_norm=1.0, owed_samples=10)
    assert desk.wants(ef.Propose) == []
    assert desk.machine.why() == "looking for the members that were here before"
    desk.wake(after=REUNION_SECONDS)
    assert len(desk.wants(ef.Propose)) == 1


def test_a_packet_that_is_out_stays_in_though_its_worker_is_lost() -> None:
    """[P108]"""
    desk = Desk("founder").settle_round("other")
    mine = desk.contribute()
    desk.hear(ev.WorkerLost(owed_samples=10))
    desk.receive(offer("other", desk.head))
    (propose,) = desk.wants(ef.Propose)
    assert mine.packet in [entry.packet for entry in propose.draft.entries]


def test_a_packet_that_comes_after_its_round_is_not_told_but_made_again() -> None:
    """[P109]"""
    desk = Desk().start()
    desk.train(10)
    late = offer("me")
    desk.get(manifest(GENESIS, [offer("founder")], "founder"))
    assert desk.wants(ef.Contribute) == []  # one is being made
    desk.hear(ev.Contributed(late, 1.0))
    assert desk.wants(ef.Announce) == []
    assert desk.wants(ef.Contribute) == [ef.Contribute(2, desk.head.digest, 10)]


def test_training_goes_on_over_a_round_that_closes() -> None:
    """[P110]"""
    desk = Desk().start()
    desk.get(manifest(GENESIS, [offer("founder")], "founder"))
    assert desk.wants(ef.Cut) + desk.wants(ef.Train) == []
    desk.train(10)
    assert desk.wants(ef.Contribute) == [ef.Contribute(2, desk.head.digest, 10)]


# -- timers and words ------------------------------------------------------------------------------
def test_one_alarm_is_out_the_earliest() -> None:
    """[P111]"""
    desk = Desk("founder").settle_round("one", "two")
    desk.contribute()
    assert desk.wants(ef.WakeMe) == [ef.WakeMe(3.0)]  # the next announcement
    assert desk.hear(ev.MemberSeen(member("one", desk.head)), after=0.1) == []
    desk.hear(ev.OffersHeard(PeerId("two"), (offer("two", desk.head),)))
    desk.hear(ev.FetchFailed(offer("two", desk.head).packet), after=0.1)
    assert desk.wants(ef.WakeMe) == [ef.WakeMe(0.7)]  # earlier: it replaces the other


def test_while_the_state_moves_nothing_else_is_wanted() -> None:
    """[P112]"""
    desk = Desk().start()
    desk.train()
    desk.hear(ev.ManifestHeard(FOUNDER, chain(1)[0]))
    desk.hear(ev.PacketFetched(chain(1)[0].entries[0].packet, 1.0))
    assert len(desk.wants(ef.Apply)) == 1
    desk.hear(ev.Contributed(offer("me"), 1.0), ev.Woken())
    assert desk.wanted == [ef.Say(Phase.EXCHANGING, GENESIS)]
    assert desk.machine.why() == "applying a manifest"
    snapshot = chain(3)[2]
    desk.hear(ev.SnapshotFetched(head_of(snapshot), digest("state"), snapshot))
    assert desk.wants(ef.Adopt) == []


def test_the_same_events_at_the_same_times_give_the_same_effects() -> None:
    """[P113]"""

    def notes() -> list[list[str]]:
        world = World(11, [1.0, 0.5, 1.0])
        for node in world.nodes.values():
            node.start()
        world.run(100)
        return [[*node.notes, *map(str, node.applied)] for node in world.nodes.values()]

    assert notes() == notes()


def test_a_word_is_said_when_it_is_new() -> None:
    """[P114]"""
    desk = Desk().start(worker=False)
    desk.hear(ev.WorkerCame())
    assert desk.wants(ef.Say) == [ef.Say(Phase.TRAINING, GENESIS)]
    desk.hear(ev.Woken())
    assert desk.wants(ef.Say) == []
    desk.contribute()
    assert desk.wants(ef.Say) == [ef.Say(Phase.EXCHANGING, GENESIS)]


def test_the_phase_says_what_a_node_does() -> None:
    """[P115]"""
    desk = Desk()
    assert desk.machine.phase is Phase.JOINING
    desk.start(worker=False)
    assert desk.machine.phase is Phase.CATCHING_UP  # its worker does not stand yet
    desk.hear(ev.WorkerCame())
    assert desk.machine.phase is Phase.TRAINING
    desk.contribute()
    assert desk.machine.phase is Phase.EXCHANGING
    desk.see("one", head_of(chain(2)[1]))
    assert desk.machine.phase is Phase.CATCHING_UP
    desk.hear(ev.LeaveRequested())
    assert desk.machine.phase is Phase.LEAVING


def test_a_node_always_says_what_it_waits_for() -> None:
    """[P116]"""
    desk = Desk()
    reasons = [desk.machine.why()]
    desk.start(worker=False)
    for event in (
        ev.WorkerCame(),
        ev.Trained(10),
        ev.Contributed(offer("me"), 1.0),
        ev.MemberSeen(member("one", head_of(chain(2)[1]))),
        ev.LeaveRequested(),
    ):
        desk.hear(event)
        reasons.append(desk.machine.why())
    assert all(reasons)
    assert len(set(reasons)) == len(reasons)
    others = [f"peer{n:02d}" for n in range(MAX_NAMED + 3)]
    one_of_many = Desk("late").settle_round("founder", *others)
    one_of_many.contribute()
    named = ", ".join(["ounder", *others[: MAX_NAMED - 1]])
    assert f"1 in, waiting for {named} and 4 more, " in one_of_many.machine.why()


def test_a_seed_never_trains_nor_contributes() -> None:
    """[P117]"""
    desk = Desk("seed", has_worker=False).start(worker=False).see("founder")
    desk.receive(offer("founder"))
    desk.get(manifest(GENESIS, [offer("founder")], "founder"))
    assert desk.head.round == 1
    assert desk.wants(ef.Train) + desk.wants(ef.Contribute) == []
