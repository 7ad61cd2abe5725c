"""The loop: effects in their order, nothing left running, nothing swallowed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from demoloco.config import NodeConfig, RunConfig
from demoloco.errors import StoreError, WorkerError
from demoloco.node import room as room_module
from demoloco.node.disk import Disk
from demoloco.node.driver import MAX_WAITING, Driver
from demoloco.node.gifts import Shelf
from demoloco.node.lending import Lending
from demoloco.node.parts import Parts
from demoloco.node.revival import PROOF_PACKETS, Revival
from demoloco.node.stance import Stance
from demoloco.rounds import effects as ef
from demoloco.rounds import events as ev
from demoloco.rounds.open_round import OpenRound
from demoloco.rounds.rules import head_of
from demoloco.swarm.port import ManifestHeard, MemberLost, MemberSeen, OffersHeard
from demoloco.types import Draft, Loan, Manifest, Member, Offer, PeerId, Phase, Round
from demoloco.wire import seal
from demoloco.worker.port import (
    Contributed,
    Corrected,
    Died,
    Failed,
    GiftTried,
    Lapsed,
    Progress,
    Saved,
    Skipped,
    TakeAgreed,
    Train,
    Trained,
    WorkerEvent,
)
from tests.node.scribe import GENESIS, RUN, FakeCrew, Scribe, SilentSwarm, report_of


class Script:
    """A machine that wants what a test says, and notes what it hears."""

    def __init__(self) -> None:
        self.state = self
        self.heard: list[ev.Event] = []
        self.wanted: dict[type, list[ef.Effect]] = {}
        self.stopped = False
        self.head = GENESIS
        self.fingerprint = RUN
        self.phase = Phase.TRAINING
        self.round: Any = None
        self.chain: Any = None
        self.owed_samples = 0
        self.labour = self
        self.news = asyncio.Event()

    def why(self) -> str:
        return "scripted"

    def handle(self, event: ev.Event, now: float) -> list[ef.Effect]:
        self.heard.append(event)
        self.news.set()
        self.stopped = isinstance(event, ev.LeaveRequested)
        return self.wanted.pop(type(event), [])

    async def hears(self, kind: type) -> Any:
        while not any(isinstance(event, kind) for event in self.heard):
            self.news.clear()
            await self.news.wait()
        return next(event for event in self.heard if isinstance(event, kind))


class Wire(SilentSwarm):
    """A swarm that writes down what it is told to tell."""

    def __init__(self, journal: list[str], scribe: Scribe) -> None:
        self.journal = journal
        self.scribe = scribe
        self.run: Any = None
        self.said: list[Member] = []

    def enter(self, run: Any) -> None:
        self.run = run

    def say(self, member: Member) -> None:
        self.said.append(member)

    async def announce(self, offers: Sequence[Offer]) -> None:
        self.journal.append("announced")

    async def publish(self, sealed: bytes) -> None:
        self.journal.append("published")

    def seal(self, kind: str, body: bytes) -> bytes:
        return seal(kind, self.scribe.identities[0].sign, body)


class Crew(FakeCrew):
    """Says that it restarted, as often as it is asked to; or fails to."""

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0
        self.fault: Exception | None = None

    async def restart(self) -> None:
        self.restarts += 1
        if self.fault is not None:
            raise self.fault


class Desk:
    """A driver whose machine is a script."""

    def __init__(self, home: Path, **run: Any) -> None:
        self.scribe = Scribe()
        self.journal: list[str] = []
        self.script = Script()
        self.crew = Crew()
        self.disk = Disk()
        self.config = RunConfig(k=8, **run)
        self.swarm = Wire(self.journal, self.scribe)
        self.report = report_of()
        parts: dict[str, Any] = {
            "identity": self.scribe.identities[0],
            "run": RUN,
            "config": self.config,
            "node": NodeConfig(home=home, max_worker_restarts=2),
            "machine": self.script,
            "swarm": self.swarm,
            "ledger": self.scribe.ledger,
            "disk": self.disk,
            "crew": self.crew,
            "report": self.report,
            "shelf": Shelf(home / "gifts"),
            "lending": Lending(),
        }
        crew: Any = self.crew
        stance = Stance(self.scribe.me, crew, self.scribe.ledger, self.disk, self.config, 0.5)
        self.parts = Parts(stance=stance, **parts)
        self.driver = Driver(self.parts)
        self.task: asyncio.Task[None] | None = None

    def run(self) -> None:
        self.task = asyncio.create_task(self.driver.run())

    async def drive(self, event: ev.Event, *wanted: ef.Effect) -> None:
        """The machine wants this when it hears of that."""
        self.script.wanted[type(event)] = list(wanted)
        self.driver.post(event)
        if self.task is None:
            self.run()

    async def stop(self) -> None:
        self.driver.post(ev.LeaveRequested())
        assert self.task is not None
        await self.task

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.disk.close()
        self.scribe.store.close()

    def counted(self, what: str) -> int:
        return self.report._counters[what]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    before = asyncio.all_tasks()
    yield made
    await made.close()
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}


def no_room() -> StoreError:
    error = StoreError("no room to write: 1 bytes needed, 0 free")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


def fails(desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str, *errors: Exception) -> None:
    """This method of the ledger fails so often, then works."""
    works, left = getattr(desk.scribe.ledger, name), list(errors)

    def method(*args: Any) -> Any:
        if left:
            raise left.pop(0)
        return works(*args)

    monkeypatch.setattr(desk.scribe.ledger, name, method)


# -- order -----------------------------------------------------------------------------------------
async def test_a_manifest_is_durable_before_anybody_is_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = desk.scribe.round(GENESIS, 0)
    commit = desk.scribe.ledger.commit

    def slow(one: Manifest) -> None:
        commit(one)
        desk.journal.append("committed")

    monkeypatch.setattr(desk.scribe.ledger, "commit", slow)
    await desk.drive(
        ev.Woken(), ef.Commit(manifest), ef.Publish(manifest), ef.Apply((), (manifest,))
    )
    applied = await desk.script.hears(ev.Applied)
    assert desk.journal == ["committed", "published"]
    assert applied.head == head_of(manifest) == desk.scribe.store.head()
    await desk.stop()


async def test_the_worker_follows_before_anybody_hears_that_a_round_is_applied(desk: Desk) -> None:
    await desk.parts.stance.settle(GENESIS, None, None)
    manifest = desk.scribe.round(GENESIS, 0)
    await desk.drive(ev.Woken(), ef.Apply((), (manifest,)))
    await desk.script.hears(ev.Applied)
    assert [type(command).__name__ for command in desk.crew.told] == ["TakeAgreed", "Correct"]
    await desk.stop()


async def test_my_draft_comes_back_as_a_sealed_manifest(desk: Desk) -> None:
    model = desk.scribe.manifest(GENESIS, [desk.scribe.told(GENESIS)])
    names = [n for n in Draft.__dataclass_fields__ if n != "proposer"]
    draft = Draft(proposer=desk.scribe.me, **{name: getattr(model, name) for name in names})
    await desk.drive(ev.Woken(), ef.Propose(draft))
    heard = await desk.script.hears(ev.ManifestHeard)
    assert heard.holder == heard.manifest.proposer == desk.scribe.me
    assert desk.scribe.ledger.sealed(heard.manifest.digest) is not None
    await desk.stop()


async def test_my_packet_is_durable_before_the_machine_hears_of_it(desk: Desk) -> None:
    await desk.parts.stance.settle(GENESIS, None, None)
    await desk.drive(ev.Woken(), ef.Contribute(Round(1), GENESIS.digest, 8))
    await desk.script.hears(ev.Woken)
    body = desk.scribe.body(desk.scribe.told(GENESIS))
    await contributed(desk, body)
    heard = await desk.script.hears(ev.Contributed)
    assert desk.scribe.ledger.body(heard.offer.packet) == body
    assert (heard.offer.samples, heard.offer.parent) == (8, GENESIS.digest)
    found = desk.scribe.ledger.pending(desk.scribe.me)
    assert found is not None
    assert found[0] == heard.offer
    await desk.stop()


async def contributed(desk: Desk, body: bytes) -> None:
    while not desk.crew.told or isinstance(desk.crew.last, TakeAgreed):
        desk.script.news.clear()
        desk.driver.post(ev.Woken())
        await desk.script.news.wait()
    desk.crew.hear(Contributed(ticket=desk.crew.last.ticket, body=body, k=8))


# -- what goes wrong -------------------------------------------------------------------------------
async def test_a_full_disk_is_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "ROOM_SECONDS", 0.0)
    manifest = desk.scribe.manifest(GENESIS, [desk.scribe.told(GENESIS)])
    for name in ("commit", "apply"):
        fails(desk, monkeypatch, name, no_room(), no_room())
    await desk.drive(ev.Woken(), ef.Commit(manifest), ef.Apply((), (manifest,)))
    assert (await desk.script.hears(ev.Applied)).head == head_of(manifest)
    await desk.stop()


async def test_a_full_disk_that_nobody_mends_ends_the_node(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "ROOM_SECONDS", 0.0)
    monkeypatch.setattr(room_module, "ROOM_TRIES", 2)
    fails(desk, monkeypatch, "apply", *(no_room() for _ in range(3)))
    manifest = desk.scribe.round(GENESIS, 0)
    await desk.drive(ev.Woken(), ef.Apply((), (manifest,)))
    assert desk.task is not None
    with pytest.raises(ExceptionGroup) as caught:
        await desk.task
    assert caught.group_contains(StoreError, match="no room")
    assert desk.counted("disk_full") == 1


async def test_while_the_disk_is_full_nobody_is_to_wait_for_this_node_and_it_trains_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "ROOM_SECONDS", 0.01)
    manifest = desk.scribe.manifest(GENESIS, [desk.scribe.told(GENESIS)])
    desk.script.round = OpenRound(Round(1), GENESIS.digest, 0.0, frozenset())
    await desk.parts.stance.settle(GENESIS, None, None)
    fails(desk, monkeypatch, "commit", *(no_room() for _ in range(5)))
    said = ef.Say(Phase.EXCHANGING, GENESIS)
    await desk.drive(ev.Woken(), said, ef.Commit(manifest), ef.Apply((), (manifest,)))
    await desk.script.hears(ev.Applied)
    phases = [member.phase for member in desk.swarm.said]
    assert phases == [Phase.EXCHANGING, Phase.CATCHING_UP, Phase.EXCHANGING]
    assert Train(round=Round(1), steps=desk.config.inner_steps) in desk.crew.told
    await desk.stop()


async def test_while_the_disk_is_full_it_trains_for_as_long_as_a_round_where_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not until it is cut: nobody cuts it meanwhile."""
    monkeypatch.setattr(room_module, "ROOM_SECONDS", 0.01)
    desk = Desk(tmp_path, round_seconds=8.0)
    manifest = desk.scribe.manifest(GENESIS, [desk.scribe.told(GENESIS)])
    desk.script.round = OpenRound(Round(1), GENESIS.digest, 0.0, frozenset())
    await desk.parts.stance.settle(GENESIS, None, None)
    doings = desk.driver._doings
    told = {"round": Round(1), "step": 1, "steps": 0, "loss": 1.0, "learning_rate": 0.1}
    doings.hear_worker(Progress(**told, samples_per_second=10.0, learnt=16), _never_spawn)
    fails(desk, monkeypatch, "commit", *(no_room() for _ in range(5)))
    await desk.drive(ev.Woken(), ef.Commit(manifest), ef.Apply((), (manifest,)))
    await desk.script.hears(ev.Applied)
    assert Train(round=Round(1), steps=5) in desk.crew.told
    await desk.stop()
    await desk.close()


