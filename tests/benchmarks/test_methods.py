"""The benchmark of methods: its swarm is the product's, its records resume, its page follows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.methods import page, plans, records, report
from benchmarks.methods.__main__ import run
from benchmarks.methods.images import Images, fashion, read_idx
from benchmarks.methods.records import Record
from benchmarks.methods.settings import Setting, setting_of
from benchmarks.methods.swarm import Course, Point, Swarm, play
from benchmarks.methods.synchronous import play_synchronous
from demoloco.codec.packet import PacketSpec, decode
from demoloco.config import RunConfig
from demoloco.outer.agreed import advance
from demoloco.types import Round
from demoloco.worker.loop import Loop
from demoloco.worker.port import (
    Begin,
    Contribute,
    Contributed,
    Correct,
    Describe,
    TakeAgreed,
    Train,
    WorkerEvent,
    WriteInitial,
)

LM_ARGS = {"depth": 1, "width": 64, "heads": 1, "context": 32}  # size 0.1M
TINY = Setting(size="0.1M", nodes=2, inner_steps=4, steps=12, warmup=8, batch_size=2, k=16)


class Desk:
    """A worker of the product, told by hand what a node would tell it."""

    def __init__(self, number: int, config: RunConfig, folder: Path) -> None:
        self.events: list[WorkerEvent] = []
        self.loop = Loop(self.events.append)
        self.tell(
            Describe(
                task="lm", task_args=dict(LM_ARGS), seed=0, device="cpu", threads=1,
                node=f"node-{number}",
            )
        )  # fmt: skip
        self.tell(Begin(config=config, accumulate=1))
        self.tell(WriteInitial(path=folder / "0"))
        self.tell(TakeAgreed(agreed=folder / "0", round=Round(0)))

    def tell(self, command: object) -> None:
        assert self.loop.advance(command)  # type: ignore[arg-type]

    def packet(self, round_: int, agreed: Path) -> bytes:
        self.tell(Train(round=Round(round_), steps=TINY.inner_steps))
        while self.loop.training:
            assert self.loop.advance(None)
        self.tell(Contribute(ticket=round_, agreed=agreed, k=TINY.k))
        made = self.events[-1]
        assert isinstance(made, Contributed)
        return made.body


def worker_states(method: str, folder: Path) -> list[NDArray[np.float32]]:
    """The agreed states of a run of two of the product's workers."""
    config = RunConfig(
        method=method, alpha=0.9, k=TINY.k, ladder=(TINY.k,), batch_size=2, learning_rate=3e-3,
        warmup_rounds=2, decay_rounds=3,
    )  # fmt: skip
    desks = [Desk(number, config, folder) for number in (0, 1)]
    states = [np.fromfile(folder / "0", "<f4").reshape(-1, 4096)]
    layout = desks[0].loop._own.layout
    spec = PacketSpec.of(layout, bits=config.bits, ladder=config.ladder)
    for number in range(1, 4):
        before, after = folder / str(number - 1), folder / str(number)
        bodies = [desk.packet(number, before) for desk in desks]
        state = np.empty_like(states[-1])
        advance(states[-1], [decode(body, spec) for body in bodies], [0.5, 0.5], 0.9, state)
        state.tofile(after)
        states.append(state)
        for desk, body in zip(desks, bodies, strict=True):
            desk.tell(Correct(before=before, after=after, round=Round(number), told=(body,)))
    return states


@pytest.mark.parametrize("method", ["decoupled", "synced", "paper"])
def test_two_nodes_do_what_two_workers_of_the_product_do(method: str, tmp_path: Path) -> None:
    swarm = Swarm(replace(TINY, method=method, alpha=0.9))
    for state in worker_states(method, tmp_path):
        np.testing.assert_array_equal(swarm.agreed, state)
        swarm.play_round()


def test_a_variant_that_changes_nothing_is_decoupled() -> None:
    plain, product = Swarm(replace(TINY, variant="plain")), Swarm(TINY)
    for swarm in (plain, product):
        swarm.play_round()
    assert plain.told_bytes == product.told_bytes
    np.testing.assert_allclose(plain.agreed, product.agreed, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        one
        for one in plans.TRIED
        if not {"outer_momentum", "alpha"} & one.keys() and one.get("variant") != "pull"
    ],
    ids=str,
)
def test_what_is_tried_moves_the_mean_of_the_models_by_training_alone(
    change: dict[str, Any],
) -> None:
    setting = replace(TINY, **{"k": 64, **change})
    swarm = Swarm(setting)
    for node in swarm.nodes:
        node.train(range(4))
    owns = [node.read() for node in swarm.nodes]
    outcome = swarm.exchange.close(owns, swarm.agreed)
    before, after = torch.stack(owns).mean(0), torch.stack(outcome.owns).mean(0)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)
    assert 0 < outcome.told_bytes <= 4 * swarm.layout.parameters


def test_dense_averaging_leaves_all_nodes_the_mean_of_their_models() -> None:
    swarm = Swarm(replace(TINY, method="local"))
    alone = Swarm(replace(TINY, method="alone"))
    swarm.play_round()
    alone.play_round()
    mean = torch.stack([node.read() for node in alone.nodes]).mean(0)
    for node in swarm.nodes:
        torch.testing.assert_close(node.read(), mean, rtol=0, atol=1e-6)
    assert swarm.told_bytes == 4 * swarm.layout.parameters


