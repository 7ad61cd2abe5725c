"""How a node comes to its run: it goes on with the one in its home, joins its seeds', or founds
one.

Rule: what a run is comes from its genesis alone; what the user asked for is compared with it, never
mixed into it. Code that a genesis names is not imported unless the user named it too.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from demoloco.bounds import MAX_PACKET_BYTES, NONCE_BYTES
from demoloco.codec.layout import CHUNK, Layout, first_difference, layout_from_bytes
from demoloco.codec.packet import PacketSpec, max_bytes
from demoloco.config import RunConfig, shown
from demoloco.errors import ConfigError, PacketError, StoreError, WorkerError
from demoloco.node.belonging import KEY, WAY_OUT, Belonging, remember
from demoloco.node.crew import Crew
from demoloco.node.disk import Disk
from demoloco.node.packets import MAX_ENVELOPE_BYTES
from demoloco.node.report import Report
from demoloco.outer.agreed import Coefficients, digest_parts
from demoloco.outer.steps import OuterStep
from demoloco.rounds.rules import genesis_head
from demoloco.settings import (
    Settings,
    differences,
    removed_from_bytes,
    run_config_bytes,
    run_config_from_bytes,
)
from demoloco.store.port import Store
from demoloco.swarm.port import Swarm
from demoloco.types import Digest, Genesis, PeerId, short
from demoloco.wire import decode_genesis, decode_manifest, encode_genesis, run_of
from demoloco.worker.port import Described

SEED_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
BOUND = f"this home is to join their run, and started without --peers asks them for ever; {WAY_OUT}"
NO_STATE = (
    "this home has a run but no agreed state: it is fetched from a member;"
    " if none is found, name one with --peers ADDR"
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run that this node takes part in, and what its worker said of the task."""

    genesis: Genesis
    config: RunConfig
    layout: Layout
    described: Described

    @property
    def digest(self) -> Digest:
        return run_of(self.genesis)


