"""How a node comes to its run: what it takes from whom, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demoloco.codec.layout import layout_of
from demoloco.config import RunConfig
from demoloco.errors import ConfigError, StoreError, WorkerError
from demoloco.node import founding
from demoloco.node.belonging import KEY, settle
from demoloco.node.disk import Disk
from demoloco.node.feed import Feed
from demoloco.node.founding import NO_STATE, Founding, Run
from demoloco.outer.agreed import digest_parts
from demoloco.rounds.rules import head_of
from demoloco.settings import Settings, run_config_bytes
from demoloco.store.memory import MemoryStore
from demoloco.types import Genesis, PeerId, TensorShape
from demoloco.wire import encode_genesis, run_of
from demoloco.worker.port import Described
from tests.node.scribe import GENESIS, LAYOUT, Scribe, report_of

OWN = "somebody:Task"
SEEDS = ("/memory/seed/p2p/x",)


class FakeCrew:
    """A worker that knows one model, whatever the task's name."""

    def __init__(self) -> None:
        self.layout = LAYOUT
        self.defaults: dict[str, Any] = {}
        self.described: list[str] = []
        self.begun: list[RunConfig] = []
        self.max_restarts = 2
        self.falls = 0  # still to come, while it is asked what the task is
        self.renewed = 0

    async def renew(self) -> None:
        self.renewed += 1

    async def describe(self, task: str, args: dict[str, Any], seed: int) -> Described:
        self.described.append(task)
        if self.falls:
            self.falls -= 1
            raise WorkerError("the worker was killed (SIGKILL)")
        return Described(
            layout=self.layout.to_bytes(), defaults=self.defaults, device="cpu", unit="lines"
        )

    async def begin(self, config: RunConfig) -> None:
        self.begun.append(config)

    async def write_initial(self, path: Path) -> None:
        np.full((LAYOUT.chunks, 4096), 0.5, np.float32).tofile(path)


class Seeds:
    """What the seeds answer."""

    def __init__(self, me: PeerId) -> None:
        self.peer_id = me
        self.genesis: Genesis | None = None
        self.asked = 0
        self.named: tuple[str, ...] = ()
        self.before_each: Callable[[], None] = lambda: None

    async def find_genesis(self, timeout_seconds: float) -> Genesis:
        self.asked += 1
        self.before_each()
        if self.genesis is None:
            raise ConfigError("no seed answers")
        return self.genesis