def _never_spawn(work: Coroutine[Any, Any, None]) -> None:
    raise AssertionError


async def test_a_node_that_is_to_leave_waits_for_no_room(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "ROOM_SECONDS", 999.0)
    manifest = desk.scribe.manifest(GENESIS, [desk.scribe.told(GENESIS)])
    fails(desk, monkeypatch, "commit", *(no_room() for _ in range(9)))
    stuck = asyncio.Event()
    desk.driver._doings.room._changed = stuck.set
    await desk.drive(ev.Woken(), ef.Commit(manifest))
    await stuck.wait()
    desk.driver.post(ev.LeaveRequested())
    assert desk.task is not None
    with pytest.raises(ExceptionGroup) as caught:
        await desk.task
    assert caught.group_contains(StoreError, match="no room")


async def test_a_broken_disk_ends_the_node_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(desk, monkeypatch, "apply", StoreError("input/output error"))
    await desk.drive(ev.Woken(), ef.Apply((), (desk.scribe.round(GENESIS, 0),)))
    assert desk.task is not None
    with pytest.raises(ExceptionGroup) as caught:
        await desk.task
    assert caught.group_contains(StoreError, match="input/output")


async def test_housekeeping_that_fails_changes_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(desk, monkeypatch, "prune", StoreError("input/output error"))
    await desk.drive(ev.Woken(), ef.Apply((), (desk.scribe.round(GENESIS, 0),)))
    await desk.script.hears(ev.Applied)
    await desk.stop()


