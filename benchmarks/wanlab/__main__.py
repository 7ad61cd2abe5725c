"""`python -m benchmarks.wanlab`: programs on emulated links, from a shell (root is needed).

    run topology.toml -- demoloco-node --listen /ip4/{ip}/tcp/0 …     on every host
    run topology.toml --on a -- bash                                  a shell on host a
    selftest                         asked against measured; exit status 1 if something is off
    capacity                         how much traffic this machine can carry
    probe serve | tcp IP | ping IP   throughput, round trips and loss between hosts

A topology file, TOML or by its name JSON, holds `congestion_control`, `seed`, `mtu` (optional),
[defaults], [hosts.NAME], [[paths]] (between, delay, loss) and [[events]]: `at` a time and one of
partition, heal, isolate, set_link, set_path. docs/wanlab.md shows one.

Rule: a run's exit status is that of the first host on which the program failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.wanlab import probes, units
from benchmarks.wanlab.lab import Lab
from benchmarks.wanlab.selftest import capacity, selftest
from benchmarks.wanlab.units import LabError

TIMED_OUT = 124  # as timeout(1) says it


def load_topology(path: Path) -> dict[str, Any]:
    text = path.read_text()
    found: dict[str, Any] = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    return found


def play(lab: Lab, events: Iterable[Mapping[str, Any]], stop: threading.Event) -> None:
    """Carry the events out, each at its time from now."""
    actions: dict[str, Callable[[Any], None]] = {
        "partition": lambda sides: lab.partition(*sides),
        "isolate": lab.isolate,
        "heal": lambda sides: lab.heal() if sides is True else lab.heal(*sides),
        "set_link": lambda change: lab.set_link(**change),
        "set_path": lambda change: lab.set_path(
            *change["between"], delay=change.get("delay", 0.0), loss=change.get("loss", 0.0)
        ),
    }
    start = time.monotonic()
    for event in sorted(events, key=lambda event: units.seconds(event["at"])):
        if stop.wait(max(0.0, start + units.seconds(event["at"]) - time.monotonic())):
            return
        for action in event.keys() - {"at"}:
            print(f"wanlab: {event['at']}: {action} {event[action]}", file=sys.stderr, flush=True)
            actions[action](event[action])


def run(
    topology: Mapping[str, Any], on: str | None, limit: float | None, command: list[str]
) -> int:
    """The command on every host, or on some; each line of output bears its host's name."""
    with Lab.from_topology(topology) as lab:
        chosen = on.split(",") if on else lab.hosts
        stop = threading.Event()
        events = (lab, topology.get("events", ()), stop)
        threading.Thread(target=play, args=events, daemon=True).start()
        deadline = None if limit is None else time.monotonic() + limit
        if len(chosen) == 1:  # it gets the terminal as it is
            process = lab.popen(chosen[0], command, start_new_session=False)
            return _wait(chosen[0], process, deadline)
        pipe: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "errors": "replace",
        }
        processes = {host: lab.popen(host, command, **pipe) for host in chosen}
        width = max(map(len, chosen))
        relays = [
            threading.Thread(target=_relay, args=(f"{host:>{width}}", process), daemon=True)
            for host, process in processes.items()
        ]
        for relay in relays:
            relay.start()
        codes = [_wait(host, process, deadline) for host, process in processes.items()]
        stop.set()
        lab.close()
        for relay in relays:
            relay.join(timeout=2)
        return next(filter(None, codes), 0)


def _wait(host: str, process: subprocess.Popen[Any], deadline: float | None) -> int:
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        code = process.wait(left)
    except subprocess.TimeoutExpired:
        print(f"wanlab: time is up, {host} was still running", file=sys.stderr)
        return TIMED_OUT
    return code if code >= 0 else 128 - code  # as a shell says it


def _relay(label: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{label} | {line}", end="", flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="wanlab", description="Emulated links on this machine.")
    tasks = made.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("run", help="a command on hosts: run FILE [--on HOST,…] -- COMMAND")
    task.add_argument("topology", type=Path)
    task.add_argument("--on", metavar="HOST,…", help="only there; a single host gets the terminal")
    task.add_argument("--timeout", type=float, metavar="SECONDS")
    task = tasks.add_parser("selftest", help="asked against measured")
    task.add_argument("--quick", action="store_true", help="a few checks, seconds")
    task = tasks.add_parser("capacity", help="how much traffic this machine carries")
    task.add_argument("--seconds", type=float, default=5.0)
    kinds = tasks.add_parser("probe", help="between two hosts").add_subparsers(
        dest="kind", required=True
    )
    kind = kinds.add_parser("serve", help="the other end of tcp and ping")
    kind.add_argument("--port", type=int, default=probes.PORT)
    kind = kinds.add_parser("tcp", help="throughput to a host that serves")
    _to_a_host(kind)
    kind.add_argument("--seconds", type=float, default=5.0)
    kind.add_argument("--streams", type=int, default=1)
    kind.add_argument("--skip", type=float, default=1.0, help="seconds before the steady rate")
    kind.add_argument("--bytes", type=float, default=units.INFINITE, help="a stream, at most")
    kind = kinds.add_parser("ping", help="round trips and loss to a host that serves")
    _to_a_host(kind)
    kind.add_argument("--count", type=int, default=20)
    kind.add_argument("--interval", type=float, default=0.1)
    kind.add_argument("--size", type=int, default=64)
    kind.add_argument("--timeout", type=float, default=1.5, help="seconds for late answers")
    return made


def _to_a_host(kind: argparse.ArgumentParser) -> None:
    kind.add_argument("ip")
    kind.add_argument("--port", type=int, default=probes.PORT)


def _probe(given: argparse.Namespace) -> None:
    if given.kind == "serve":
        with suppress(KeyboardInterrupt):
            probes.serve(given.port)
        return
    address = (given.ip, given.port)
    if given.kind == "tcp":
        found = probes.tcp(address, given.seconds, given.streams, given.skip, given.bytes)
    else:
        found = probes.ping(address, given.count, given.interval, given.size, given.timeout)
    print(json.dumps(found))


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    command: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    given = parser().parse_args(words)
    if given.task == "probe":
        _probe(given)
        return 0
    signal.signal(signal.SIGTERM, _terminated)  # so that the lab is closed
    try:
        match given.task:
            case "selftest":
                return 1 if selftest(quick=given.quick) else 0
            case "capacity":
                capacity(given.seconds)
                return 0
        if not command:
            raise LabError("run needs a command after --")
        return run(load_topology(given.topology), given.on, given.timeout, command)
    except (LabError, OSError, ValueError) as error:  # ValueError: no TOML or JSON
        print(f"wanlab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _terminated(*_: object) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
