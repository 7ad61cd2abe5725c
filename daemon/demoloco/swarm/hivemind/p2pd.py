"""libp2p as hivemind ships it: its daemon p2pd as a child of this process, driven from this
process's loop.

Rule: nothing forks Python, and nothing is dialled while p2pd starts. What hivemind keeps private
and this project needs (`_client.connect`, `_child`, `_make_process_args`, the pending calls) is
touched in this file alone; a test fails when a new version moves it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

from hivemind.p2p import P2P, P2PContext, P2PDaemonError, PeerID
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from demoloco.bounds import MAX_ADDRESSES
from demoloco.errors import SwarmError
from demoloco.swarm.addresses import is_loopback
from demoloco.swarm.allowance import Allowance
from demoloco.swarm.transport import Meter
from demoloco.types import PeerId

log = logging.getLogger(__name__)

# hivemind renames a level and takes its own handler at import; the node's log is the node's.
logging.addLevelName(logging.WARNING, "WARNING")
use_hivemind_log_handler("nowhere")
logging.getLogger("hivemind").setLevel(logging.WARNING)

STARTUP_SECONDS = 60.0
SHUTDOWN_SECONDS = 5.0
LOOK_SECONDS = 5.0
ANSWER_SECONDS = 10.0
LAST_ANSWER_SECONDS = 1.0
SILENCES_TO_KILL = 2
"""A p2pd that answers nothing so often in a row hangs."""
MAX_UNARY_BYTES = 8 << 20
DHT = "DHTProtocol."
DHT_CALLS_A_SECOND = 50.0
DHT_CALLS_AT_ONCE = 500.0

_T = TypeVar("_T")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a node makes itself reachable. The defaults suit a volunteer behind a home router."""

    nat_port_map: bool = True
    """Ask the router for a port (UPnP, NAT-PMP)."""
    auto_nat: bool = True
    """Find out whether others can dial this node, and punch holes."""
    use_relay: bool = True
    """Dial peers through relays where there is no direct way."""
    use_auto_relay: bool = False
    """Look for a relay when nobody can dial this node."""
    relay_service: bool = False
    """Relay for others: for seeds with a public address."""
    trusted_relays: tuple[str, ...] = ()
    """Relays to use, as full multiaddrs; needs use_auto_relay."""
    reachability: str | None = None
    """public | private where it is known; None = find out."""


LOOPBACK = Reach(nat_port_map=False, auto_nat=False, use_relay=False)
"""For nodes that only meet on this machine or in one datacentre."""


