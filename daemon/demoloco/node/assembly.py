"""How a node's parts fit together once its run is known. No sockets, no signals, no process.

Rule: the same assembly serves a daemon and a test; only what is put in differs.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from demoloco.codec.layout import CHUNK
from demoloco.codec.packet import PacketSpec
from demoloco.config import DRIFTING, NodeConfig, RunConfig
from demoloco.node.account import Account
from demoloco.node.density import Surroundings
from demoloco.node.founding import Run
from demoloco.node.ledger import Ledger
from demoloco.node.packets import Expected
from demoloco.node.parts import Ground, Parts
from demoloco.node.stance import Stance
from demoloco.outer.steps import OuterStep
from demoloco.rounds import events as ev
from demoloco.rounds.facts import Settings
from demoloco.rounds.machine import Machine
from demoloco.rounds.rules import Pace
from demoloco.swarm.identity import verify
from demoloco.types import Digest, PeerId

DRIFT = (
    "the members' models drift apart with this method, and nothing pulls them together again;"
    " it is there to be compared with: choose decoupled to train"
)


def method_words(config: RunConfig) -> str:
    """The method as the operator sees it."""
    return f"{config.method}: models drift" if config.method in DRIFTING else config.method


def assemble(ground: Ground, run: Run) -> Parts:
    """All that takes part in this run."""
    config, me = run.config, ground.identity.peer_id
    spec = PacketSpec.of(run.layout, bits=config.bits, ladder=config.ladder)
    step = OuterStep.of(config)
    ledger = Ledger(ground.store, Expected(run.digest, spec, verify), step)
    _recall(ground.report.account, ledger)
    if config.method in DRIFTING:
        ground.report.warn(DRIFT, method=config.method)
    ground.report.dense_bytes = run.layout.parameters * 4
    stance = Stance(me, ground.crew, ledger, ground.disk, config, ground.node.checkpoint_share)
    stance.density.look = partial(_surroundings, ground)
    return Parts(
        identity=ground.identity,
        run=run.digest,
        config=config,
        node=ground.node,
        machine=Machine(_settings(me, run, ground.node)),
        swarm=ground.swarm,
        ledger=ledger,
        disk=ground.disk,
        crew=ground.crew,
        stance=stance,
        report=ground.report,
        shelf=ground.shelf,
        lending=ground.lending,
    )


def _surroundings(ground: Ground) -> Surroundings:
    """What the density of this node's packets follows."""
    return Surroundings(
        up=ground.swarm.link.up,
        blobs_sent=ground.swarm.traffic.blobs_sent,
        speed=ground.report.speed,
        others=ground.report.others,
    )


def _recall(account: Account, ledger: Ledger) -> None:
    noted, head = ledger.noted_json("tally"), ledger.store.head()
    if head is None:  # the run is joined anew
        return
    account.recall(noted)
    match noted:
        case {"head": str(then)}:
            with suppress(ValueError):
                way = ledger.fork(Digest(bytes.fromhex(then)), head.digest) or ((), ())
                account.catch_up(*way)


def _settings(me: PeerId, run: Run, node: NodeConfig) -> Settings:
    config = run.config
    return Settings(
        me=me,
        run=run.digest,
        creator=run.genesis.creator,
        pace=Pace(
            quorum=config.quorum,
            max_contributors=config.max_contributors,
            ramp_rounds=config.ramp_rounds,
        ),
        inner_steps=config.inner_steps,
        leave_seconds=node.leave_seconds,
        snapshot_bytes=OuterStep.of(config).planes * run.layout.chunks * CHUNK * 4,
        snapshot_every=config.snapshot_every,
        step_samples=config.batch_size,
        round_seconds=config.round_seconds,
        overlap=config.overlap,
        stop_after=node.stop_after,
    )


def where_it_stands(parts: Parts) -> ev.Started | None:
    """What the disk says of this node's place in the run, but for what it owes; None if it has no
    agreed state yet."""
    ledger = parts.ledger
    head = ledger.store.head()
    if head is None:
        return None
    pending = ledger.pending(parts.me)
    return ev.Started(
        head=head,
        fingerprint=ledger.fingerprint(head.digest),
        chain=ledger.chain(head.digest),
        pending=pending[0] if pending else None,
        pending_norm=pending[1] if pending else 0.0,
        owed_samples=0,
    )