async def test_a_manifest_that_does_not_apply_is_told_to_the_machine(desk: Desk) -> None:
    manifest = desk.scribe.manifest(GENESIS, [desk.scribe.packet(GENESIS)[1]])
    await desk.drive(ev.Woken(), ef.Apply((), (manifest,)))
    failed = await desk.script.hears(ev.ApplyFailed)
    assert failed.manifest == manifest.digest
    assert "is gone" in failed.why
    await desk.stop()


async def test_a_snapshot_across_a_fork_lets_abandoned_packets_be_owed_again(desk: Desk) -> None:
    await desk.parts.stance.settle(GENESIS, None, None)
    ours, theirs = desk.scribe.round(GENESIS, 0), desk.scribe.round(GENESIS, 1, salt=1)
    await desk.parts.stance.move(head_of(ours), (), (ours,))
    desk.script.head = head_of(ours)
    await desk.drive(ev.Woken(), ef.Adopt(head_of(theirs), RUN))
    applied = await desk.script.hears(ev.Applied)
    assert desk.crew.last.untold == (desk.scribe.mine(ours),)
    assert desk.scribe.store.head() == head_of(theirs)
    assert (applied.told, applied.untold, applied.lost, applied.unknown) == (0, 8, 0, None)
    await desk.stop()