class Desk:
    """One home, and all that a node needs to find its run."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.disk = Disk()
        self.crew = FakeCrew()
        self.seeds = Seeds(Scribe().me)

    async def run(self, *peers: str, **wishes: Any) -> Run:
        settings = Settings(run=wishes, node={}, origins={})
        belonging = settle(self.store, peers, wishes.get("task", ""))
        self.seeds.named = belonging.seeds
        parts: Any = (self.store, self.disk, self.seeds, self.crew)
        return await Founding(settings, *parts).run(report_of(), belonging)

    def restart(self) -> None:
        """The same home, with a worker of its own."""
        self.crew = FakeCrew()

    def close(self) -> None:
        self.disk.close()
        self.store.close()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    made.close()


@pytest.fixture
async def theirs() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    made.close()


async def test_without_peers_a_run_is_founded_and_its_state_is_the_models(desk: Desk) -> None:
    desk.crew.defaults = {"inner_steps": 7}
    run = await desk.run(batch_size=4)
    assert (run.config.inner_steps, run.config.batch_size) == (7, 4)
    assert desk.crew.begun == [run.config]
    head = desk.store.head()
    assert head is not None
    assert (head.digest, head.round) == (run.digest, 0)
    state = desk.store.state(head.digest)
    assert state is not None
    assert bool((state == 0.5).all())
    assert desk.store.get(run.digest) == encode_genesis(run.genesis)
    assert run.genesis.creator == desk.seeds.peer_id
    assert list(desk.store.checkpoint_dir().iterdir()) == []


async def test_two_runs_of_the_same_settings_are_two(desk: Desk, theirs: Desk) -> None:
    assert (await desk.run()).digest != (await theirs.run()).digest


async def test_with_peers_their_run_is_joined(desk: Desk, theirs: Desk) -> None:
    run = await theirs.run(inner_steps=9)
    desk.seeds.genesis = run.genesis
    joined = await desk.run(*SEEDS)
    assert (joined.digest, joined.config) == (run.digest, run.config)
    assert desk.store.head() is None  # the state is to be fetched


async def test_a_node_goes_on_with_the_run_of_its_home(desk: Desk) -> None:
    run = await desk.run(inner_steps=9)
    desk.restart()
    again = await desk.run()
    assert (again.digest, again.config) == (run.digest, run.config)
    assert desk.seeds.asked == 0


async def test_a_home_that_has_its_run_but_no_state_says_so(desk: Desk) -> None:
    await desk.run(task=OWN)
    desk.store._head = None
    feed = Feed()
    said: list[str] = []
    feed.warn = lambda event, **facts: said.append(event)  # type: ignore[method-assign]
    settings = Settings(run={}, node={}, origins={})
    parts: Any = (desk.store, desk.disk, desk.seeds, desk.crew)
    await Founding(settings, *parts).run(report_of(feed), settle(desk.store, (), OWN))
    assert said == [NO_STATE]


async def test_a_node_that_has_its_run_writes_nothing_to_come_back_to_it(desk: Desk) -> None:
    """It must come up on a full disk."""

    def full(*_: object) -> None:
        raise StoreError("no room")

    run = await desk.run()
    desk.restart()
    desk.store.put = desk.store.note = full  # type: ignore[method-assign,assignment]
    assert (await desk.run()).digest == run.digest


async def test_seeds_that_are_away_do_not_keep_a_node_from_its_run(desk: Desk) -> None:
    run = await desk.run()
    desk.restart()
    assert (await desk.run(*SEEDS)).digest == run.digest
    assert desk.seeds.asked == 1


async def test_seeds_of_another_run_are_refused(desk: Desk, theirs: Desk) -> None:
    await desk.run()
    desk.seeds.genesis = (await theirs.run()).genesis
    desk.restart()
    with pytest.raises(ConfigError, match="a home of its own"):
        await desk.run(*SEEDS)


async def test_seeds_that_are_away_are_the_end_for_a_newcomer(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="no seed answers"):
        await desk.run(*SEEDS)


async def test_a_wish_that_contradicts_the_run_is_named(desk: Desk, theirs: Desk) -> None:
    desk.seeds.genesis = (await theirs.run(inner_steps=9)).genesis
    with pytest.raises(ConfigError, match="inner_steps"):
        await desk.run(*SEEDS, inner_steps=10)
    assert desk.crew.described == []
    assert desk.store.noted("genesis") is None


async def test_a_wish_for_another_method_is_named_alone(desk: Desk, theirs: Desk) -> None:
    desk.seeds.genesis = (await theirs.run(method="diloco")).genesis
    with pytest.raises(ConfigError, match="settings: method is 'paper' here and 'diloco' in the"):
        await desk.run(*SEEDS, method="paper")
    assert (await desk.run(*SEEDS, method="diloco")).config == RunConfig.of(method="diloco")


async def test_a_velocity_begins_at_zero_under_the_model(desk: Desk) -> None:
    run = await desk.run(method="diloco")
    state = desk.store.state(run.digest)
    assert state is not None
    assert state.shape == (2 * LAYOUT.chunks, 4096)
    assert bool((state[: LAYOUT.chunks] == 0.5).all())
    assert not state[LAYOUT.chunks :].any()
    assert run.genesis.snapshot == digest_parts(state)


async def test_a_run_whose_packets_could_not_travel_is_not_founded(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(founding, "MAX_PACKET_BYTES", 5_000)
    with pytest.raises(ConfigError, match="k = 4096 and bits = 8 may have"):
        await desk.run(method="diloco")
    assert desk.store.head() is None
    await desk.run()


async def test_a_wish_that_the_run_fulfils_is_none_to_refuse(desk: Desk, theirs: Desk) -> None:
    desk.seeds.genesis = (await theirs.run(inner_steps=9, task_args={"a": 1, "b": 2})).genesis
    assert (await desk.run(*SEEDS, inner_steps=9, task_args={"a": 1})).config.inner_steps == 9


async def test_a_tasks_argument_that_the_run_lacks_is_named(desk: Desk, theirs: Desk) -> None:
    desk.seeds.genesis = (await theirs.run(task_args={"a": 1})).genesis
    with pytest.raises(ConfigError, match="a"):
        await desk.run(*SEEDS, task_args={"a": 2})


async def test_code_that_only_the_genesis_names_is_not_imported(desk: Desk, theirs: Desk) -> None:
    desk.seeds.genesis = (await theirs.run(task=OWN)).genesis
    with pytest.raises(ConfigError, match=f"add --task {OWN}"):
        await desk.run(*SEEDS)
    assert desk.crew.described == []


async def test_code_that_the_user_named_too_is(desk: Desk, theirs: Desk) -> None:
    desk.seeds.genesis = (await theirs.run(task=OWN)).genesis
    assert (await desk.run(*SEEDS, task=OWN)).config.task == OWN
    assert desk.crew.described == [OWN]


async def test_another_model_than_the_runs_is_refused(desk: Desk, theirs: Desk) -> None:
    desk.seeds.genesis = (await theirs.run()).genesis
    desk.crew.layout = layout_of([TensorShape(name="w", shape=(64, 65))])
    with pytest.raises(ConfigError, match="w is"):
        await desk.run(*SEEDS)
    assert desk.store.noted("genesis") is None


async def test_a_genesis_whose_configuration_is_none_is_refused(desk: Desk, theirs: Desk) -> None:
    genesis = (await theirs.run()).genesis
    desk.seeds.genesis = replace(genesis, config=b"{}x")
    with pytest.raises(ConfigError, match="configuration"):
        await desk.run(*SEEDS)
    desk.seeds.genesis = replace(genesis, layout=b"[]")
    with pytest.raises(ConfigError):
        await desk.run(*SEEDS)


async def test_a_home_whose_genesis_cannot_be_read_says_so(desk: Desk) -> None:
    digest = desk.store.put(b"not a genesis")
    desk.store.note("genesis", digest)
    with pytest.raises(ConfigError, match="choose another --home"):
        await desk.run()


async def test_a_damaged_note_of_the_genesis_is_mended_by_the_log(desk: Desk) -> None:
    run = await desk.run(inner_steps=9)
    del desk.store._notes["genesis"]
    desk.restart()
    assert (await desk.run()).digest == run.digest
    assert desk.store.noted("genesis") == run.digest


async def test_no_run_is_founded_in_the_place_of_one_whose_genesis_is_lost(
    desk: Desk, theirs: Desk
) -> None:
    scribe = Scribe(desk.store)
    head = head_of(scribe.play(GENESIS, 2, 0)[-1])
    with pytest.raises(ConfigError, match="round 2 of a run whose genesis is lost"):
        await desk.run()
    assert desk.store.head() == head
    desk.seeds.genesis = (await theirs.run()).genesis  # a member has it
    await desk.run(*SEEDS)


async def test_no_draft_is_left_where_founding_fails(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(path: Path) -> None:
        half_of_it(path)
        raise ConfigError("no memory")

    monkeypatch.setattr(desk.crew, "write_initial", fail)
    with pytest.raises(ConfigError, match="no memory"):
        await desk.run()
    assert list(desk.store.checkpoint_dir().iterdir()) == []
    assert desk.store.head() is None


def half_of_it(path: Path) -> None:
    path.write_bytes(b"half")


async def test_a_run_of_an_earlier_version_is_entered_under_its_own_name_with_a_warning(
    desk: Desk, theirs: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    genesis = (await theirs.run()).genesis
    config = genesis.config.replace(b'{"', b'{"grace_seconds":2.0,"', 1)
    desk.seeds.genesis = old = replace(genesis, config=config)
    run = await desk.run(*SEEDS)
    assert run.digest == run_of(old) != run_of(genesis)
    assert "settings of an earlier version have no effect" in caplog.text
    assert "grace_seconds" in caplog.text


def test_the_runs_name_follows_from_its_genesis_alone() -> None:
    genesis = Genesis(
        config=run_config_bytes(RunConfig()),
        layout=LAYOUT.to_bytes(),
        creator=Scribe().me,
        snapshot=(),
        nonce=bytes(16),
    )
    described = Described(layout=b"", defaults={}, device="", unit="")
    assert Run(genesis, RunConfig(), LAYOUT, described).digest == run_of(genesis)


# -- a home that is to join ------------------------------------------------------------------------
OTHERS = ("/memory/others/p2p/y",)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(founding, "MAX_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(founding, "FIRST_PAUSE_SECONDS", 0.0)


async def test_a_joiner_that_was_killed_at_once_joins_when_it_is_started_with_nothing_but_its_home(
    desk: Desk, theirs: Desk
) -> None:
    settle(desk.store, SEEDS, "")  # and then no more
    desk.seeds.genesis = (await theirs.run()).genesis
    assert (await desk.run()).genesis == desk.seeds.genesis
    assert desk.seeds.named == SEEDS


@pytest.mark.usefixtures("hurried")
async def test_a_home_that_is_to_join_asks_for_ever_and_founds_nothing(
    desk: Desk, theirs: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="another --home DIR, or this one removed"):
        await desk.run(*SEEDS)
    born = (await theirs.run()).genesis
    caplog.set_level(logging.INFO)

    def at_last() -> None:
        if desk.seeds.asked == 20:
            desk.seeds.genesis = born

    desk.seeds.before_each = at_last
    assert (await desk.run()).genesis == born
    assert desk.seeds.asked == 20
    assert caplog.text.count("going on to join by the peers given earlier") == 1
    assert caplog.text.count("still without a run; the peers are asked for ever") == 1
    assert "another --home DIR" in caplog.text
    assert desk.store.head() is None


async def test_peers_that_are_named_later_take_the_place_of_the_first(
    desk: Desk, theirs: Desk
) -> None:
    settle(desk.store, SEEDS, "")
    with pytest.raises(ConfigError, match="no seed answers"):
        await desk.run(*OTHERS)
    assert desk.seeds.named == OTHERS
    desk.seeds.genesis = (await theirs.run()).genesis
    await desk.run()
    assert desk.seeds.named == OTHERS


async def test_a_home_with_a_run_keeps_its_peers_until_others_have_told_the_same(
    desk: Desk, theirs: Desk
) -> None:
    desk.seeds.genesis = (await theirs.run()).genesis
    await desk.run(*SEEDS)
    desk.restart()
    desk.seeds.genesis, born = None, desk.seeds.genesis
    await desk.run(*OTHERS)  # nobody there: not to be relied on
    assert settle(desk.store, (), "").seeds == SEEDS
    desk.restart()
    desk.seeds.genesis = born
    await desk.run(*OTHERS)
    assert settle(desk.store, (), "").seeds == OTHERS


async def test_a_home_with_a_run_asks_nobody_to_go_on(desk: Desk, theirs: Desk) -> None:
    desk.seeds.genesis = (await theirs.run()).genesis
    joined = await desk.run(*SEEDS)
    desk.restart()
    desk.seeds.genesis = None
    assert (await desk.run()).digest == joined.digest
    assert desk.seeds.asked == 1
    assert desk.seeds.named == SEEDS  # they are dialled, though


async def test_the_task_that_was_trusted_once_is_trusted_at_the_next_start(
    desk: Desk, theirs: Desk
) -> None:
    desk.seeds.genesis = (await theirs.run(task=OWN)).genesis
    settle(desk.store, SEEDS, OWN)
    assert (await desk.run()).config.task == OWN
    assert desk.crew.described == [OWN]


async def test_a_damaged_note_of_the_peers_is_no_reason_to_found_a_run(
    desk: Desk, theirs: Desk
) -> None:
    settle(desk.store, SEEDS, "")
    desk.store.note(KEY, b"[")
    with pytest.raises(ConfigError, match="give them again with --peers"):
        await desk.run()
    desk.seeds.genesis = (await theirs.run()).genesis
    assert (await desk.run(*SEEDS)).genesis == desk.seeds.genesis
    desk.store.note(KEY, b"[")
    assert settle(desk.store, (), "").seeds == ()  # it has its run


async def test_no_run_is_founded_where_a_joiner_lost_its_genesis_before_it_had_a_state(
    desk: Desk, theirs: Desk
) -> None:
    desk.seeds.genesis = (await theirs.run()).genesis
    joined = await desk.run(*SEEDS)
    del desk.store._blobs[joined.digest], desk.store._notes[KEY]
    with pytest.raises(ConfigError, match="genesis is lost"):
        await desk.run()


# -- a worker that dies over it --------------------------------------------------------------------
async def test_a_worker_that_dies_while_it_starts_is_started_anew(desk: Desk) -> None:
    run = await desk.run()
    desk.restart()
    desk.crew.falls = 2
    assert (await desk.run()).digest == run.digest
    assert desk.crew.renewed == 2
    assert len(desk.crew.begun) == 1


async def test_a_worker_that_dies_too_often_while_it_starts_ends_the_node(desk: Desk) -> None:
    desk.crew.falls = 3
    with pytest.raises(WorkerError, match="killed"):
        await desk.run()
    assert desk.crew.renewed == 2
