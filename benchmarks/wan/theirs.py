"""hivemind's DecentralizedAverager on emulated links: what an all-reduce of dense tensors takes.

Rule: as for our nodes, peers start and meet on open links, and make one step there. A step counts
if its group was all peers and all hold the mean afterwards.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.wan.cases import OPEN
from benchmarks.wanlab.lab import Lab

PROGRAM = Path(__file__).with_name("averager.py")
START_SECONDS = 180.0
TOLERANCE = 0.25  # standard deviations; without a peer the mean is off by more


@dataclass
class Averaging:
    """The steps that counted."""

    seconds: list[float] = field(default_factory=list)  # first peer begins to last peer done
    matchmaking_seconds: list[float] = field(default_factory=list)
    bytes_up: float = 0.0  # a peer and step, by the interface counters
    overrun: int = 0
    wrong: list[str] = field(default_factory=list)
    gave_up_after: float | None = None

    @property
    def median(self) -> float:
        """Seconds; where no step came to its end, as long as was waited: it takes longer."""
        if self.seconds:
            return statistics.median(self.seconds)
        return self.gave_up_after if self.gave_up_after is not None else float("nan")


class Peer:
    """One averager on a host."""

    def __init__(self, lab: Lab, host: str, words: Sequence[object]) -> None:
        self._process: subprocess.Popen[str] = lab.popen(
            host,
            [sys.executable, PROGRAM, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._heard: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._over = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._heard.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()

    def hear(self, count: int, seconds: float) -> dict[str, Any] | None:
        """Its word number `count`, or None if that does not come in time, or will not come."""
        with self._news:
            self._news.wait_for(lambda: len(self._heard) > count or self._over, seconds)
            return self._heard[count] if len(self._heard) > count else None


def play(
    links: Mapping[str, Mapping[str, Any]],
    millions: float,
    compression: str,
    steps: int,
    patience: float,
    **lab_options: Any,
) -> Averaging:
    """Steps on these links; those that take longer than `patience` seconds are given up."""
    found = Averaging()
    with Lab(dict.fromkeys(links, OPEN), seed=1, **lab_options) as lab:
        peers = _meet(lab, millions, compression)
        _step(peers, 1, START_SECONDS, Averaging())
        for host, link in links.items():
            lab.set_link(host, **link)
        before = lab.stats()
        for count in range(2, 2 + steps):
            if not _step(peers, count, patience, found):
                found.gave_up_after = patience
                break
        after = lab.stats()
        found.overrun = sum(host["overrun"] for host in after["hosts"].values())
        passed = [
            after["hosts"][host]["up"]["bytes"] - before["hosts"][host]["up"]["bytes"]
            for host in links
        ]
        found.bytes_up = max(passed) / max(1, len(found.seconds))
    return found


def _meet(lab: Lab, millions: float, compression: str) -> list[Peer]:
    peers: list[Peer] = []
    maddrs: list[str] = []
    for number, host in enumerate(lab.hosts):
        words = [number, len(lab.hosts), millions, compression, lab.ip(host), *maddrs]
        peers.append(Peer(lab, host, words))
        word = peers[-1].hear(0, START_SECONDS)
        assert word is not None, f"hivemind did not start on {host}"
        maddrs = maddrs or word["maddrs"]
    return peers


def _step(peers: Sequence[Peer], count: int, patience: float, found: Averaging) -> bool:
    for peer in peers:
        peer.go()
    deadline = time.monotonic() + patience
    words = []
    for peer in peers:
        word = peer.hear(count, max(0.0, deadline - time.monotonic()))
        if word is None:
            return False
        words.append(word)
    complaint = _complaint(words)
    if complaint is not None:
        found.wrong.append(complaint)
        return True
    began = min(word["began"] for word in words)
    found.seconds.append(max(word["ended"] for word in words) - began)
    found.matchmaking_seconds.append(began - min(word["called"] for word in words))
    return True


def _complaint(words: Sequence[dict[str, Any]]) -> str | None:
    if failures := [word["failure"] for word in words if word["failure"]]:
        return str(failures[0])
    if any(word["group"] != len(words) or word["began"] is None for word in words):
        return "not all peers were in the group"
    means = [statistics.fmean(values) for values in zip(*(w["before"] for w in words), strict=True)]
    off = max(
        abs(mean - value)
        for word in words
        for mean, value in zip(means, word["after"], strict=True)
    )
    return None if off < TOLERANCE else f"a peer is {off:.2f} off the mean"
