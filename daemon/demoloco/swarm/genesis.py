"""Asking the seeds for the run: patient with the ones that are still starting, plain about the
rest.

Rule: one answer is enough; if there is none, the user reads for each seed why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from demoloco.errors import ConfigError, PacketError
from demoloco.swarm.addresses import PeerAddress
from demoloco.swarm.calls import MAX_GENESIS_BYTES, decode_genesis_reply
from demoloco.swarm.transport import Fault, Method, Refused, Transport, Unreachable
from demoloco.types import Genesis
from demoloco.wire import decode_genesis

RETRY_SECONDS = 0.5
HOPELESS = (Fault.OTHER_PEER, Fault.PROTOCOL)
NO_RUN = "it is alive but has no run yet"
ADVICE = {
    Fault.REFUSED: "nobody listens there: is that node running, and is the port right?",
    Fault.TIMEOUT: "a firewall or NAT may swallow the connection; that node needs a reachable port",
    Fault.OTHER_PEER: "take the address that the peer's node shows now; its identity may be new",
    Fault.PROTOCOL: "it is no demoloco node, or another version of it: update the older one",
}


async def ask_seeds(
    transport: Transport, seeds: Sequence[PeerAddress], timeout_seconds: float
) -> Genesis:
    """The genesis of the first seed that tells it.

    Raises: ConfigError with a line for each seed.
    """
    if not seeds:
        raise ConfigError("there is no peer to join by; give one with --peers")
    reasons = {seed: "it did not answer in time" for seed in seeds}
    asking = {asyncio.create_task(_ask_until_told(transport, seed, reasons)) for seed in seeds}
    pending = asking
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    try:
        while pending and (left := deadline - asyncio.get_running_loop().time()) > 0:
            done, pending = await asyncio.wait(
                pending, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (genesis := task.result()) is not None:
                    return genesis
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    lines = "\n".join(f"  {seed}: {reasons[seed]}" for seed in seeds)
    raise ConfigError(f"no peer told the run within {timeout_seconds:g} s:\n{lines}")


async def _ask_until_told(
    transport: Transport, seed: PeerAddress, reasons: dict[PeerAddress, str]
) -> Genesis | None:
    """None where asking again is of no use; `reasons` says why there is no answer so far."""
    while True:
        try:
            return await _ask(transport, seed)
        except Unreachable as error:
            if error.fault is not Fault.BACKOFF:
                advice = ADVICE.get(error.fault)
                reasons[seed] = f"{error}" + (f" ({advice})" if advice else "")
            if error.fault in HOPELESS:
                return None
        except Refused as error:
            reasons[seed] = f"it refused: {error}"
        except PacketError as error:
            reasons[seed] = f"it answered wrongly: {error}"
            return None
        except LookupError:
            reasons[seed] = NO_RUN
        await asyncio.sleep(RETRY_SECONDS)


async def _ask(transport: Transport, seed: PeerAddress) -> Genesis:
    """Raises: Unreachable, Refused, PacketError, LookupError if the seed has no run."""
    await transport.connect(seed.peer, [seed.address], seconds=10.0)
    reply = await transport.call(seed.peer, Method.GENESIS, b"", seconds=30.0)
    if len(reply) > MAX_GENESIS_BYTES:
        raise PacketError(f"a genesis of {len(reply)} bytes")
    told = decode_genesis_reply(reply)
    if told is None:
        raise LookupError
    return decode_genesis(told)
