"""Tasks that go wrong while they train: at some batches, not at the start."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F


class Poisoned:
    """One batch is not finite, and another spoils the model itself."""

    defaults = {"inner_steps": 20, "batch_size": 32, "learning_rate": 3e-3}  # noqa: RUF012
    bad_batch, spoiling_batch = 30, 90

    def model(self):
        return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1))

    def batches(self, shard, start):
        for number in itertools.count(start):
            points = torch.rand(shard.batch_size, 1, generator=shard.generator(number))
            yield number, 6.28 * points.to(shard.device)

    def loss(self, model, batch):
        number, points = batch
        if number == self.bad_batch:
            points = points / 0
        if number == self.spoiling_batch:
            with torch.no_grad():
                model[0].weight[0] = float("nan")
        return F.mse_loss(model(points), torch.sin(points))

    def evaluate(self, model, device):
        points = torch.linspace(0, 6.28, 256, device=device).unsqueeze(1)
        return self.loss(model, (-1, points)).item()


class Raising(Poisoned):
    """From a batch of the first round on its loss raises."""

    bad_batch = 10

    def loss(self, model, batch):
        if batch[0] >= self.bad_batch:
            raise ValueError("these shapes do not fit")
        return super().loss(model, batch)