class Founding:
    """Finds or makes the run."""

    def __init__(
        self, settings: Settings, store: Store, disk: Disk, swarm: Swarm, crew: Crew
    ) -> None:
        self._settings = settings
        self._store = store
        self._disk = disk
        self._swarm = swarm
        self._crew = crew

    async def run(self, report: Report, belonging: Belonging) -> Run:
        """The run of the home, of the seeds, or a new one where none were ever given.

        Raises: ConfigError if they contradict each other or what the user asked for."""
        ours = self._in_home()
        if ours is None and not belonging.seeds:
            self._check_that_no_run_is_here()
            return await self._found(report)
        if ours is None:
            genesis = await self._theirs(report, belonging)
            self._check_code(run_config_from_bytes(genesis.config).task, belonging)
            return await self._enter(genesis, "the peers' run", report)
        if self._store.head() is None:
            report.warn(NO_STATE)
        asking = (
            asyncio.create_task(self._compare_with_seeds(ours, report, belonging))
            if belonging.given
            else None
        )
        try:
            run = await self._enter(ours, "the run in this home", report)
            if asking is not None:
                await asking
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        return run

    def _in_home(self) -> Genesis | None:
        digest = self._store.noted("genesis") or self._run_of_head()
        data = self._store.get(Digest(digest)) if digest is not None else None
        try:
            return decode_genesis(data) if data is not None else None
        except PacketError as error:
            raise ConfigError(
                f"the run in this home cannot be read: {error}; choose another --home DIR"
            ) from error

    def _run_of_head(self) -> Digest | None:
        """The run, as the log tells it where the note is damaged."""
        head = self._store.head()
        if head is None or head.round == 0:
            return head.digest if head is not None else None
        sealed = self._store.manifest(head.digest)
        return None if sealed is None else decode_manifest(sealed, _believe).run

    def _check_that_no_run_is_here(self) -> None:
        """A run of which only the genesis is lost is not one to put another in the place of."""
        head = self._store.head()
        round = head.round if head is not None else 0
        if round > 0 or self._store.is_noted("genesis"):
            raise ConfigError(
                f"this home holds round {round} of a run whose genesis is lost; take it from"
                " another member with --peers ADDR, or start a new run in another --home DIR"
            )

    async def _theirs(self, report: Report, belonging: Belonging) -> Genesis:
        """The seeds' run. Whoever named them just now hears when none answers; else it is asked
        for until one does.

        Raises: ConfigError."""
        peers = ", ".join(belonging.seeds)
        if not belonging.given:
            report.line("going on to join by the peers given earlier", peers=peers, note=BOUND)
            return await self._theirs_at_last(report)
        report.line("asking the peers for their run", peers=peers)
        try:
            return await self._swarm.find_genesis(SEED_SECONDS)
        except ConfigError as error:
            raise ConfigError(f"{error}\n{BOUND}") from error

    async def _theirs_at_last(self, report: Report) -> Genesis:
        said, pause = "", FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._swarm.find_genesis(SEED_SECONDS)
            except ConfigError as error:
                if str(error) != said:
                    said = str(error)
                    report.warn("still without a run; the peers are asked for ever", why=said)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _compare_with_seeds(
        self, ours: Genesis, report: Report, belonging: Belonging
    ) -> None:
        """Seeds that are away do not matter to a node that has its run; seeds of another run do."""
        try:
            theirs = await self._swarm.find_genesis(SEED_SECONDS)
        except ConfigError as error:
            report.warn("no seed answers; going on with the run in this home", why=str(error))
            return
        if run_of(theirs) != run_of(ours):
            raise ConfigError(
                f"this home holds run {short(run_of(ours))}, the peers train run"
                f" {short(run_of(theirs))}; give the other run a home of its own: --home DIR"
            )
        try:
            await self._disk(remember, self._store, belonging)
        except StoreError as error:
            report.warn("addresses not noted", key=KEY, why=str(error))

    # -- a run that there is -----------------------------------------------------------------------
    async def _enter(self, genesis: Genesis, whose: str, report: Report) -> Run:
        config = run_config_from_bytes(genesis.config)
        if removed := removed_from_bytes(genesis.config):
            report.warn("settings of an earlier version have no effect", names=", ".join(removed))
        layout = layout_from_bytes(genesis.layout)
        self._compare_with_wishes(config, whose)

        def checked(described: Described) -> RunConfig:
            difference = first_difference(layout_from_bytes(described.layout), layout)
            if difference is not None:
                raise ConfigError(
                    f"the model of task {config.task} is not the run's model: {difference};"
                    " install the version of the task that the run's other members have"
                )
            return config

        described, _ = await self._begin(config, checked, report)
        await self._keep(genesis)
        return Run(genesis, config, layout, described)

    async def _begin(
        self, wished: RunConfig, agreed: Callable[[Described], RunConfig], report: Report
    ) -> tuple[Described, RunConfig]:
        """A worker that is ready; one that dies over it is started anew, as it is later.

        Raises: ConfigError; WorkerError if it died too often."""
        restart = 0
        while True:
            try:
                described = await self._crew.describe(wished.task, wished.task_args, wished.seed)
                config = agreed(described)
                await self._crew.begin(config)
                return described, config
            except WorkerError as error:
                restart += 1
                report.warn("worker lost", why=str(error), restart=restart)
                if restart > self._crew.max_restarts:
                    raise
                report.count("worker_restarts")
                await self._crew.renew()

    def _check_code(self, task: str, belonging: Belonging) -> None:
        """A name that only peers have spoken is not imported."""
        if ":" in task and "task" not in self._settings.run and task != belonging.task:
            raise ConfigError(
                f"the peers' run trains {task}, which is code of somebody's own;"
                f" if you have it and trust it, add --task {task}"
            )

    def _compare_with_wishes(self, config: RunConfig, whose: str) -> None:
        unequal = self._unequal(config)
        if unequal:
            raise ConfigError(
                f"{whose} has other settings: {'; '.join(unequal)};"
                f" leave them out to take the run's, or start a run of your own in another"
                " --home DIR, without --peers"
            )

    def _unequal(self, config: RunConfig) -> list[str]:
        wishes = dict(self._settings.run)
        method = wishes.get("method", config.method)
        if method != config.method:  # with another method other settings are possible
            return [f"method is {shown(method)} here and {shown(config.method)} in the run"]
        wishes["task_args"] = config.task_args | wishes.get("task_args", {})
        return differences(replace(config, **wishes), config)

    async def _keep(self, genesis: Genesis) -> None:
        digest = run_of(genesis)
        if self._store.noted("genesis") == digest and self._store.get(digest) is not None:
            return  # a node must come up on a full disk, to prune it
        await self._disk(self._store.put, encode_genesis(genesis))
        await self._disk(self._store.note, "genesis", bytes(digest))

    # -- a new run ---------------------------------------------------------------------------------
    async def _found(self, report: Report) -> Run:
        described, config = await self._begin(
            self._settings.run_config(),
            lambda described: self._settings.run_config(described.defaults),
            report,
        )
        layout = layout_from_bytes(described.layout)
        _check_packet(config, layout)
        draft = self._store.checkpoint_dir() / "initial.f32"
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            await self._crew.write_initial(draft)
            genesis = await self._disk(self._create, draft, config, layout)
        finally:
            draft.unlink(missing_ok=True)
        await self._keep(genesis)
        report.line("run founded", run=short(run_of(genesis)), task=config.task)
        return Run(genesis, config, layout, described)

    def _create(self, draft: Path, config: RunConfig, layout: Layout) -> Genesis:
        rows = OuterStep.of(config).planes * layout.chunks
        os.truncate(draft, rows * CHUNK * 4)  # a velocity begins at zero
        initial = np.memmap(draft, np.dtype("<f4"), "r", shape=(rows, CHUNK))
        genesis = Genesis(
            config=run_config_bytes(config),
            layout=layout.to_bytes(),
            creator=self._swarm.peer_id,
            snapshot=digest_parts(initial),
            nonce=secrets.token_bytes(NONCE_BYTES),
        )

        def fill(out: Coefficients) -> None:
            out[:] = initial

        head = genesis_head(run_of(genesis))
        self._store.create_state(head, fill, rows)
        self._store.move_head(head)
        return genesis


def _check_packet(config: RunConfig, layout: Layout) -> None:
    """Raises: ConfigError if even the smallest packet of this run may be too large to travel."""
    k = min(config.ladder)
    size = max_bytes(PacketSpec.of(layout, bits=config.bits, ladder=(k,))) + MAX_ENVELOPE_BYTES
    if size > MAX_PACKET_BYTES:
        raise ConfigError(
            f"a packet of this model with k = {k} and bits = {config.bits} may have"
            f" {size / 1e9:.1f} GB, and {MAX_PACKET_BYTES / 1e9:.1f} GB are possible;"
            " choose method decoupled, or a ladder with smaller values"
        )


def _believe(peer: PeerId, message: bytes, signature: bytes) -> bool:
    """What is in the log was checked before it came there."""
    return True