class CountingP2P(P2P):  # type: ignore[misc]
    """hivemind's P2P with more flags, counting the bytes of all unary messages, the DHT's too."""

    def __init__(self) -> None:
        super().__init__()
        self.asking: set[asyncio.Task[Any]] = set()
        self.opened: WeakSet[asyncio.StreamWriter] = WeakSet()

    def watch_connections(self) -> None:
        """hivemind leaves open what was asked over when p2pd dies: know what there is to close."""
        connector = self._client.control.daemon_connector
        connect = connector.open_connection

        async def known() -> Stream:
            reader, writer = await connect()
            self.opened.add(writer)
            return reader, writer

        connector.open_connection = known

    meter: ClassVar[Meter]
    dht: ClassVar[Allowance]
    """What each peer may ask of the DHT; the other calls have their own limits."""
    flags: ClassVar[dict[str, object]]

    @classmethod
    def _make_process_args(cls, *args: object, **kwargs: object) -> list[str]:
        made: list[str] = P2P._make_process_args(*args, **{**kwargs, **cls.flags})
        # A session of its own: the terminal's Ctrl-C is for the node, which needs p2pd to leave.
        setsid = shutil.which("setsid")
        return [setsid, *made] if setsid else made

    async def _call_unary_protobuf_handler(
        self, peer_id: PeerID, handle_name: str, input: Any, output_protobuf_type: Any
    ) -> Any:
        request = input.SerializeToString()
        self.meter.call_sent(handle_name, request)
        reply = await self._client.call_unary_handler(peer_id, handle_name, request)
        self.meter.word_received(len(reply))
        return output_protobuf_type.FromString(reply)

    async def _add_protobuf_unary_handler(
        self,
        handle_name: str,
        handler: Callable[[Any, P2PContext], Awaitable[Any]],
        input_protobuf_type: Any,
        balanced: bool = False,
    ) -> None:
        async def counted(request: bytes, remote_id: PeerID) -> bytes:
            self.meter.call_received(handle_name, request)
            peer = PeerId(remote_id.to_base58())
            if handle_name.startswith(DHT) and not self.dht.spend(peer, 1 + len(request) // 1024):
                raise P2PDaemonError("busy: ask again later")
            context = P2PContext(
                handle_name=handle_name, local_id=self.peer_id, remote_id=remote_id
            )
            answer = await handler(input_protobuf_type.FromString(request), context)
            reply: bytes = answer.SerializeToString()
            self.meter.word_sent(len(reply))
            return reply

        await self._client.add_unary_handler(handle_name, counted, balanced=balanced)


async def launch(
    identity: Path, listen: Sequence[str], announce: Sequence[str], reach: Reach, meter: Meter
) -> CountingP2P:
    """Start p2pd. Raises: SwarmError."""
    flags = {"relayService": int(reach.relay_service)}
    dht = Allowance(
        a_second=DHT_CALLS_A_SECOND, at_once=DHT_CALLS_AT_ONCE, now=asyncio.get_running_loop().time
    )
    own = {"meter": meter, "dht": dht, "flags": flags}
    kind: Any = type("CountingP2P", (CountingP2P,), own)
    try:
        p2p: CountingP2P = await kind.create(
            initial_peers=None,
            identity_path=str(identity),
            host_maddrs=list(listen),
            announce_maddrs=list(announce) or None,
            nat_port_map=reach.nat_port_map,
            auto_nat=reach.auto_nat,
            use_relay=reach.use_relay,
            use_auto_relay=reach.use_auto_relay,
            trusted_relays=list(reach.trusted_relays) or None,
            force_reachability=reach.reachability,
            startup_timeout=STARTUP_SECONDS,
            check_if_identity_free=False,
            persistent_conn_max_msg_size=MAX_UNARY_BYTES,
        )
    except (P2PDaemonError, OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise SwarmError(f"libp2p does not start: {error}") from error
    p2p.watch_connections()
    return p2p


async def end_of(p2p: CountingP2P) -> str:
    """Wait until p2pd is of no use any longer, and say why; if it only hangs it is killed."""
    dying = asyncio.create_task(p2p._child.wait())
    silences = 0
    try:
        while True:
            await asyncio.wait({dying}, timeout=LOOK_SECONDS)
            if dying.done():
                return f"it ended with code {dying.result()}"
            silences = 0 if await _answers(p2p) else silences + 1
            if silences >= SILENCES_TO_KILL:
                p2p._child.kill()
                await dying
                return "it answered nothing any longer and was killed"
    finally:
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)


async def _answers(p2p: CountingP2P) -> bool:
    """Whether p2pd says who it is, and hivemind still reads what it says of calls."""
    control = p2p._client.control
    if control._read_task.done() or control._write_task.done():
        return False
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await _to_its_end(p2p, p2p._client.identify())
    except (P2PDaemonError, OSError, EOFError, TimeoutError):
        return False
    return True


async def while_it_lives(p2p: CountingP2P, work: Coroutine[Any, Any, _T]) -> _T:
    """Do this with p2pd; calls to one that died would never end.

    Raises: SwarmError if p2pd dies meanwhile or takes too long."""
    doing, dying = asyncio.create_task(work), asyncio.create_task(p2p._child.wait())
    try:
        await asyncio.wait(
            {doing, dying}, timeout=STARTUP_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if doing.done():
            return doing.result()
        why = "it died" if dying.done() else f"it took over {STARTUP_SECONDS:.0f} s"
        raise SwarmError(f"p2pd cannot be set up: {why}")
    finally:
        doing.cancel()
        dying.cancel()
        await asyncio.gather(doing, dying, return_exceptions=True)


def process_id(p2p: CountingP2P) -> int:
    return int(p2p._child.pid)


def is_alive(p2p: CountingP2P) -> bool:
    return p2p._child.returncode is None


def fail_pending(p2p: CountingP2P) -> None:
    """End every call that waits for a p2pd that is no more."""
    for call in tuple(p2p._client.control._pending_calls.values()):
        if not call.done():
            call.set_exception(P2PDaemonError("p2pd died"))


def forget_finished_calls(p2p: CountingP2P) -> None:
    """hivemind keeps the tasks of calls that were cancelled; let go of them."""
    tasks = p2p._client.control._handler_tasks
    for call in [call for call, task in tasks.items() if task.done()]:
        del tasks[call]


async def is_connected(p2p: CountingP2P, peer: PeerId) -> bool:
    """Whether there is a connection, whoever opened it."""
    there = await _to_its_end(p2p, p2p.list_peers())
    return any(one.peer_id.to_base58() == peer for one in there)


async def remote_address(p2p: CountingP2P, peer: PeerId) -> str | None:
    """Where a connected peer is seen, through a relay only if there is no direct connection."""
    there = await _to_its_end(p2p, p2p.list_peers())
    seen = [str(at) for one in there if one.peer_id.to_base58() == peer for at in one.addrs]
    return min(seen, key=lambda one: "/p2p-circuit" in one, default=None)


async def connect(p2p: CountingP2P, peer: PeerId, addresses: Sequence[str]) -> None:
    """Dial; raises hivemind's errors."""
    dialled = [Multiaddr(address) for address in addresses]
    await _to_its_end(p2p, p2p._client.connect(PeerID.from_base58(peer), dialled))


async def open_stream(p2p: CountingP2P, peer: PeerId, name: str) -> Stream:
    """Open a stream to this handler of a peer; raises hivemind's errors."""
    opening = p2p.call_binary_stream_handler(PeerID.from_base58(peer), name)
    taken = False

    def close_if_late(task: asyncio.Task[Any]) -> None:
        if not taken and not task.cancelled() and task.exception() is None:
            task.result()[2].close()

    _, reader, writer = await _to_its_end(p2p, opening, close_if_late)
    taken = True
    return reader, writer


async def _to_its_end(
    p2p: CountingP2P,
    asked: Coroutine[Any, Any, _T],
    late: Callable[[asyncio.Task[Any]], None] | None = None,
) -> _T:
    """Ask p2pd. Who waits for it may be cancelled, the question is not: hivemind would leave the
    socket open. It ends with p2pd at the latest."""
    task = asyncio.create_task(asked)
    p2p.asking.add(task)
    task.add_done_callback(p2p.asking.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(late or _look_away)
        raise


def _look_away(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any longer; its error is nobody's."""
    if not task.cancelled():
        task.exception()


async def visible_addresses(p2p: CountingP2P) -> tuple[str, ...]:
    """Where others can dial this node, without /p2p/; loopback last."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            asked = _to_its_end(p2p, p2p.get_visible_maddrs(latest=True))
            found = [str(one) for one in await asked]
    except ValueError:  # hivemind's word for none
        return ()
    bare = [one.removesuffix(f"/p2p/{p2p.peer_id.to_base58()}") for one in found]
    bare.sort(key=is_loopback)
    return tuple(dict.fromkeys(bare))[:MAX_ADDRESSES]


async def shut_down(p2p: CountingP2P) -> None:
    """End p2pd and every task that hivemind started for it."""
    control = p2p._client.control
    tasks = [
        task
        for task in (p2p._listen_task, p2p._reader_task, control._read_task, control._write_task)
        if task is not None
    ]
    tasks.extend(control._handler_tasks.values())
    fail_pending(p2p)
    try:
        async with asyncio.timeout(SHUTDOWN_SECONDS):
            await p2p.shutdown()
    except TimeoutError:
        log.warning("p2pd=killed why=did not end in %.0f s", SHUTDOWN_SECONDS)
        with suppress(ProcessLookupError):
            p2p._child.kill()
        await p2p._child.wait()
    if p2p.asking:
        await asyncio.wait(tuple(p2p.asking), timeout=LAST_ANSWER_SECONDS)
        tasks.extend(p2p.asking)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for writer in tuple(p2p.opened):
        writer.close()
