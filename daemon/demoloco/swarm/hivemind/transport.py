"""The swarm over hivemind's libp2p: encrypted, authenticated by peer id, through NATs and
relays.

Rule: one p2pd child, rebuilt when it dies; small calls are unary messages, blobs are streams of
bounded frames.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hivemind.p2p import P2PDaemonError, P2PHandlerError, PeerID

from demoloco.errors import ConfigError, SwarmError
from demoloco.swarm.addresses import (
    is_loopback,
    parse_announce,
    parse_listen,
    parse_peer,
    tcp_host_port,
    with_port,
)
from demoloco.swarm.hivemind import p2pd
from demoloco.swarm.hivemind.faults import fault_of
from demoloco.swarm.hivemind.framing import ACKNOWLEDGED, Kind, read_frame, write_frame
from demoloco.swarm.hivemind.hints import Hints
from demoloco.swarm.hivemind.knocking import knock
from demoloco.swarm.hivemind.p2pd import LOOPBACK, CountingP2P, Reach
from demoloco.swarm.hivemind.ports import check_free
from demoloco.swarm.hivemind.servicer import ANSWERED, NAMESPACE, Message, PeerCalls
from demoloco.swarm.hivemind.streams import Streams
from demoloco.swarm.identity import Identity
from demoloco.swarm.links.access import Access
from demoloco.swarm.roads.direct import hosts_of
from demoloco.swarm.roads.mesh import RoadsMesh
from demoloco.swarm.roads.transport import Wish
from demoloco.swarm.timing import Timing
from demoloco.swarm.transport import (
    FRAME_HEADER_BYTES,
    Busy,
    Fault,
    Meter,
    Method,
    Refused,
    Service,
    Unreachable,
)
from demoloco.types import Digest, PeerId

log = logging.getLogger(__name__)

_T = TypeVar("_T")

BLOBS = f"{NAMESPACE}::blobs"
MAX_REBUILD_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A p2pd that lived so long is started again at once when it dies."""
FIRST_PAUSE_SECONDS = 0.5
TRIES_AT_ONE_PORT = 4
"""After so many vain starts at the port that p2pd had, another takes its place."""


def pause_before_restart(before: float, lived: float) -> float:
    """How long to wait before p2pd is started again: not at all where it had lived, then ever
    longer while it keeps falling."""
    if lived >= STEADY_SECONDS:
        return 0.0
    return min(MAX_REBUILD_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * before))


