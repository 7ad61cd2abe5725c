"""A program with demoloco-node's command line that commits rounds and trains nothing.

It speaks NodeControl through the real control server. What it should do wrong comes in variables:
STUB_DIE_AT (round), STUB_DIFFER_AT (round), STUB_STAY (ignore SIGTERM), STUB_LEAVE_SECONDS.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path

from demoloco.control.server import ControlServer
from demoloco.node.feed import Feed, MemberStatus, Status

ROUND_SECONDS = 0.05


class StubNode:
    def __init__(self, options: argparse.Namespace) -> None:
        name = options.home.name
        self.second = bool(options.peers)
        self.leaving = asyncio.Event()
        self.watched = False
        self.feed = Feed(
            Status(
                peer_id=f"peer-{name}",
                run_id="ab" * 32,
                task="lm",
                addresses=(f"/ip4/127.0.0.1/tcp/1/p2p/peer-{name}",),
                phase="joining",
                members=(MemberStatus(peer_id=f"peer-{name}", me=True),),
                parameters=800_000,
                inner_steps=50,
                device="cpu",
                home=str(options.home),
            )
        )

    def status(self) -> Status:
        self.watched = True
        return self.feed.status

    def request_leave(self, now: bool) -> None:
        self.leaving.set()

    def commit(self, number: int) -> None:
        differs = self.second and number >= int(os.environ.get("STUB_DIFFER_AT", "1000000"))
        self.feed.update(
            round=number,
            phase="training",
            fingerprint=f"{number:08x}{'bad' if differs else ''}",
            loss=5.0 - number / 100,
            eval_loss=5.5 if number < 4 else 4.5,
            eval_round=0 if number < 4 else 4,
            eval_loss_first=5.5,
            packet_bytes=8_000,
            samples_per_second=30.0,
        )


class Step:
    """Keeps two nodes in step: neither begins before somebody watches both, none runs ahead."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._second = bool(options.peers)
        self._mine = options.home / "committed"
        self._other = options.home.parent / ("node1" if self._second else "node2") / "committed"
        for stale in (self._mine, *([] if self._second else [self._other])):
            stale.unlink(missing_ok=True)

    def tell(self, number: int) -> None:
        self._mine.with_suffix(".new").write_text(str(number))
        self._mine.with_suffix(".new").replace(self._mine)

    def may_commit(self, number: int) -> bool:
        theirs = int(self._other.read_text()) if self._other.exists() else -1
        return theirs >= (number if self._second else number - 1)


async def live(options: argparse.Namespace) -> None:
    node = StubNode(options)
    loop = asyncio.get_running_loop()
    if "STUB_STAY" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, node.leaving.set)
    options.home.mkdir(exist_ok=True)
    step = Step(options)
    server = ControlServer(node, options.home)
    await server.start()
    print("stub started", options.peers, *options.set, flush=True)
    die_at = int(os.environ.get("STUB_DIE_AT", "-1"))
    node.feed.update(phase="training", fingerprint="0")
    number = 0
    while not node.leaving.is_set() and (not options.stop_after or number < options.stop_after):
        if node.watched:
            step.tell(number)
        await asyncio.sleep(ROUND_SECONDS)
        if not step.may_commit(number + 1):
            continue
        number += 1
        if node.second and number == die_at:
            print("stub dies of a cause", flush=True)
            os._exit(7)
        node.commit(number)
    step.tell(number)
    node.feed.update(phase="leaving")
    await asyncio.sleep(float(os.environ.get("STUB_LEAVE_SECONDS", "0")))
    await server.stop()
    print("stub left", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--log-format", required=True)
    parser.add_argument("--task", default="")
    parser.add_argument("--peers", default="")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--stop-after", type=int, default=0)
    asyncio.run(live(parser.parse_args()))


if __name__ == "__main__":
    main()
