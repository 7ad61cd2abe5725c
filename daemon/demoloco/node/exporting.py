"""A model leaves the node as a file, alone or averaged with the members', while training goes on.

Rule: one export at a time, and nothing that a round waits for waits for it: members' models come
behind packets, the worker carries out each step between two inner steps. The file is written in
this home and handed to the operator's client piece by piece, who writes it where it is wanted: so
the client's own rights, umask and view of the file system decide, not the daemon's, which may run
as a service or in a container and see another /tmp.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from demoloco.config import DRIFTING
from demoloco.control.exports import (
    ExportLeftOut,
    ExportMember,
    ExportProgress,
    ExportResult,
    ExportStep,
    ExportWish,
)
from demoloco.errors import ConfigError, RequestError, StoreError, WorkerError
from demoloco.node.feed import Feed
from demoloco.node.gathering import Gathering, Owed
from demoloco.node.merging import told_since, weights
from demoloco.node.parts import Parts
from demoloco.types import Digest, PeerId, Round, short
from demoloco.worker.exports import FORMATS, Export, Exported, Share, Which

PIECE_BYTES = 1 << 20
HEAD_SECONDS = 30.0
"""So long this node waits for the round that a member's model is of."""

LOOKS = 5
"""How often the agreed state may move on while a merged model is put together."""

SPARE_BYTES = 256 << 20
"""Of the home's disk, which an export leaves to the rounds."""

AGREED_IS_MERGED = (
    "with method {} the members' models are the agreed state's, but for the inner steps under way:"
    " the agreed state's model is the merged one"
)


@dataclass(frozen=True, slots=True)
class _Mean:
    """What a merged model is of."""

    shares: tuple[Share, ...] = ()
    members: tuple[ExportMember, ...] = ()
    left_out: tuple[ExportLeftOut, ...] = ()
    weighted_by: str = ""


