"""What iperf and ping are for, without them: throughput, round trips and loss between two hosts.

Rule: a probe is a process on its host and reports one JSON object; the receiver's clock counts.
"""

from __future__ import annotations

import json
import math
import select
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from benchmarks.wanlab.lab import ROOT, Lab
from benchmarks.wanlab.units import INFINITE, LabError

PORT = 5201
SAMPLE_SECONDS = 0.1
BLOCK = 1 << 16
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from benchmarks.wanlab.__main__ import main; sys.exit(main())"
)

Samples = list[tuple[float, int]]
"""Seconds since the start, bytes until then."""


def serve(port: int) -> None:
    """The other end of both probes, for ever; says `ready`."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", port))
    threading.Thread(target=_echo, args=(datagrams,), daemon=True).start()
    listener = socket.create_server(("", port), backlog=64)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_swallow, args=(connection,), daemon=True).start()


def _echo(datagrams: socket.socket) -> None:
    while True:
        data, sender = datagrams.recvfrom(65535)
        with suppress(OSError):
            datagrams.sendto(data, sender)


def _swallow(connection: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    total, start = 0, time.monotonic()
    samples: Samples = []
    with connection:
        while True:
            count = connection.recv_into(buffer)
            now = time.monotonic() - start
            total += count
            if not samples or not count or now - samples[-1][0] >= SAMPLE_SECONDS:
                samples.append((now, total))
            if not count:
                break
        with suppress(OSError):
            connection.sendall(json.dumps({"start": start, "samples": samples}).encode())


def tcp(
    address: tuple[str, int], seconds: float, streams: int, skip: float, limit: float = INFINITE
) -> dict[str, float]:
    """Send for so long, at most `limit` bytes a stream; what came, in all and after `skip` s."""
    answers: list[dict[str, Any]] = []

    def send() -> None:
        with socket.create_connection(address, timeout=30) as connection:
            connection.settimeout(60)
            deadline, sent, block = time.monotonic() + seconds, 0, bytes(BLOCK)
            while time.monotonic() < deadline and sent < limit:
                sent += connection.send(block[: int(min(BLOCK, limit - sent))])
            connection.shutdown(socket.SHUT_WR)
            answers.append(json.loads(b"".join(iter(lambda: connection.recv(BLOCK), b""))))

    threads = [threading.Thread(target=send) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(answers) < streams:
        raise SystemExit("probe: a stream failed")
    start = min(answer["start"] for answer in answers)  # hosts share the kernel's clock
    end = max(answer["start"] + answer["samples"][-1][0] for answer in answers)
    last = min(start + seconds, end)  # afterwards only queues drain
    window = last - start - skip
    total = _received(answers, end)
    steady = math.nan
    if window > 0:
        steady = (_received(answers, last) - _received(answers, start + skip)) * 8 / window
    return {
        "bytes": total,
        "seconds": end - start,
        "mbit_per_second": total * 8 / (end - start) / 1e6,
        "steady_mbit_per_second": steady / 1e6,
    }


def _received(answers: list[dict[str, Any]], moment: float) -> float:
    """By all streams, between two samples in proportion."""
    total = 0.0
    for answer in answers:
        at = moment - answer["start"]
        before, had = 0.0, 0.0
        for after, count in answer["samples"]:
            if after > at:
                had += max(0.0, (at - before) / (after - before)) * (count - had)
                break
            before, had = after, count
        total += had
    return total


def ping(
    address: tuple[str, int], count: int, interval: float, size: int, patience: float
) -> dict[str, float]:
    """Round trips of UDP datagrams in ms, and the share that did not come back."""
    trips: dict[int, float] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(address)
        datagrams.setblocking(False)
        start = time.monotonic()
        for number in range(count):
            _collect(datagrams, trips, count, start + number * interval)
            with suppress(OSError):
                datagrams.send(struct.pack("=Id", number, time.monotonic()).ljust(size, b"."))
        _collect(datagrams, trips, count, time.monotonic() + patience)
    values = sorted(trips.values()) or [math.nan]
    return {
        "sent": count,
        "lost_share": 1 - len(trips) / count,
        "min_ms": values[0] * 1e3,
        "median_ms": statistics.median(values) * 1e3,
        "mean_ms": statistics.fmean(values) * 1e3,
        "p95_ms": values[int(0.95 * (len(values) - 1))] * 1e3,
        "max_ms": values[-1] * 1e3,
    }


def _collect(datagrams: socket.socket, trips: dict[int, float], count: int, until: float) -> None:
    while len(trips) < count:
        wait = max(0.0, until - time.monotonic())
        if not select.select([datagrams], [], [], wait)[0]:
            return
        with suppress(OSError):
            number, sent_at = struct.unpack_from("=Id", datagrams.recv(65535))
            trips.setdefault(number, time.monotonic() - sent_at)


class Prober:
    """Probes between the hosts of a running lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        for host in lab.hosts:
            server = lab.popen(host, _command("serve"), stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            if server.stdout.readline().strip() != "ready":
                raise LabError(f"the probe's other end on {host} did not start")

    def tcp(
        self, src: str, dst: str, seconds: float = 3.0, streams: int = 1, skip: float = 1.0
    ) -> dict[str, float]:
        """See `tcp`."""
        return self.finish(self.begin_tcp(src, dst, seconds, streams, skip))

    def begin_tcp(
        self, src: str, dst: str, seconds: float, streams: int, skip: float
    ) -> subprocess.Popen[str]:
        shape = ["--seconds", seconds, "--streams", streams, "--skip", skip]
        command = _command("tcp", self._lab.ip(dst), *shape)
        return self._lab.popen(src, command, stdout=subprocess.PIPE, text=True)

    def ping(
        self, src: str, dst: str, count: int = 20, interval: float = 0.05, patience: float = 1.5
    ) -> dict[str, float]:
        """See `ping`."""
        shape = ["--count", count, "--interval", interval, "--timeout", patience]
        command = _command("ping", self._lab.ip(dst), *shape)
        return self.finish(self._lab.popen(src, command, stdout=subprocess.PIPE, text=True))

    @staticmethod
    def finish(process: subprocess.Popen[str]) -> dict[str, float]:
        output, _ = process.communicate()
        if process.returncode:
            raise LabError(f"a probe failed: {process.args!r}")
        found: dict[str, float] = json.loads(output)
        return found


def _command(*words: object) -> list[object]:
    return [sys.executable, "-I", "-S", "-c", PROGRAM, ROOT, "probe", *words]