async def test_a_snapshot_that_the_log_does_not_join_is_told_with_the_round_that_lacks(
    desk: Desk,
) -> None:
    await desk.parts.stance.settle(GENESIS, None, None)
    ours, theirs = desk.scribe.round(GENESIS, 0), desk.scribe.play(GENESIS, 4, 1)
    del desk.scribe.store._links[theirs[1].digest]  # type: ignore[attr-defined]
    del desk.scribe.store._sealed[theirs[1].digest]  # type: ignore[attr-defined]
    desk.scribe.ledger._sealed.clear()
    desk.script.head = head_of(ours)
    await desk.drive(ev.Woken(), ef.Adopt(head_of(theirs[-1]), RUN))
    applied = await desk.script.hears(ev.Applied)
    assert (applied.told, applied.untold, applied.unknown) == (0, 0, 2)
    assert (desk.crew.last.told, desk.crew.last.untold) == ((), ())
    await desk.stop()


# -- the worker ------------------------------------------------------------------------------------
async def test_a_fallen_worker_is_lost_then_comes_again(desk: Desk) -> None:
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    desk.crew.hear(Died(why="killed"))
    await desk.script.hears(ev.WorkerCame)
    kinds = [type(event) for event in desk.script.heard]
    assert kinds == [ev.Woken, ev.WorkerLost, ev.WorkerLost, ev.WorkerCame]
    assert desk.crew.restarts == 1
    await desk.stop()


async def test_a_worker_that_falls_while_it_is_revived_is_revived_once_more(desk: Desk) -> None:
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    desk.crew.hear(Died(why="killed"))
    desk.crew.hear(Died(why="killed again"))
    await desk.script.hears(ev.WorkerCame)
    kinds = [type(event) for event in desk.script.heard]
    assert kinds == [ev.Woken, *3 * [ev.WorkerLost], ev.WorkerCame]
    await desk.stop()


