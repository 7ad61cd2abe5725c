"""The built-in language model."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import Tensor

from demoloco.config import RunConfig, Scalar
from demoloco.errors import ConfigError
from demoloco.task.lm import LanguageModel
from demoloco.task.port import Shard

CPU = torch.device("cpu")
SMALL: dict[str, int] = {"depth": 1, "width": 64, "heads": 2, "context": 32}


def batches(node: str = "a", seed: int = 0, start: int = 0, count: int = 3) -> list[Tensor]:
    shard = Shard(seed=seed, node=node, batch_size=4, device=CPU)
    return list(islice(LanguageModel(**SMALL).batches(shard, start), count))


def test_the_data_order_goes_on_where_it_stopped() -> None:
    whole = batches(count=5)
    assert all(map(torch.equal, whole[2:], batches(start=2)))


@pytest.mark.parametrize("other", [{"node": "b"}, {"seed": 1}, {"start": 1}])
def test_another_node_seed_or_batch_has_other_data(other: dict[str, int | str]) -> None:
    assert not torch.equal(batches()[0], batches(**other)[0])  # type: ignore[arg-type]


def test_a_batch_is_windows_with_one_byte_more_than_the_context() -> None:
    batch = batches()[0]
    assert batch.shape == (4, 33)
    assert batch.dtype == torch.int64


def test_a_position_sees_no_later_byte() -> None:
    torch.manual_seed(0)
    model = LanguageModel(**SMALL).model()
    tokens = batches()[0][:, :-1]
    changed = tokens.clone()
    changed[:, 20:] = 0
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_the_default_model_has_about_a_million_parameters_in_whole_chunks() -> None:
    parameters = list(LanguageModel().model().parameters())
    assert sum(parameter.numel() for parameter in parameters) == 851_968
    assert all(size % 64 == 0 for parameter in parameters for size in parameter.shape)


def test_the_first_evaluation_knows_nothing() -> None:
    torch.manual_seed(0)
    task = LanguageModel(**SMALL)
    model = task.model()
    with torch.no_grad():
        first, second = task.evaluate(model, CPU), task.evaluate(model, CPU)
    assert first == second
    assert 5.4 < first < 5.8  # log 256 = 5.55


def test_a_hundred_steps_halve_the_ignorance() -> None:
    torch.manual_seed(0)
    task = LanguageModel(**SMALL)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in islice(task.batches(Shard(0, "a", 8, CPU), 0), 100):
        optimizer.zero_grad()
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        assert task.evaluate(model, CPU) < 3.2


def test_the_defaults_are_settings_of_a_run() -> None:
    assert RunConfig(**LanguageModel.defaults).batch_size == 8  # type: ignore[arg-type]


def test_the_unit_tells_the_context() -> None:
    assert LanguageModel(context=64).unit == "sequences of 64 bytes"


@pytest.mark.parametrize(
    ("args", "fix"),
    [
        ({"width": 100}, "--set task.width=128"),
        ({"width": 0}, "whole number from 64 to 8192"),
        ({"heads": 5}, "--set task.heads=4"),
        ({"depth": 2.5}, "whole number from 1 to 64"),
        ({"context": "long"}, "whole number from 8"),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_one_that_can(
    args: dict[str, Scalar], fix: str
) -> None:
    with pytest.raises(ConfigError, match=f"\nfix: .*{fix}"):
        LanguageModel(**args)  # type: ignore[arg-type]
