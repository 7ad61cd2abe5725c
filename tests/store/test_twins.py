"""Whatever is asked in whatever order, with the home reopened between: both stores answer alike."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from demoloco.errors import StoreError
from demoloco.store.disk import open_disk_store
from demoloco.store.memory import MemoryStore
from demoloco.store.port import Store
from demoloco.store.records import digest_of
from demoloco.types import Head
from tests.store.rounds import (
    CHUNKS,
    content,
    filling,
    head_of,
    manifest_of,
    packet_of,
    snapshot_for,
)

ROUNDS = st.integers(0, 12)
FORKS = st.sampled_from(["", "b"])
FAR = 1000  # rounds of fetched snapshots: always ahead, so that pruning leaves a fetch alone


class Twins(RuleBasedStateMachine):
    """The memory twin says what the disk must."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.memory = MemoryStore()
        self.disk = open_disk_store(self.folder)

    def teardown(self) -> None:
        self.memory.close()
        self.disk.close()
        shutil.rmtree(self.folder)

    def both(self) -> tuple[Store, Store]:
        return self.memory, self.disk

    @rule(round_=ROUNDS, fork=FORKS, parent_fork=FORKS)
    def append(self, round_: int, fork: str, parent_fork: str) -> None:
        parent = head_of(max(round_ - 1, 0), parent_fork).digest
        for store in self.both():
            packet = store.put(packet_of(round_, fork))
            store.append(manifest_of(round_, fork), head_of(round_, fork), parent, [packet])

    @rule(round_=ROUNDS, fork=FORKS)
    def create(self, round_: int, fork: str) -> None:
        head = head_of(round_, fork)
        first, second = (s.create_state(head, filling(round_, fork), CHUNKS) for s in self.both())
        assert first == second

    @rule(round_=ROUNDS, fork=FORKS)
    def move(self, round_: int, fork: str) -> None:
        head = head_of(round_, fork)
        if self.memory.snapshot_of(head.digest) is None:
            for store in self.both():
                with pytest.raises(StoreError):
                    store.move_head(head)
        else:
            for store in self.both():
                store.move_head(head)

    @rule(number=st.integers(0, 2), finish=st.booleans())
    def fetch(self, number: int, finish: bool) -> None:
        snapshot = snapshot_for(FAR + number)
        assert self.memory.missing_parts(snapshot) == self.disk.missing_parts(snapshot)
        for store in self.both():
            store.put_part(snapshot, snapshot.blobs[0], content(FAR + number))
            if finish:
                store.finish_snapshot(snapshot, CHUNKS)

    @rule(depth=st.integers(1, 4), every=st.integers(1, 5), kept=ROUNDS)
    def prune(self, depth: int, every: int, kept: int) -> None:
        for store in self.both():
            store.prune([head_of(kept).digest], depth, every)

    @rule(value=st.binary(max_size=3))
    def note(self, value: bytes) -> None:
        for store in self.both():
            store.note("run", value)

    @rule()
    def reopen(self) -> None:
        every = self.disk.snapshot_every
        self.disk.close()
        self.disk = open_disk_store(self.folder, snapshot_every=every)

    @invariant()
    def they_answer_alike(self) -> None:
        assert self.memory.head() == self.disk.head()
        assert self.memory.noted("run") == self.disk.noted("run")
        assert self.memory.served_snapshot() == self.disk.served_snapshot()
        assert self.memory.snapshots() == self.disk.snapshots()
        for fork in ("", "b"):
            for round_ in range(13):
                assert self.answers(self.memory, round_, fork) == self.answers(
                    self.disk, round_, fork
                )

    @staticmethod
    def answers(store: Store, round_: int, fork: str) -> tuple[object, ...]:
        head: Head = head_of(round_, fork)
        state = store.state(head.digest)
        return (
            store.snapshot_of(head.digest),
            None if state is None else state.tobytes(),
            store.manifests(head.digest, 3),
            store.get(digest_of(packet_of(round_, fork))),
        )


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=25, stateful_step_count=25)
