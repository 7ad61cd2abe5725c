"""Does the lab do what it is asked for? Asked against measured, and how much the machine carries.

Rule: idle round trips are judged by the least of many, for probes are ordinary processes; rates by
what comes after a start-up; loss within three standard deviations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.wanlab.lab import Lab
from benchmarks.wanlab.probes import Prober
from benchmarks.wanlab.router import LATE_SECONDS

TCP_PAYLOAD_SHARE = 1448 / 1500  # of a full packet; headers with timestamps take 52 bytes
CAPACITY_CASES: tuple[tuple[int, int | None], ...] = (
    *((1, 20), (1, 100), (4, 20), (4, 50), (4, 100), (8, 50), (4, 200), (2, 500), (1, None)),
)  # streams, Mbit/s each


class Check(NamedTuple):
    what: str
    asked: float
    measured: float
    unit: str
    tolerance: float  # of what was asked for, unless the margin is wider
    margin: float = 0.0

    @property
    def good(self) -> bool:
        return abs(self.measured - self.asked) <= max(self.tolerance * self.asked, self.margin)

    def __str__(self) -> str:
        off = f"{self.measured / self.asked - 1:+8.1%}" if self.asked else " " * 8
        verdict = "ok" if self.good else "OFF"
        numbers = f"{self.asked:>9.2f} {self.measured:>9.2f} {self.unit:<6}"
        return f"{self.what:<56} {numbers} {off}  {verdict}"


Report = Callable[[Check], None]


def selftest(*, quick: bool = False) -> int:
    """Print what was found; how many checks were off."""
    checks: list[Check] = []

    def report(check: Check) -> None:
        checks.append(check)
        print(check, flush=True)

    print(f"{'':<56} {'asked':>9} {'measured':>9}")
    with Lab(["a", "b", "c"], seed=1) as lab:
        probe = Prober(lab)
        if quick:
            _check_trips(lab, probe, report, (0.030,))
            _check_rates(lab, probe, report, (20,), 0.9)
        else:
            _check_trips(lab, probe, report, (0.010, 0.030, 0.100, 0.200))
            _check_jitter(lab, probe, report)
            _check_loss(lab, probe, report)
            _check_rates(lab, probe, report, (2, 20, 100), 3.0)
            _check_downlink(lab, probe, report)
            _check_both_ways(lab, probe, report)
            _check_queues(lab, probe, report)
            _check_change(lab, probe, report)
        _check_partition(lab, probe, report)
        stats = lab.stats()
        dropped = sum(host["overrun"] for host in stats["hosts"].values())
        report(Check("packets dropped because the router was slow", 0, dropped, "", 0))
        stubborn = lab.popen("c", ["sleep", "1000"])
    report(Check("processes left after the end", 0, stubborn.poll() is None, "", 0))
    _print_router(stats["router"])
    failed = sum(not check.good for check in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return failed


def _print_router(router: dict[str, Any]) -> None:
    late = router["late_events"] / max(1, router["events"])
    print(
        f"router: {router['cpu_seconds'] / router['seconds']:.0%} of a core,"
        f" {router['events']} events, {late:.2%} of them over {LATE_SECONDS * 1e3:.0f} ms late"
    )


def _check_trips(lab: Lab, probe: Prober, report: Report, trips: tuple[float, ...]) -> None:
    for trip in trips:
        for host in ("a", "b"):
            lab.set_link(host, delay=trip / 4)
        least = probe.ping("a", "b")["min_ms"]
        report(Check("round trip, idle", trip * 1e3, least, "ms", 0.05, margin=1))


def _check_jitter(lab: Lab, probe: Prober, report: Report) -> None:
    lab.set_link("a", delay="10ms", jitter="20ms")
    lab.set_link("b", delay="10ms")
    found = probe.ping("a", "b", count=200, interval=0.01)
    report(Check("round trip, jitter of 20 ms each way, mean", 60, found["mean_ms"], "ms", 0.1))
    report(Check("round trip, jitter of 20 ms each way, least", 40, found["min_ms"], "ms", 0, 6))
    lab.set_link("a", jitter=0)


def _check_loss(lab: Lab, probe: Prober, report: Report) -> None:
    for loss in (0.01, 0.05):
        lab.set_link("a", loss=loss, delay="1ms")
        lab.set_link("b", delay="1ms")
        both, count = 1 - (1 - loss) ** 2, 8000
        lost = probe.ping("a", "b", count=count, interval=0.0003)["lost_share"]
        margin = 300 * math.sqrt(both * (1 - both) / count)
        report(Check("loss, there and back", 100 * both, 100 * lost, "%", 0, margin))
    lab.set_link("a", loss=0)


def _goodput(what: str, mbit: float, steady: float, tolerance: float = 0.05) -> Check:
    asked = mbit * TCP_PAYLOAD_SHARE
    return Check(f"TCP goodput, {what}", asked, steady, "Mbit/s", tolerance)


def _check_rates(
    lab: Lab, probe: Prober, report: Report, rates: tuple[int, ...], seconds: float
) -> None:
    for host in lab.hosts:
        lab.set_link(host, delay="7.5ms")
    for mbit in rates:
        lab.set_link("a", up=mbit * 1e6)
        steady = probe.tcp("a", "b", seconds, 1, seconds / 3)["steady_mbit_per_second"]
        report(_goodput(f"{mbit} Mbit/s uplink, 30 ms round trip", mbit, steady))
    lab.set_link("a", up=None)


def _check_downlink(lab: Lab, probe: Prober, report: Report) -> None:
    lab.set_link("b", down="50mbit")
    steady = probe.tcp("a", "b")["steady_mbit_per_second"]
    report(_goodput("50 Mbit/s downlink, 30 ms round trip", 50, steady))
    lab.set_link("b", down=None)


def _check_both_ways(lab: Lab, probe: Prober, report: Report) -> None:
    """Acknowledgements wait behind the data of the other way: TCP itself falls short here."""
    for host in ("a", "b"):
        lab.set_link(host, up="20mbit", down="20mbit")
    sending = [probe.begin_tcp(src, dst, 5, 4, 2) for src, dst in (("a", "b"), ("b", "a"))]
    both = [probe.finish(process)["steady_mbit_per_second"] for process in sending]
    report(_goodput("20 Mbit/s both ways at once, mean", 20, sum(both) / 2, 0.10))
    for host in ("a", "b"):
        lab.set_link(host, delay="25ms")
    steady = probe.tcp("a", "b", 5, 8, 2)["steady_mbit_per_second"]
    report(_goodput("20 Mbit/s, 100 ms round trip, 8 streams", 20, steady))


def _check_queues(lab: Lab, probe: Prober, report: Report) -> None:
    for host in ("a", "c"):
        lab.set_link(host, up="20mbit", delay="7.5ms", queue="100ms")
    lab.set_link("b", down="20mbit")
    sending = [probe.begin_tcp(src, "b", 4, 1, 1) for src in ("a", "c")]
    total = sum(probe.finish(process)["steady_mbit_per_second"] for process in sending)
    report(_goodput("two senders into one 20 Mbit/s downlink, sum", 20, total))
    lab.set_link("b", down=None, delay="5ms")
    lab.set_link("a", up="10mbit", delay="5ms", queue="100ms")
    loaded = probe.begin_tcp("a", "b", 4, 1, 1)
    time.sleep(1.5)
    most = probe.ping("a", "b", count=40)["max_ms"]
    probe.finish(loaded)
    report(Check("round trip of 20 ms behind a full 100 ms queue", 120, most, "ms", 0.10))


def _check_change(lab: Lab, probe: Prober, report: Report) -> None:
    sending = probe.begin_tcp("a", "b", 6, 1, 0)
    time.sleep(2.0)
    lab.set_link("a", up="2mbit")
    time.sleep(1.0)
    before, start = lab.stats()["paths"]["a"]["b"]["bytes"], time.monotonic()
    time.sleep(2.0)
    passed = lab.stats()["paths"]["a"]["b"]["bytes"] - before
    mbit = passed * 8 / (time.monotonic() - start) / 1e6
    probe.finish(sending)
    report(Check("uplink changed from 10 to 2 Mbit/s under load", 2, mbit, "Mbit/s", 0.05))


def _check_partition(lab: Lab, probe: Prober, report: Report) -> None:
    def lost(src: str, dst: str) -> float:
        return 100 * probe.ping(src, dst, 10, 0.02, patience=0.3)["lost_share"]

    lab.partition("a", {"b", "c"})
    report(Check("partition: lost from a to b", 100, lost("a", "b"), "%", 0))
    report(Check("partition: lost from b to c", 0, lost("b", "c"), "%", 0))
    lab.heal()
    report(Check("healed: lost from a to b", 0, lost("a", "b"), "%", 0))


def capacity(seconds: float) -> None:
    """Print what the router carries here and what it costs, a pair of hosts for each stream."""
    print("streams x Mbit/s    carried  router CPU  late >5ms  most late  overrun")
    for streams, mbit in CAPACITY_CASES:
        rate = None if mbit is None else mbit * 1e6
        pairs = [(f"from{number}", f"to{number}") for number in range(streams)]
        hosts = [host for pair in pairs for host in pair]
        with Lab(hosts, defaults={"up": rate, "down": rate, "delay": "7.5ms"}) as lab:
            probe = Prober(lab)
            before = lab.stats()["router"]
            sending = [probe.begin_tcp(src, dst, seconds, 1, 1.0) for src, dst in pairs]
            carried = sum(probe.finish(one)["steady_mbit_per_second"] for one in sending)
            after = lab.stats()
        _print_capacity(f"{streams:>7} x {mbit or 'unlimited':<9}", carried, before, after)


def _print_capacity(
    case: str, carried: float, before: dict[str, Any], after: dict[str, Any]
) -> None:
    router = after["router"]
    names = ("cpu_seconds", "seconds", "events", "late_events")
    cpu, wall, events, late = (router[name] - before[name] for name in names)
    overrun = sum(host["overrun"] for host in after["hosts"].values())
    print(
        f"{case}{carried / TCP_PAYLOAD_SHARE:>7.0f}{cpu / wall:>12.0%}"
        f"{late / max(1, events):>11.2%}{router['most_late_seconds'] * 1e3:>8.1f} ms{overrun:>9}",
        flush=True,
    )