class HivemindTransport:
    """One p2pd, its calls and its streams."""

    def __init__(
        self,
        identity: Identity,
        listen: Sequence[str],
        announce: Sequence[str],
        reach: Reach,
        access: Access,
    ) -> None:
        if identity.path is None:
            raise ConfigError("the identity must be in a file: p2pd reads it")
        self._path: Path = identity.path
        self._me = identity.peer_id
        self._listen = self._wished = tuple(map(parse_listen, listen))
        self._announce = tuple(map(parse_announce, announce))
        self._reach = reach
        self._p2p: CountingP2P | None = None
        self._hints: Hints | None = None
        self._addresses: tuple[str, ...] = ()
        self._met: set[PeerId] = set()
        self._faults: dict[PeerId, Unreachable] = {}
        self._watching: asyncio.Task[None] | None = None
        self.meter = Meter(access)
        self._streams = Streams(self.meter)
        self.restarts = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    @property
    def daemon_pid(self) -> int | None:
        """The process id of p2pd, or None while it is down."""
        return p2pd.process_id(self._p2p) if self._p2p else None

    async def start(self, service: Service) -> None:
        self._service = service
        self._streams.service = service
        await check_free(self._listen)
        await self._bring_up()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._streams.end()
        if self._p2p is None:
            return
        p2p, self._p2p = self._p2p, None
        if self._hints is not None:
            await self._hints.leave(alive=p2pd.is_alive(p2p))
        await p2pd.shut_down(p2p)

    # Calls and streams to others

    async def connect(self, peer: PeerId, addresses: Sequence[str], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                if peer in self._faults and not await p2pd.is_connected(self._up, peer):
                    await knock(addresses)
                await p2pd.connect(self._up, peer, addresses)
        except Unreachable as error:
            raise self._note(peer, error) from error
        except TimeoutError:
            raise self._note(peer, Unreachable(Fault.TIMEOUT)) from None
        except ValueError as error:
            raise self._note(peer, Unreachable(Fault.UNKNOWN, str(error))) from error
        except (P2PDaemonError, OSError, EOFError) as error:
            fault = fault_of(str(error))
            if (
                fault.fault is Fault.BACKOFF
            ):  # libp2p keeps the reason to itself; the last one stands
                raise self._faults.get(peer, fault) from error
            raise self._note(peer, fault) from error
        self._met.add(peer)
        self._faults.pop(peer, None)

    async def call(self, peer: PeerId, method: Method, body: bytes, seconds: float) -> bytes:
        p2p = self._check_met(peer)
        stub = PeerCalls.get_stub(p2p, PeerID.from_base58(peer), namespace=NAMESPACE)
        rpc = getattr(stub, f"rpc_{method.value}")
        asked = time.monotonic()
        try:
            reply: bytes = await rpc(Message(body), timeout=seconds)
        except TimeoutError:
            raise Unreachable(Fault.TIMEOUT) from None
        except P2PHandlerError as error:
            raise Refused(f"it failed: {error}") from error
        except (P2PDaemonError, OSError, EOFError) as error:
            raise self._lost(peer, error) from error
        if reply[:1] != ANSWERED:
            raise Refused(reply[1:].decode(errors="replace"))
        if method is not Method.PUSH:
            self.meter.access.round_trips.note(peer, time.monotonic() - asked)
        return reply[1:]

    async def stream(
        self, peer: PeerId, body: bytes, frame_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        p2p = self._check_met(peer)
        try:
            async with self.meter.access.download_slot():
                async with asyncio.timeout(frame_seconds):
                    reader, writer = await p2pd.open_stream(p2p, peer, BLOBS)
                with closing(writer), self.meter.access.down.begin(peer) as passage:
                    await write_frame(writer, Kind.REQUEST, body, frame_seconds)
                    self.meter.word_sent(len(body) + FRAME_HEADER_BYTES)
                    while True:
                        kind, payload = await read_frame(reader, frame_seconds, passage)
                        if kind is not Kind.PIECE:
                            break
                        self.meter.frame_received(payload)
                        yield payload
                    self.meter.word_received(len(payload) + FRAME_HEADER_BYTES)
                    if kind is Kind.BUSY:
                        raise Busy(payload)
                    if kind is not Kind.END:
                        raise Refused(payload.decode(errors="replace"))
                    passage.arrived()
                    writer.write(ACKNOWLEDGED)
                    await writer.drain()
        except TimeoutError:
            raise Unreachable(Fault.TIMEOUT) from None
        except (P2PDaemonError, OSError, EOFError) as error:
            raise self._lost(peer, error) from error

    async def own_addresses(self) -> tuple[str, ...]:
        """What p2pd shows now: a port that the router gave comes some seconds after the start.

        Raises: Unreachable."""
        try:
            self._addresses = await p2pd.visible_addresses(self._up)
        except (P2PDaemonError, OSError, EOFError) as error:
            raise fault_of(str(error)) from error
        return self._addresses

    async def observed(self, peer: PeerId) -> str | None:
        try:
            return await p2pd.remote_address(self._up, peer)
        except (P2PDaemonError, OSError, EOFError) as error:
            raise fault_of(str(error)) from error

    async def advertise(self, run: Digest, record: bytes) -> None:
        if self._hints is not None:
            p2pd.forget_finished_calls(self._up)
            self._addresses = await self._hinted(p2pd.visible_addresses(self._up)) or ()
            await self._hinted(self._hints.advertise(run, self._me, record))

    async def find(self, run: Digest) -> Sequence[bytes]:
        if self._hints is None:
            return ()
        await self._hinted(self._hints.meet(self._met))
        return await self._hinted(self._hints.find(run)) or ()

    # p2pd

    async def _bring_up(self) -> None:
        p2p = await p2pd.launch(self._path, self._listen, self._announce, self._reach, self.meter)
        try:
            if p2p.peer_id.to_base58() != self._me:
                raise SwarmError(f"p2pd took another identity than {self._path}")
            hints = await p2pd.while_it_lives(p2p, self._set_up(p2p))
        except BaseException:
            await p2pd.shut_down(p2p)
            raise
        self._listen = tuple(self._with_port_taken(address) for address in self._listen)
        self._p2p, self._hints = p2p, hints

    async def _set_up(self, p2p: CountingP2P) -> Hints:
        hints = await Hints.join(p2p)
        await PeerCalls(self._service).add_p2p_handlers(p2p, namespace=NAMESPACE)
        await p2p.add_binary_stream_handler(BLOBS, self._on_stream)
        self._addresses = await p2pd.visible_addresses(p2p)
        return hints

    async def _on_stream(
        self, info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._streams.on_stream(info, reader, writer)

    def _with_port_taken(self, address: str) -> str:
        """Port 0 becomes the port that was given: a rebuilt p2pd is found where it was."""
        mine = tcp_host_port(address)
        if mine is None or mine[1] != 0:
            return address
        given = [pair for pair in map(tcp_host_port, self._addresses) if pair]
        same_host = [port for host, port in given if host == mine[0]]
        ports = same_host or [port for _, port in given]
        return with_port(address, ports[0]) if ports and not self._announce else address

    async def _watch(self) -> None:
        """Rebuild p2pd whenever it dies or answers no longer."""
        now = asyncio.get_running_loop().time
        pause = 0.0
        while (p2p := self._p2p) is not None:
            born = now()
            why = await p2pd.end_of(p2p)
            self.restarts += 1
            pause = pause_before_restart(pause, lived=now() - born)
            log.error("p2pd=died why=%s; it is started again after %.1f s", why, pause)
            try:
                await self._take_down(p2p)
            except Exception:  # a wall: whatever the dead one leaves, a new one is needed
                log.exception("p2pd=died and was not taken down in order")
            await asyncio.sleep(pause)
            await self._rebuild()

    async def _take_down(self, dead: CountingP2P) -> None:
        self._p2p = None
        self._met.clear()
        p2pd.fail_pending(dead)
        if self._hints is not None:
            await self._hints.leave(alive=False)
        await self._streams.end()
        await p2pd.shut_down(dead)

    async def _rebuild(self) -> None:
        pause, tries = 0.2, 0
        while self._p2p is None:
            try:
                await self._bring_up()
                log.warning("p2pd=restarted restarts=%d", self.restarts)
            except (SwarmError, P2PDaemonError, OSError, EOFError) as error:
                log.error("p2pd=down why=%s retry_seconds=%.1f", error, pause)
                tries += 1
                if tries == TRIES_AT_ONE_PORT and self._listen != self._wished:
                    log.warning("p2pd=down; it now listens on any free port, not where it was")
                    self._listen = self._wished
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(MAX_REBUILD_SECONDS, 2 * pause)

    @property
    def _up(self) -> CountingP2P:
        if self._p2p is None:
            raise Unreachable(Fault.DOWN)
        return self._p2p

    def _check_met(self, peer: PeerId) -> CountingP2P:
        """Without a connection p2pd would search the network for up to a minute."""
        p2p = self._up
        if peer not in self._met:
            raise Unreachable(Fault.UNKNOWN)
        return p2p

    def _lost(self, peer: PeerId, error: Exception) -> Unreachable:
        fault = fault_of(str(error))
        if fault.fault in (Fault.UNKNOWN, Fault.BROKEN):
            self._met.discard(peer)
        return fault

    def _note(self, peer: PeerId, fault: Unreachable) -> Unreachable:
        self._faults[peer] = fault
        return fault

    async def _hinted(self, work: Awaitable[_T]) -> _T | None:
        """A hint that fails is no hint; the reason is for the curious."""
        try:
            return await work
        except (P2PDaemonError, P2PHandlerError, OSError, EOFError, TimeoutError) as error:
            log.debug("hint=failed why=%r", error)
            return None


@dataclass(frozen=True, kw_only=True)
class Options:
    """What few users change."""

    timing: Timing = field(default_factory=Timing)
    reach: Reach | None = None
    """None = LOOPBACK for a node that listens on loopback only, else Reach()."""
    exchange: str = "libp2p"
    """How blobs travel: auto | libp2p | grpc."""
    direct_port: int = 0
    """Where the direct road listens, TCP; 0 = any free port."""
    max_upload: float = 0.0
    """Bytes a second, in all and at any time; 0 = no limit."""
    max_download: float = 0.0


class HivemindSwarm(RoadsMesh):
    """A node's swarm over libp2p; lives in the caller's loop."""

    def __init__(
        self,
        identity: Identity | Path,
        *,
        listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",),
        announce: Sequence[str] = (),
        seeds: Sequence[str] = (),
        known_members: Sequence[str] = (),
        options: Options | None = None,
    ) -> None:
        """Raises: ConfigError for an address or identity that cannot be used."""
        if isinstance(identity, Path):
            identity = Identity.load_or_create(identity)
        options = options or Options()
        reach = options.reach or (LOOPBACK if all(map(is_loopback, listen)) else Reach())
        access = Access(options.max_upload, options.max_download)
        self.transport = HivemindTransport(identity, listen, announce, reach, access)
        wish = None
        if options.exchange != "libp2p":
            hosts = hosts_of(map(parse_listen, listen))
            wish = Wish(exchange=options.exchange, port=options.direct_port, hosts=hosts)
        super().__init__(
            identity,
            self.transport,
            wish,
            seeds=[parse_peer(seed) for seed in seeds],
            known=[parse_peer(one) for one in known_members],
            timing=options.timing,
        )
