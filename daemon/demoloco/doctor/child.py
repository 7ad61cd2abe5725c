"""One probe in a process of its own: `python -m demoloco.doctor.child NAME PLAN`.

Rule: it prints a line of JSON for each set of facts. It may crash, hang or be killed without the
doctor; it ends by itself a little after its time is up, whoever started it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TextIO

from demoloco.doctor.checks import LANES
from demoloco.doctor.plan import Plan
from demoloco.doctor.words import Facts
from demoloco.errors import DemolocoError

GRACE_SECONDS = 10


def main(argv: list[str]) -> int:
    name, plan = argv[0], Plan.from_json(argv[1])
    said = _own_output()
    signal.signal(signal.SIGTERM, _end)
    signal.alarm(int(_seconds()[name]) + GRACE_SECONDS)

    def tell(found: str, facts: Facts) -> None:
        print(json.dumps({"name": found, "facts": dict(facts)}), file=said, flush=True)

    try:
        if name == "swarm":
            asyncio.run(_swarm(plan, tell))
        else:
            tell(name, _quick(name, plan))
    except DemolocoError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _seconds() -> Mapping[str, float]:
    return {probe.name: probe.seconds for lane in LANES for probe in lane}


def _own_output() -> TextIO:
    """What libraries print goes to stderr; facts have stdout for themselves."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return said


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _quick(name: str, plan: Plan) -> Facts:
    from demoloco.doctor.probing import clock, disk, home, machine, ports, software

    where = Path(plan.home)
    probes: dict[str, Callable[[], Facts]] = {
        "clock": clock.probe_clock,
        "home": lambda: home.probe_home(where),
        "ports": lambda: asyncio.run(ports.probe_ports(where, plan.listen)),
        "memory": machine.probe_memory,
        "files": machine.probe_files,
        "packages": software.probe_packages,
        "tcp": machine.probe_tcp,
        "disk": lambda: disk.probe_disk(where),
        "torch": software.probe_torch,
    }
    return probes[name]()


async def _swarm(plan: Plan, tell: Callable[[str, Facts], None]) -> None:
    from demoloco.doctor.probing.swarm import probe_swarm  # takes seconds to import

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await probe_swarm(plan, tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
