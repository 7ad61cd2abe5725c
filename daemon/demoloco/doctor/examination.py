"""The examination: probes run in children, their facts are judged as soon as they are there.

Rule: whatever a child does, each check gets a verdict, in the order of the table, and no child
outlives this.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from demoloco.doctor.checks import (
    LANES,
    OWN_CHECKS,
    PEER_CHECKS,
    Check,
    Probe,
    source_of,
)
from demoloco.doctor.plan import Plan
from demoloco.doctor.words import Facts, Verdict, fail

CHILD = (sys.executable, "-m", "demoloco.doctor.child")
END_SECONDS = 8.0
"""p2pd, that one of them may have started, is given five."""

Lanes = Sequence[Sequence[Probe]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A check, its verdict and what it was judged by."""

    name: str
    verdict: Verdict
    facts: dict[str, Facts]


def checks_for(plan: Plan) -> tuple[Check, ...]:
    return OWN_CHECKS + (PEER_CHECKS if plan.peer else ())


async def examine(
    plan: Plan, lanes: Lanes = LANES, child: Sequence[str] = CHILD
) -> AsyncGenerator[Finding, None]:
    """A finding for each check. To be closed if it is left early."""
    examination = _Examination(plan, child)
    tasks = [asyncio.create_task(examination.run(lane)) for lane in lanes]
    try:
        for check in checks_for(plan):
            yield await examination.judged(check)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Examination:
    """Facts as they come in, and why others will not come."""

    def __init__(self, plan: Plan, child: Sequence[str]) -> None:
        self._plan = plan
        self._child = child
        self._facts: dict[str, Facts] = {}
        self._ended: dict[str, str] = {}
        self._news = asyncio.Condition()

    async def run(self, lane: Sequence[Probe]) -> None:
        for probe in lane:
            why = await self._run(probe)
            async with self._news:
                self._ended[probe.name] = why
                self._news.notify_all()

    async def judged(self, check: Check) -> Finding:
        """Waits until all facts that the check needs or likes are there, or will never be."""
        wanted = [*check.needs, *(one for one in check.likes if self._plan.peer)]
        async with self._news:
            await self._news.wait_for(lambda: all(map(self._is_settled, wanted)))
        facts = {name: self._facts[name] for name in wanted if name in self._facts}
        return Finding(check.name, self._judge(check), facts)

    def _is_settled(self, facts: str) -> bool:
        return facts in self._facts or source_of(facts) in self._ended

    def _judge(self, check: Check) -> Verdict:
        for name in check.needs:
            if name not in self._facts:
                source = source_of(name)
                again = " ".join((*self._child[1:], source, f"'{self._plan.to_json()}'"))
                return fail(f"the check {self._ended[source]}", f"python {again} shows more")
        try:
            return check.judge(*map(self._facts.get, (*check.needs, *check.likes)))
        except Exception as error:  # a wall: facts of a shape that the judge does not know
            return fail(f"the check broke: {error!r}", "please report it with --json")

    async def _run(self, probe: Probe) -> str:
        """Let it tell what it finds; why there is no more."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._child,
                probe.name,
                self._plan.to_json(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        assert process.stdout is not None
        assert process.stderr is not None
        complaints = asyncio.create_task(_last_line(process.stderr))
        try:
            async with asyncio.timeout(probe.seconds):
                async for line in process.stdout:
                    await self._take(line)
                code = await process.wait()
            last = await complaints
        except TimeoutError:
            return f"took longer than {probe.seconds:g} s"
        finally:
            complaints.cancel()
            await _end(process)
        return "told nothing" if code == 0 else f"broke: {last or f'exit code {code}'}"

    async def _take(self, line: bytes) -> None:
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            async with self._news:
                self._facts[said["name"]] = dict(said["facts"])
                self._news.notify_all()


async def _last_line(stream: asyncio.StreamReader) -> str:
    """The last line that is not empty, of however many."""
    last = b""
    while piece := await stream.read(65_536):
        last = (last + piece)[-65_536:]
    lines = [line for line in last.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """In order if it can, and the whole group in any case."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        if process.returncode is not None:
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
