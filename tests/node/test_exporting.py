"""Whole nodes: a model leaves one of them, alone or averaged, and the rounds never know of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from demoloco.codec.chunks import to_chunks
from demoloco.codec.dct import dct
from demoloco.codec.layout import CHUNK
from demoloco.control.exports import ExportProgress, ExportResult, ExportWish
from demoloco.errors import RequestError, SwarmError
from demoloco.node import exporting
from demoloco.node.exporting import Exporting
from demoloco.types import Gift, PeerId
from demoloco.worker.exports import Export
from demoloco.worker.port import SaveCheckpoint
from tests.node.cluster import ClusterNode, cluster
from tests.node.recorder import Coefficients
from tests.node.test_cluster import assert_all_is_well
from tests.node.test_cluster_joining import SPARSE
from tests.worker.tasks import Tiny

MERGE = ExportWish(merge=True)


def exporter(node: ClusterNode) -> Exporting:
    return Exporting(node.parts, node.feed, node.run.layout.digest)


async def exported(
    node: ClusterNode, wish: ExportWish, path: Path
) -> tuple[ExportResult, dict[str, torch.Tensor]]:
    """The result, and the file as a user reads it."""
    results, data = [], b""
    async for step in exporter(node).export(wish):
        match step:
            case ExportResult():
                results.append(step)
            case bytes():
                assert results
                data += step
    (result,) = results
    assert result.file_bytes == len(data)
    path.write_bytes(data)  # noqa: ASYNC240
    state = torch.load(path, weights_only=True)
    Tiny().model().load_state_dict(state, strict=True)
    return result, state


def loss_of(state: dict[str, torch.Tensor]) -> float:
    """Of a model in a file."""
    model = Tiny().model()
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        return Tiny().evaluate(model.eval(), torch.device("cpu"))


def coefficients(node: ClusterNode, state: dict[str, torch.Tensor]) -> Coefficients:
    """DCT(x) of a model in a file."""
    chunks = to_chunks(state, node.run.layout)
    return dct(chunks).reshape(-1, CHUNK).double().numpy()


async def test_a_merged_model_is_near_the_mean_of_the_members_models(tmp_path: Path) -> None:
    """They train on meanwhile, so it is near it and not it: nearer than any of them."""
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(3)
        await made.until(lambda: all(node.feed.status.rounds_contributed >= 3 for node in nodes))
        before = len(nodes[0].worker.told)
        result, state = await exported(nodes[0], MERGE, tmp_path / "merged.pt")
        models = [node.worker.model() for node in nodes]
        off = np.linalg.norm(coefficients(nodes[0], state) - sum(models) / 3)
        gaps = [np.linalg.norm(model - sum(models) / 3) for model in models]
        assert off < 0.7 * min(gaps)
        assert result.which == "merged"
        assert result.weighted_by == "samples"
        assert [member.me for member in result.members] == [True, False, False]
        assert sum(member.weight for member in result.members) == pytest.approx(1)
        assert result.left_out == ()
        losses = result.own_loss, result.agreed_loss, result.merged_loss
        assert None not in losses
        own = [node.feed.status.eval_loss for node in nodes]
        assert result.merged_loss < max(own)
        assert result.merged_loss < result.agreed_loss
        assert loss_of(state) == pytest.approx(result.merged_loss, rel=1e-4)
        orders = [order for order in nodes[0].worker.told[before:] if isinstance(order, Export)]
        assert [str(order.which) for order in orders] == ["own", "agreed", "merged"]
        for node in nodes[1:]:  # who gave hears nothing of it
            assert not any(isinstance(order, Export) for order in node.worker.told)
        assert not (nodes[0].parts.ledger.store.checkpoint_dir() / "export").exists()
        await made.all_reach(max(node.round for node in nodes) + 2)
        await assert_all_is_well(made)


async def test_one_model_is_written_without_asking_anybody(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(2)
        await made.all_reach(2)
        nodes[0].swarm.gift = pytest.fail  # type: ignore[method-assign, assignment]
        losses = []
        for which in ("own", "agreed"):
            wish = ExportWish(which=which)
            result, state = await exported(nodes[0], wish, tmp_path / "model.pt")
            assert (result.which, result.members, result.own_loss) == (which, (), None)
            losses.append(loss_of(state))
        assert losses[0] < losses[1]  # what it has not told is in its own alone


async def test_a_member_that_gives_nothing_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(2)
        await made.all_reach(2)
        mute = nodes[1].identity.peer_id

        async def gift(holder: PeerId) -> Gift:
            assert holder == mute
            raise SwarmError("it does not answer")

        monkeypatch.setattr(nodes[0].swarm, "gift", gift)
        result, _ = await exported(nodes[0], MERGE, tmp_path / "merged.pt")
        assert [(one.peer_id, one.why) for one in result.left_out] == [(mute, "it does not answer")]
        assert [(member.me, member.weight) for member in result.members] == [(True, 1.0)]


async def test_with_method_synced_the_agreed_model_is_the_merged_one(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE, method="synced") as made:
        nodes = await made.found(2)
        await made.all_reach(1)
        result, _ = await exported(nodes[0], MERGE, tmp_path / "merged.pt")
        assert result.which == "merged"
        assert "the agreed state's model is the merged one" in result.note
        assert result.merged_loss == result.agreed_loss
        assert result.members == ()


# -- what is refused, and what goes wrong ----------------------------------------------------------
async def refusal(node: ClusterNode, wish: ExportWish) -> str:
    with pytest.raises(RequestError) as refused:
        async for _ in exporter(node).export(wish):
            pass
    return str(refused.value)


async def test_what_cannot_be_done_now_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, **SPARSE) as made:
        (node,) = await made.found(1)
        await made.all_reach(1)
        assert "format 'onnx' is not known; choose torch" in await refusal(
            node, ExportWish(format="onnx")
        )
        monkeypatch.setattr(exporting, "SPARE_BYTES", 1 << 60)
        assert "make room in" in await refusal(node, MERGE)
        monkeypatch.undo()
        made_by = exporter(node)
        first = made_by.export(MERGE)
        assert isinstance(await anext(first), ExportProgress)
        with pytest.raises(RequestError, match="another export is under way"):
            await anext(made_by.export(ExportWish()))
        await first.aclose()
        second = made_by.export(ExportWish())
        assert isinstance(await anext(second), ExportProgress)
        await second.aclose()
        node.parts.stance.fell()
        assert "this node has no model yet" in await refusal(node, MERGE)
        assert not any(isinstance(order, Export) for order in node.worker.told)


async def test_a_worker_that_falls_amid_an_export_ends_it_and_comes_back(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(2)
        await made.all_reach(3)
        await made.until(
            lambda: any(isinstance(order, SaveCheckpoint) for order in nodes[0].worker.told)
        )
        nodes[0].worker.falls_at = lambda order: isinstance(order, Export)
        assert "not exported: killed by a test" in await refusal(nodes[0], ExportWish())
        await made.until(lambda: len(nodes[0].workers) == 2)
        again = nodes[0].round + 2
        await made.all_reach(again)


async def test_an_operator_who_goes_away_leaves_nothing_behind(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE) as made:
        nodes = await made.found(2)
        await made.all_reach(1)
        asked = asyncio.Event()

        async def never(holder: PeerId) -> Gift:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        nodes[0].swarm.gift = never  # type: ignore[method-assign]
        made_by = exporter(nodes[0])

        async def listen() -> None:
            async for _ in made_by.export(MERGE):
                pass

        listening = asyncio.create_task(listen())
        await asked.wait()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        assert not (nodes[0].parts.ledger.store.checkpoint_dir() / "export").exists()
        _, state = await exported(nodes[0], ExportWish(), tmp_path / "own.pt")
        assert state


async def test_models_that_drift_apart_are_not_averaged(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SPARSE, method="paper") as made:
        (node,) = await made.found(1)
        await made.all_reach(1)
        assert "does not hold the members' models together" in await refusal(node, MERGE)
        _, state = await exported(node, ExportWish(), tmp_path / "own.pt")
        assert state