class Exporting:
    """Carries exports out for the operator."""

    def __init__(self, parts: Parts, feed: Feed, layout: Digest) -> None:
        self._parts = parts
        self._feed = feed
        self._layout = layout
        self._chunks = parts.ledger.expected.spec.chunks
        self._folder = parts.ledger.store.checkpoint_dir() / "export"
        self._tickets = count(1)
        self._busy = False
        shutil.rmtree(self._folder, ignore_errors=True)  # of a life that ended amid an export

    async def export(self, wish: ExportWish) -> AsyncGenerator[ExportStep, None]:
        """Progress, the result, the file's bytes.

        Raises: RequestError."""
        self._check(wish)
        self._busy = True
        try:
            await asyncio.to_thread(self._make_room, wish)
            async with aclosing(self._merged(wish) if wish.merge else self._single(wish)) as steps:
                async for step in steps:
                    yield step
        except (ConfigError, WorkerError, StoreError, OSError) as error:
            self._parts.report.warn("not exported", why=str(error))
            raise RequestError(f"not exported: {error}") from error
        finally:
            self._busy = False
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- what is refused ---------------------------------------------------------------------------
    def _check(self, wish: ExportWish) -> None:
        """Before any work. Raises: RequestError."""
        if wish.format not in FORMATS:
            raise RequestError(
                f"format {wish.format[:40]!r} is not known; choose {' or '.join(FORMATS)}"
            )
        if self._busy:
            raise RequestError("another export is under way; wait for it, or stop it with Ctrl-C")
        if self._parts.stance.standing is None:
            raise RequestError(
                "this node has no model yet: it is still joining, or its worker is being restarted;"
                " ask again when `demoloco status` shows inner steps"
            )
        if wish.merge and self._parts.config.method in DRIFTING:
            raise RequestError(
                f"method {self._parts.config.method} does not hold the members' models together, so"
                " their mean is no model that anybody trained; export this node's own, without"
                " --merge"
            )

    def _make_room(self, wish: ExportWish) -> None:
        """Raises: RequestError, OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        others = len(self._parts.report.others) if self._lends and wish.merge else 0
        model = 4 * self._feed.status.parameters
        needed = model + others * model // 4 + SPARE_BYTES
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise RequestError(
                f"the home's disk has {free / 1e9:.1f} GB free, an export needs {needed / 1e9:.1f}"
                f" GB there for a while; make room in {self._parts.node.home}"
            )

    @property
    def _lends(self) -> bool:
        """Whether members' models differ by what they owe, which they give."""
        return self._parts.config.method == "decoupled"

    # -- one model ---------------------------------------------------------------------------------
    async def _single(self, wish: ExportWish) -> AsyncGenerator[ExportStep, None]:
        yield ExportProgress(doing=f"writing the {wish.which} model")
        result = self._result(wish, wish.which)
        written = await self._ask(Which(wish.which), path=self._file)
        async for step in self._deliver(replace(result, file_bytes=written.size)):
            yield step

    async def _merged(self, wish: ExportWish) -> AsyncGenerator[ExportStep, None]:
        gathering = Gathering(self._parts.swarm, self._layout, self._chunks, self._folder)
        if self._lends:
            others = self._parts.report.others
            yield ExportProgress(doing="fetching members' models", of=len(others))
            async with aclosing(gathering.gather(others, wish.patience_seconds)) as heard:
                async for done, of in heard:
                    yield ExportProgress(doing="fetching members' models", done=done, of=of)
            await self._reach(gathering.came)
        yield ExportProgress(doing="evaluating the own model", done=0, of=3)
        own = await self._ask(Which.OWN, evaluate=True)
        yield ExportProgress(doing="evaluating the agreed state's model", done=1, of=3)
        if not self._lends:
            result = self._result(wish, Which.MERGED)
            result = replace(result, note=AGREED_IS_MERGED.format(self._parts.config.method))
            agreed = merged = await self._ask(Which.AGREED, path=self._file, evaluate=True)
        else:
            agreed = await self._ask(Which.AGREED, evaluate=True)
            yield ExportProgress(doing="averaging, and evaluating the mean", done=2, of=3)
            mean = await self._mean(gathering)
            result = self._result(wish, Which.MERGED)
            order = self._order(Which.MERGED, path=self._file, evaluate=True)
            merged = await self._parts.crew.export(replace(order, shares=mean.shares))
            result = replace(
                result,
                weighted_by=mean.weighted_by,
                members=mean.members,
                left_out=mean.left_out,
            )
        result = replace(
            result,
            file_bytes=merged.size,
            own_loss=own.loss,
            agreed_loss=agreed.loss,
            merged_loss=merged.loss,
            why_no_loss=own.why or agreed.why or merged.why,
        )
        async for step in self._deliver(result):
            yield step

    # -- members' models ---------------------------------------------------------------------------
    async def _reach(self, came: Mapping[PeerId, Owed]) -> None:
        """A member may have closed a round that this node is about to."""
        newest = max((owed.gift.head.round for owed in came.values()), default=0)
        end = asyncio.get_running_loop().time() + HEAD_SECONDS
        with self._feed.subscribe() as news:
            while self._round < newest and asyncio.get_running_loop().time() < end:
                if await news.next(1.0) is None:  # the node has ended
                    return

    async def _mean(self, gathering: Gathering) -> _Mean:
        """The shares, told on the state that the model stands on when this returns.

        Raises: WorkerError if that is moved on faster than it can be read about."""
        for _ in range(LOOKS):
            head, at = self._standing, self._round
            mean = await self._parts.disk(self._weigh, gathering, head, at)
            if self._parts.stance.standing == head:
                return mean
        raise WorkerError("rounds close too fast for the members' models to be put together")

    def _weigh(self, gathering: Gathering, head: Digest, at: Round) -> _Mean:
        ledger, me = self._parts.ledger, self._parts.me
        chain = ledger.chain(head)
        left_out, told = dict(gathering.failed), {}
        for peer, owed in gathering.came.items():
            since = told_since(owed.gift, at, chain, ledger.body)
            if isinstance(since, str):
                left_out[peer] = since
            else:
                told[peer] = since
        share_of, by = weights([me, *told], chain)
        rounds = {me: at} | {peer: gathering.came[peer].gift.head.round for peer in told}
        return _Mean(
            tuple(
                Share(gathering.came[peer].file, since, share_of[peer])
                for peer, since in told.items()
            ),
            tuple(
                ExportMember(peer_id=peer, me=peer == me, weight=share_of[peer], round=rounds[peer])
                for peer in rounds
            ),
            tuple(ExportLeftOut(peer_id=peer, why=why) for peer, why in left_out.items()),
            by,
        )

    # -- the worker --------------------------------------------------------------------------------
    @property
    def _file(self) -> Path:
        return self._folder / "model"

    @property
    def _standing(self) -> Digest:
        """Raises: WorkerError."""
        standing = self._parts.stance.standing
        if standing is None:
            raise WorkerError("the worker fell meanwhile; it is started again")
        return standing

    @property
    def _round(self) -> Round:
        """Of the state that the model stands on."""
        manifest = self._parts.ledger.manifest(self._standing)
        return Round(0) if manifest is None else manifest.round

    def _order(self, which: Which, path: Path | None = None, evaluate: bool = False) -> Export:
        """On the state that the worker was told last, whose file stays as long as it may open it;
        to be told before anything else is."""
        agreed = self._parts.ledger.store.state_path(self._standing)
        if agreed is None:
            raise StoreError(f"the agreed state after {short(self._standing)} is gone")
        ticket = next(self._tickets)
        return Export(ticket=ticket, which=which, agreed=agreed, path=path, evaluate=evaluate)

    async def _ask(
        self, which: Which, path: Path | None = None, evaluate: bool = False
    ) -> Exported:
        return await self._parts.crew.export(self._order(which, path, evaluate))

    # -- the answer --------------------------------------------------------------------------------
    def _result(self, wish: ExportWish, which: str) -> ExportResult:
        return ExportResult(
            which=which,
            format=wish.format,
            run_id=self._parts.run.hex(),
            round=self._round,
            head=self._standing.hex(),
        )

    async def _deliver(self, result: ExportResult) -> AsyncGenerator[ExportStep, None]:
        facts = {"round": result.round, "bytes": result.file_bytes}
        merged = {"members": len(result.members)} if result.members else {}
        self._parts.report.line("exported", which=result.which, **facts, **merged)
        yield result
        with await asyncio.to_thread(self._file.open, "rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece
