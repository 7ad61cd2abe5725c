"""One node from start to end: builds the parts, runs the driver, takes everything down again.

Rule: whatever was started is stopped, in the reverse order, also when the start fails half-way.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from rich.console import Console

from demoloco.config import NodeConfig
from demoloco.control.exports import ExportStep, ExportWish
from demoloco.control.server import ControlServer
from demoloco.control.socket import socket_path
from demoloco.errors import ConfigError, RequestError, StoreError, WorkerError
from demoloco.node.acquaintances import KEY, Acquaintances
from demoloco.node.assembly import assemble, method_words
from demoloco.node.belonging import settle
from demoloco.node.crew import Crew
from demoloco.node.disk import Disk
from demoloco.node.driver import Driver
from demoloco.node.exporting import Exporting
from demoloco.node.feed import Feed, Status
from demoloco.node.founding import Founding, Run
from demoloco.node.library import StoreLibrary
from demoloco.node.listening import listen_addresses
from demoloco.node.parts import Ground, Parts
from demoloco.node.progress import introduce, show_progress
from demoloco.node.report import Report
from demoloco.node.version import software_version
from demoloco.rounds import events as ev
from demoloco.settings import Settings
from demoloco.store.disk import DiskStore, open_disk_store
from demoloco.store.port import Store
from demoloco.swarm.addresses import is_loopback
from demoloco.swarm.identity import Identity
from demoloco.swarm.port import Swarm, SwarmEvent
from demoloco.worker.process import ProcessWorker

STOP_SECONDS = 10.0
LONELY_SECONDS = 8.0

MakeSwarm = Callable[[Identity, NodeConfig, tuple[str, ...], tuple[str, ...]], Swarm]


class Node:
    """A node as its operator and its signals see it."""

    def __init__(self, settings: Settings, make_swarm: MakeSwarm) -> None:
        self._settings = settings
        self._config = settings.node_config()
        self._make_swarm = make_swarm
        self.feed = Feed()
        self._driver: Driver | None = None
        self._exporting: Exporting | None = None
        self._early: list[SwarmEvent] = []
        self._main: asyncio.Task[None] | None = None
        self._asked_to_leave = False
        self.forced = False

    # -- what the operator may do ------------------------------------------------------------------
    def status(self) -> Status:
        """The node as it is now."""
        return self.feed.status

    def request_leave(self, now: bool) -> None:
        """Begin to leave and return at once; `now` = do not contribute first."""
        self._asked_to_leave = True
        if self._driver is not None:
            self._driver.post(ev.LeaveRequested(now))
        elif self._main is not None:
            self._main.cancel()

    def export(self, wish: ExportWish) -> AsyncGenerator[ExportStep, None]:
        """Give a model away.

        Raises: RequestError."""
        if self._exporting is None:
            raise RequestError("this node has no run yet; ask again when it has")
        return self._exporting.export(wish)

    def _on_signal(self) -> None:
        """The first asks, the second forces."""
        if self._asked_to_leave:
            self.forced = True
            if self._main is not None:
                self._main.cancel()
            return
        self.feed.line("leaving: contributing what is done; a second Ctrl-C stops at once")
        self.request_leave(now=False)

    # -- life --------------------------------------------------------------------------------------
    async def run(self) -> None:
        """From start to end.

        Raises: ConfigError for the user's mistakes; StoreError, WorkerError, SwarmError if this
        node cannot go on."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            async with AsyncExitStack() as held:
                await self._live(held)
        except asyncio.CancelledError:
            if not self._asked_to_leave:
                raise
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        self.feed.line("left" if not self.forced else "stopped at once")

    async def _live(self, held: AsyncExitStack) -> None:
        socket_path(self._config.home)  # before anything is made in a home that cannot be used
        store = open_disk_store(self._config.home, version=software_version())
        held.callback(store.close)
        belonging = settle(store, self._config.peers, self._settings.run.get("task", ""))
        self._config = replace(self._config, peers=belonging.seeds)
        disk = Disk()
        held.callback(disk.close)
        identity = Identity.load_or_create(self._config.home / "identity.key")
        crew = Crew(ProcessWorker, self._config, identity.peer_id)
        crew.start()
        held.push_async_callback(self._stop_crew, crew)
        library = StoreLibrary(store)
        swarm = await self._start_swarm(store, identity, library, held)
        ground = Ground(
            identity=identity,
            node=self._config,
            store=store,
            disk=disk,
            swarm=swarm,
            crew=crew,
            report=Report(self.feed, swarm, identity.peer_id),
            shelf=library.shelf,
            lending=library.lending,
        )
        founding = Founding(self._settings, store, disk, swarm, crew)
        run = await founding.run(ground.report, belonging)
        store.snapshot_every = run.config.snapshot_every
        library.know(run.genesis)
        parts = assemble(ground, run)
        self._introduce(parts, run)
        self._exporting = Exporting(parts, self.feed, run.layout.digest)
        await self._take_part(parts, held)

    async def _start_swarm(
        self, store: DiskStore, identity: Identity, library: StoreLibrary, held: AsyncExitStack
    ) -> Swarm:
        known = _noted_list(store, KEY)
        listen = await listen_addresses(self._config.listen, _noted_list(store, "listen"))
        swarm = await asyncio.to_thread(self._make_swarm, identity, self._config, listen, known)
        held.push_async_callback(swarm.stop)
        await swarm.start(self._hear_swarm, library)
        self._note(store, "listen", swarm.addresses)
        return swarm

    def _note(self, store: Store, key: str, addresses: Sequence[str]) -> None:
        """For the next start. A full disk keeps no node from coming up, or from leaving."""
        try:
            store.note(key, json.dumps(list(addresses)).encode())
        except StoreError as error:
            self.feed.warn("addresses not noted", key=key, why=str(error))

    def _hear_swarm(self, event: SwarmEvent) -> None:
        """Events before there is a driver wait for it."""
        if self._driver is None:
            self._early.append(event)
        else:
            self._driver.hear_swarm(event)

    def _introduce(self, parts: Parts, run: Run) -> None:
        full = tuple(f"{address}/p2p/{parts.me}" for address in parts.swarm.addresses)
        self.feed.update(
            peer_id=parts.me,
            run_id=run.digest.hex(),
            run_name=run.config.name,
            task=run.config.task,
            method=method_words(run.config),
            addresses=full,
            inner_steps=run.config.inner_steps if run.config.round_seconds == 0 else 0,
            k=parts.stance.density.k,
            k_why=parts.stance.density.why,
            parameters=run.layout.parameters,
            device=run.described.device,
            version=software_version(),
            home=str(self._config.home),
            join_command=f"demoloco-node --peers {_best(full)}",
        )

    async def _take_part(self, parts: Parts, held: AsyncExitStack) -> None:
        self._driver = driver = Driver(parts)
        for event in self._early:
            driver.hear_swarm(event)
        await driver.begin()
        parts.report.refresh(parts.machine, force=True)
        control = ControlServer(self, self._config.home)
        await control.start()
        held.push_async_callback(control.stop)
        console = Console(stderr=True)
        introduce(self.feed, console)
        progress = asyncio.create_task(show_progress(self.feed, console))
        held.callback(progress.cancel)
        met = Acquaintances(parts.swarm, parts.ledger.store, parts.disk, parts.report)
        noting = asyncio.create_task(met.keep_noted())
        held.callback(noting.cancel)
        lonely = asyncio.get_running_loop().call_later(LONELY_SECONDS, self._lonely, parts)
        held.callback(lonely.cancel)
        try:
            await driver.run()
            parts.report.refresh(parts.machine, force=True)
            await met.note()
        finally:  # also where the node cannot go on: what it learnt is worth a try
            if not self.forced:
                await self._save(parts)

    def _lonely(self, parts: Parts) -> None:
        if not parts.machine.state.members.live():
            parts.report.alone()

    async def _save(self, parts: Parts) -> None:
        try:
            await parts.stance.save_at_last()
        except (WorkerError, ConfigError, StoreError) as error:
            parts.report.warn("last checkpoint not written", why=str(error))

    async def _stop_crew(self, crew: Crew) -> None:
        await crew.stop(0.0 if self.forced else STOP_SECONDS)


def _noted_list(store: DiskStore, key: str) -> tuple[str, ...]:
    try:
        noted = json.loads(store.noted(key) or b"[]")
    except ValueError:
        return ()
    return tuple(one for one in noted if isinstance(one, str)) if isinstance(noted, list) else ()


def _best(addresses: tuple[str, ...]) -> str:
    """The address to show: one that other machines reach, if there is one."""
    far = [one for one in addresses if not is_loopback(one)]
    return (far or list(addresses) or ["<no address>"])[0]


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one that came first stands for all."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
