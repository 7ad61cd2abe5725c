"""`python -m demoloco.doctor`: a JSON line for each check, for `demoloco doctor` to show.

Rule: stdout holds those lines alone. Exit codes: 0 nothing failed, 1 something did, 2 the user's
mistake, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from demoloco.doctor.examination import Finding, examine
from demoloco.doctor.plan import Plan, make_plan
from demoloco.doctor.words import Level
from demoloco.errors import ConfigError

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Examine this machine; the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        plan = make_plan(arguments.home, arguments.listen, arguments.peer, os.environ)
    except ConfigError as error:
        print(f"demoloco doctor: {error}", file=sys.stderr)
        return MISTAKE
    try:
        return asyncio.run(_examine(plan))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


async def _examine(plan: Plan) -> int:
    _end_at_the_first_signal()
    failed = False
    async with aclosing(examine(plan)) as findings:
        async for finding in findings:
            failed |= finding.verdict.level is Level.FAIL
            print(json.dumps(as_json(finding)), flush=True)
    return FAILED if failed else DONE


def _end_at_the_first_signal() -> None:
    """Later ones change nothing: what was started is being ended."""
    task = asyncio.current_task()
    assert task is not None

    def end() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end)


def as_json(finding: Finding) -> dict[str, object]:
    """The stable shape: name, level (ok | warn | fail), summary, fix, facts by their source."""
    verdict = finding.verdict
    return {
        "name": finding.name,
        "level": verdict.level.value,
        "summary": verdict.summary,
        "fix": verdict.fix,
        "facts": finding.facts,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demoloco.doctor", description=__doc__)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--listen", action="append", default=[])
    parser.add_argument("--peer", default="")
    return parser


if __name__ == "__main__":
    sys.exit(main())