def test_all_reduce_of_one_node_is_that_node_alone() -> None:
    one = replace(TINY, nodes=1)
    alone, together = (
        play(replace(one, method="alone")),
        play_synchronous(replace(one, method="ddp")),
    )
    assert together.points[-1].own == alone.points[-1].own
    assert together.points[-1].samples == alone.points[-1].samples


def test_a_name_tells_two_settings_apart_and_is_not_changed_by_what_is_usual() -> None:
    usual = Setting()
    others = [
        replace(usual, seed=1),
        replace(usual, k=32),
        replace(usual, alpha=1.5),
        replace(usual, nodes=8),
    ]
    assert len({one.name for one in (usual, *others)}) == 5
    assert usual.name == "language 0.5M decoupled nodes=4 seed=0"
    told = others[1].as_dict()
    del told["variant"], told["strength"]  # a record from before these fields
    assert setting_of(told).name == others[1].name


def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    short = replace(TINY, steps=4, warmup=1)
    wanted = [replace(short, seed=seed) for seed in (0, 1)]
    assert run(wanted[:1], tmp_path) == 1
    first = (tmp_path / "runs.jsonl").read_text()
    assert run(wanted, tmp_path) == 1
    assert (tmp_path / "runs.jsonl").read_text().startswith(first)
    assert run(wanted, tmp_path) == 0
    assert [one.setting for one in records.read(tmp_path)] == wanted


def test_a_record_that_is_none_is_refused_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"name": "half a li\n')
    with pytest.raises(SystemExit, match=r"runs\.jsonl:1"):
        records.read(tmp_path)


# -- the report ------------------------------------------------------------------------------------
def recorded(setting: Setting, loss: float) -> Record:
    point = Point(
        round=1, samples=8, told_bytes=100.0, own=loss + 0.1, merged=loss, agreed=loss + 0.3,
        apart=0.2, behind=0.3,
    )  # fmt: skip
    return Record(setting, Course([replace(point, merged=9.0), point], 1000, 1.0))


def all_methods(seeds: Sequence[int] = (0, 1)) -> list[Record]:
    base = plans.BASE
    settings = [*plans.default(base, seeds), *plans.grid(base)[1:]]
    return [recorded(one, 1.0 + 0.01 * n + one.seed) for n, one in enumerate(settings)]


def test_figures_are_means_over_the_seeds_of_the_last_point() -> None:
    base = plans.BASE
    found = [recorded(replace(base, seed=seed), loss) for seed, loss in ((0, 1.0), (1, 2.0))]
    told = report.figures(found, base)
    assert told["loss_decoupled_merged"] == pytest.approx(1.5)
    assert told["loss_decoupled_own"] == pytest.approx(1.6)
    assert told["bytes_ratio_to_diloco"] == pytest.approx(40.0)
    assert np.isnan(told["loss_synced"])


def test_diloco_is_tuned_by_the_grids_best_cell_on_its_first_seed() -> None:
    base = plans.BASE
    found = [recorded(one, 2.0) for one in plans.grid(base)]
    assert plans.tuned(base, []) == plans.GRID[0]
    best = plans.diloco(base, 0.7, 0.6, seed=0)
    assert plans.tuned(base, [*found, recorded(best, 1.9)]) == (0.7, 0.6)
    lucky = plans.diloco(base, 0.4, 0.9, seed=1)
    assert plans.tuned(base, [*found, recorded(best, 1.9), recorded(lucky, 1.0)]) == (0.7, 0.6)


def test_the_page_is_a_function_of_the_records_alone() -> None:
    found = all_methods()
    shown = page.page(found, plans.BASE)
    assert shown == page.page(list(reversed(found)), plans.BASE)
    assert "$" not in shown
    two = [recorded(replace(plans.BASE, seed=seed), loss) for seed, loss in ((0, 1.0), (1, 2.0))]
    assert "1.500 ± 0.707" in page.page(two, plans.BASE)
    assert "not recorded yet" in page.page([], plans.BASE)


# -- images ----------------------------------------------------------------------------------------
def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(head + values.tobytes())


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 12)):
        images = random.integers(0, 256, (count, 12, 12), np.uint8)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % 10)
    return tmp_path


def test_idx_files_are_read_as_they_were_written(image_folder: Path) -> None:
    labels = read_idx(image_folder / "train-labels-idx1-ubyte")
    np.testing.assert_array_equal(labels, np.arange(30) % 10)
    assert fashion(image_folder).images.shape == (30, 1, 12, 12)


@pytest.mark.parametrize("damage", [b"", b"\0\0\x08\x02\0\0", b"\0\0\x0d\x01\0\0\0\x01a"])
def test_a_damaged_idx_file_is_refused(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(damage)
    with pytest.raises(ValueError, match="labels"):
        read_idx(tmp_path / "labels")


def test_missing_images_are_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="FASHION_MNIST"):
        fashion(tmp_path)


def test_a_model_with_batch_statistics_goes_through_the_same_rounds(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = fashion(image_folder)
    monkeypatch.setattr("benchmarks.methods.swarm.subject_of", lambda *_: Images(gallery, 4))
    course = play(replace(TINY, subject="fashion", steps=12))
    last = course.points[-1]
    assert all(np.isfinite([last.own, last.merged, last.agreed]))
    assert last.accuracy is not None
    assert 0.0 <= last.accuracy <= 1.0
    assert last.apart > 0.0
