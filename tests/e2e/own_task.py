"""A task of somebody's own: learn the sine from random points."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F


class Sine:
    defaults = {"inner_steps": 20, "batch_size": 32, "learning_rate": 3e-3}  # noqa: RUF012

    def model(self):
        return nn.Sequential(
            nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )

    def batches(self, shard, start):
        for number in itertools.count(start):
            points = torch.rand(shard.batch_size, 1, generator=shard.generator(number))
            yield 6.28 * points.to(shard.device)

    def loss(self, model, batch):
        return F.mse_loss(model(batch), torch.sin(batch))

    def evaluate(self, model, device):
        return self.loss(model, torch.linspace(0, 6.28, 256, device=device).unsqueeze(1)).item()