@pytest.mark.parametrize(
    "proof",
    [Corrected(round=Round(0)), Trained(round=Round(1), steps=1, samples=1, loss=0.0, learnt=1)],
)
async def test_a_worker_that_fails_again_and_again_ends_the_node_with_the_fix(
    desk: Desk, proof: WorkerEvent
) -> None:
    await desk.parts.stance.settle(GENESIS, None, None)
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    assert desk.task is not None
    for _ in range(3):
        desk.script.heard.clear()
        desk.crew.hear(proof)
        desk.crew.hear(Failed(why="nan", fix="smaller steps"))
        if desk.crew.restarts < 2:
            await desk.script.hears(ev.WorkerCame)
    with pytest.raises(ExceptionGroup) as caught:
        await desk.task
    assert caught.group_contains(WorkerError, match="3 times in a row.*\nfix: smaller steps")
    assert desk.crew.restarts == 2


@pytest.mark.parametrize(("packets", "ends"), [(1, True), (PROOF_PACKETS, False)])
async def test_falls_of_one_cause_are_a_row_until_many_packets_are_made(
    desk: Desk, packets: int, ends: bool
) -> None:
    revival = Revival(desk.parts, lambda event: None)

    async def fall(why: str) -> None:
        works: list[Coroutine[Any, Any, None]] = []
        revival.fell(Failed(why=why), works.append)
        await works[0]
        for _ in range(packets):
            revival.proved()

    for why in ("batch 7", "batch 7", "another", "batch 7", "batch 7"):
        await fall(why)
    with pytest.raises(WorkerError) if ends else nullcontext():
        await fall("batch 7")


async def test_the_traceback_of_a_fallen_worker_is_a_file_whose_path_is_said(
    desk: Desk, tmp_path: Path
) -> None:
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    assert desk.task is not None
    for number in range(3):
        desk.script.heard.clear()
        detail = f"Traceback: line {number} of the task"
        desk.crew.hear(Failed(why="the task's loss raised ValueError", fix="it", detail=detail))
        if desk.crew.restarts < 2:
            await desk.script.hears(ev.WorkerCame)
    with pytest.raises(ExceptionGroup) as caught:
        await desk.task
    path = tmp_path / "worker-traceback.txt"
    assert path.read_text() == "Traceback: line 2 of the task"
    assert caught.group_contains(WorkerError, match=f"traceback in {path}")


async def test_a_worker_that_lapsed_is_put_back_without_a_new_one(desk: Desk) -> None:
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    desk.crew.hear(Lapsed(why="the model is not finite after batch 7"))
    await desk.script.hears(ev.WorkerCame)
    kinds = [type(event) for event in desk.script.heard]
    assert kinds == [ev.Woken, ev.WorkerLost, ev.WorkerLost, ev.WorkerCame]
    assert desk.crew.restarts == 0
    assert desk.counted("worker_lapses") == 1
    await desk.stop()


async def test_a_worker_that_falls_while_it_is_put_back_comes_once(desk: Desk) -> None:
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    desk.crew.hear(Lapsed(why="the model is not finite"))
    desk.crew.hear(Died(why="killed"))
    await desk.script.hears(ev.WorkerCame)
    kinds = [type(event) for event in desk.script.heard]
    assert kinds == [ev.Woken, *3 * [ev.WorkerLost], ev.WorkerCame]
    assert desk.crew.restarts == 1
    await desk.stop()


async def test_bad_batches_are_counted_and_a_gift_that_harms_binds_nobody(desk: Desk) -> None:
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    desk.crew.hear(Skipped(first_batch=4, last_batch=5, loss=float("nan"), in_a_row=1))
    desk.crew.hear(Skipped(first_batch=6, last_batch=6, loss=float("inf"), in_a_row=2))
    assert desk.counted("steps_skipped") == 2
    stance = desk.parts.stance
    stance._loan = Loan(lenders=(PeerId("a"),), since=Round(0))
    desk.crew.hear(GiftTried(taken=True, why="", agreed_loss=2.0, gift_loss=1.0))
    assert stance._loan is not None
    desk.crew.hear(GiftTried(taken=False, why="worse", agreed_loss=1.0, gift_loss=2.0))
    assert stance._loan is None
    await desk.stop()


async def test_a_worker_that_cannot_be_restarted_counts_as_fallen(desk: Desk) -> None:
    desk.crew.fault = WorkerError("no memory")
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    desk.crew.hear(Died(why="killed"))
    assert desk.task is not None
    with pytest.raises(ExceptionGroup) as caught:
        await desk.task
    assert caught.group_contains(WorkerError, match="no memory")


