"""Real packets, manifests and states of a tiny run, as honest nodes would write them; and the fakes
that take the place of worker and swarm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demoloco.codec.layout import CHUNK, layout_of
from demoloco.codec.packet import PacketSpec, Sparse, encode
from demoloco.node.feed import Feed
from demoloco.node.ledger import Ledger
from demoloco.node.packets import Expected
from demoloco.node.report import Report
from demoloco.outer.agreed import Coefficients
from demoloco.outer.steps import OuterStep
from demoloco.rounds.rules import head_of
from demoloco.store.memory import MemoryStore
from demoloco.store.port import Store
from demoloco.swarm.identity import Identity, verify
from demoloco.swarm.port import Link, Traffic
from demoloco.types import (
    Digest,
    Draft,
    Entry,
    Head,
    Manifest,
    Offer,
    PacketHeader,
    PeerId,
    Round,
    TensorShape,
)
from demoloco.wire import (
    decode_manifest,
    digest_of,
    encode_manifest,
    seal,
    seal_packet,
)
from demoloco.worker.port import Command, WorkerEvent

K = 8
LAYOUT = layout_of([TensorShape(name="w", shape=(64, 64)), TensorShape(name="b", shape=(64,))])
SPEC = PacketSpec.of(LAYOUT, bits=2, ladder=(K, 64))
RUN = Digest(b"R" * 32)
GENESIS = Head(digest=RUN, round=Round(0), samples_total=0)
EXPECTED = Expected(RUN, SPEC, verify)


class Scribe:
    """Writes into a ledger; `who` counts the contributors, 0 is this node."""

    def __init__(self, store: Store | None = None, contributors: int = 2) -> None:
        self.identities = [Identity.new() for _ in range(contributors)]
        self.store = store or MemoryStore(snapshot_every=1000)
        self.ledger = self.new_ledger(self.store)
        self._number = 0

    @property
    def me(self) -> PeerId:
        return self.identities[0].peer_id

    def new_ledger(self, store: Store) -> Ledger:
        """A ledger that stands at the genesis."""
        store.create_state(GENESIS, _initial, SPEC.chunks)
        store.move_head(GENESIS)
        return Ledger(store, EXPECTED, OuterStep(1.0))

    def packet(
        self, parent: Head, who: int = 0, samples: int = 8, **header: Any
    ) -> tuple[bytes, Offer]:
        """A packet like no other, and its announcement."""
        self._number += 1
        rng = np.random.default_rng(self._number)
        index = np.sort(
            rng.permuted(np.tile(np.arange(CHUNK, dtype=np.int32), (2, 1)), axis=1)[:, :K]
        )
        value = rng.normal(size=(2, K)).astype(np.float32)
        body = encode(Sparse(index, value), SPEC)[0]
        facts: dict[str, Any] = {
            "run": RUN,
            "round": Round(parent.round + 1),
            "parent": parent.digest,
            "contributor": self.identities[who].peer_id,
            "samples": samples,
            "spec": SPEC.digest,
            "k": K,
        }
        made = PacketHeader(**(facts | header))
        sealed = seal_packet(self.identities[who].sign, made, body)
        offer = Offer(
            packet=digest_of(sealed),
            contributor=made.contributor,
            round=made.round,
            parent=made.parent,
            samples=made.samples,
            size=len(sealed),
        )
        return sealed, offer

    def told(self, parent: Head, who: int = 0, samples: int = 8) -> Offer:
        """A packet that is stored."""
        sealed, offer = self.packet(parent, who, samples)
        self.ledger.store_packet(sealed, offer)
        return offer

    def manifest(
        self, parent: Head, offers: Sequence[Offer], state: Digest | None = None, salt: int = 0
    ) -> Manifest:
        """A committed manifest of these packets, by the last contributor."""
        total = sum(offer.samples for offer in offers)
        draft = Draft(
            run=RUN,
            round=Round(parent.round + 1),
            parent=parent.digest,
            state=state or self.ledger.fingerprint(parent.digest),
            proposer=self.identities[-1].peer_id,
            rank=salt,
            samples_total=parent.samples_total + total,
            entries=tuple(
                Entry(
                    packet=offer.packet,
                    contributor=offer.contributor,
                    samples=offer.samples,
                    weight=offer.samples / total,
                    size=offer.size,
                )
                for offer in offers
            ),
        )
        sealed = seal("manifest", self.identities[-1].sign, encode_manifest(draft))
        manifest = decode_manifest(sealed, verify)
        self.ledger.remember(manifest, sealed)
        self.ledger.commit(manifest)
        return manifest

    def round(self, parent: Head, *who: int, salt: int = 0) -> Manifest:
        """A round of these contributors, committed; its state is made, the head stays."""
        manifest = self.manifest(parent, [self.told(parent, w) for w in who], salt=salt)
        self.ledger._apply_one(parent.digest, manifest)
        return manifest

    def play(self, parent: Head, count: int, *who: int) -> list[Manifest]:
        """Rounds one after the other, applied."""
        made: list[Manifest] = []
        for _ in range(count):
            made.append(self.round(parent, *who))
            self.ledger.apply((), made[-1:])
            parent = head_of(made[-1])
        return made

    def body(self, offer: Offer | Digest) -> bytes:
        body = self.ledger.body(offer.packet if isinstance(offer, Offer) else offer)
        assert body is not None
        return body

    def mine(self, manifest: Manifest) -> bytes:
        """What this node told in that round."""
        entry = manifest.entry_of(self.me)
        assert entry is not None
        return self.body(entry.packet)


def _initial(out: Coefficients) -> None:
    out[:] = np.random.default_rng(0).normal(size=out.shape)


class FakeCrew:
    """Takes commands."""

    def __init__(self) -> None:
        self.told: list[Command] = []

    def tell(self, command: Command) -> None:
        self.told.append(command)

    def listen(self, hear: Callable[[WorkerEvent], None]) -> None:
        self.hear = hear

    @property
    def last(self) -> Any:
        return self.told[-1]


class SilentSwarm:
    """Has figures for a report, and nothing to say."""

    traffic = Traffic()
    link = Link()
    addresses = ("/memory/me",)

    def packets_received(self) -> tuple[int, int]:
        return 0, 0

    def road(self, peer: PeerId) -> str:
        return "libp2p"

    def known_addresses(self) -> tuple[str, ...]:
        return ()


def report_of(feed: Feed | None = None) -> Report:
    swarm: Any = SilentSwarm()
    return Report(feed or Feed(), swarm, PeerId("me"))


def state_file(store: Store, digest: Digest) -> Path:
    path = store.state_path(digest)
    assert path is not None
    return path