async def test_a_packet_whose_maker_fell_while_it_was_stored_is_not_contributed(
    desk: Desk,
) -> None:
    await desk.parts.stance.settle(GENESIS, None, None)
    await desk.drive(ev.Woken(), ef.Contribute(Round(1), GENESIS.digest, 8))
    await desk.script.hears(ev.Woken)
    await contributed(desk, desk.scribe.body(desk.scribe.told(GENESIS)))
    desk.crew.hear(Died(why="killed"))
    await desk.script.hears(ev.WorkerCame)
    await desk.stop()
    assert not any(isinstance(event, ev.Contributed) for event in desk.script.heard)


async def test_what_the_worker_says_after_the_end_starts_nothing(desk: Desk) -> None:
    await desk.drive(ev.Woken())
    await desk.stop()
    desk.crew.hear(Died(why="stopped"))
    desk.crew.hear(Saved(head=GENESIS.digest, seconds=0.1, size=1, learnt=0))
    assert desk.crew.restarts == 0
    assert desk.parts.stance.checkpoints == (GENESIS.digest,)


async def test_a_fallen_worker_owes_what_its_checkpoint_had_and_the_rest_is_lost(
    desk: Desk,
) -> None:
    await desk.drive(ev.Woken())
    await desk.script.hears(ev.Woken)
    desk.crew.hear(Trained(round=Round(1), steps=1, samples=20, loss=0.0, learnt=20))
    desk.crew.hear(Saved(head=GENESIS.digest, seconds=0.1, size=1, learnt=24))
    desk.crew.hear(Trained(round=Round(1), steps=2, samples=40, loss=0.0, learnt=60))
    desk.crew.hear(Died(why="killed"))
    lost = await desk.script.hears(ev.WorkerLost)
    assert lost == ev.WorkerLost(owed_samples=24)
    assert desk.parts.report.account.learnt == 24
    assert desk.parts.report.account.take_lost() == 36
    await desk.stop()


# -- peers -----------------------------------------------------------------------------------------
async def test_a_flood_of_words_is_dropped_but_members_are_heard(desk: Desk) -> None:
    member = Member(
        peer=desk.scribe.identities[1].peer_id,
        run=RUN,
        addresses=(),
        head=None,
        phase=Phase.JOINING,
        sequence=1,
    )
    for _ in range(MAX_WAITING + 3):
        desk.driver.hear_swarm(OffersHeard(member.peer, ()))
    manifest = desk.scribe.round(GENESIS, 0)
    desk.driver.hear_swarm(ManifestHeard(member.peer, manifest, b"sealed"))
    desk.driver.hear_swarm(MemberSeen(member))
    desk.driver.hear_swarm(MemberLost(member.peer, "gone"))
    desk.run()
    await desk.stop()
    kinds = [type(event) for event in desk.script.heard]
    assert kinds.count(ev.OffersHeard) == MAX_WAITING
    assert kinds[MAX_WAITING:] == [ev.MemberSeen, ev.MemberLost, ev.LeaveRequested]
    assert desk.counted("words_dropped") == 4


async def test_the_node_says_what_it_is_in_the_order_of_its_words(desk: Desk) -> None:
    await desk.drive(ev.Woken(), ef.Say(Phase.TRAINING, GENESIS), ef.Say(Phase.LEAVING, GENESIS))
    await desk.stop()
    assert [member.phase for member in desk.swarm.said] == [Phase.TRAINING, Phase.LEAVING]
    assert desk.swarm.said[0].sequence < desk.swarm.said[1].sequence


# -- the end ---------------------------------------------------------------------------------------
async def test_nothing_runs_on_when_the_driver_ends(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = asyncio.Event()

    async def announce(offers: Sequence[Offer]) -> None:
        hung.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(desk.swarm, "announce", announce)
    await desk.drive(ev.Woken(), ef.Announce(()), ef.WakeMe(asyncio.get_running_loop().time() + 9))
    await hung.wait()
    await desk.stop()


async def test_the_alarm_comes_as_an_event_and_the_newest_counts(desk: Desk) -> None:
    now = asyncio.get_running_loop().time()
    await desk.drive(ev.WorkerCame(), ef.WakeMe(now + 999), ef.WakeMe(now))
    await desk.script.hears(ev.Woken)
    await desk.stop()
