"""Images to classify, and a small ResNet with BatchNorm that does.

`fashion` reads Fashion-MNIST's four IDX files (gzip or not) from the folder that FASHION_MNIST
names, by default data/fashion-mnist; `digits` are scikit-learn's 1797 digits of 8 × 8, a stand-in
where there is no network.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from demoloco.task.port import Shard

CLASSES = 10
MAX_VALUES = 1 << 30
EVALUATED_AT_ONCE = 250
HELD_OUT_IMAGES = 2000
_UNSIGNED_BYTES = 0x08


@dataclass(frozen=True)
class Gallery:
    """Shapes: images (n, 1, side, side) float32, labels (n,) int64."""

    images: Tensor
    labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of an IDX file of unsigned bytes, `path` or `path`.gz.

    Raises: ValueError if that is not what the file holds; FileNotFoundError.
    """
    packed = path.with_name(f"{path.name}.gz")
    data = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTES:
        raise ValueError(f"{path.name} is no IDX file of bytes")
    dimensions = data[3]
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise ValueError(f"{path.name} ends within its head")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if math.prod(shape) > MAX_VALUES or len(data) - start != math.prod(shape):
        raise ValueError(f"{path.name} has {len(data) - start} values, not {shape}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def fashion(folder: Path | None = None) -> Gallery:
    """Fashion-MNIST.

    Raises: SystemExit where its files are not.
    """
    folder = folder or Path(os.environ.get("FASHION_MNIST", "data/fashion-mnist"))
    try:
        return _gallery(
            *(
                read_idx(folder / f"{part}-{kind}")
                for part in ("train", "t10k")
                for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
            ),
            white=255.0,
        )
    except FileNotFoundError as error:
        raise SystemExit(
            f"{error.filename} is missing: put Fashion-MNIST's files into {folder},"
            " or name their folder in FASHION_MNIST"
        ) from error


def digits() -> Gallery:
    """scikit-learn's digits; every fifth is held out.

    Raises: SystemExit without scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn") from error
    found = load_digits()
    last = np.arange(len(found.target)) % 5 == 4
    images, labels = found.images.astype(np.float32), found.target
    return _gallery(images[~last], labels[~last], images[last], labels[last], white=16.0)


def _gallery(*arrays: NDArray[np.generic], white: float) -> Gallery:
    images, labels, held_out, held_out_labels = arrays
    dark = images.astype(np.float32) / white
    mean, deviation = float(dark.mean()), float(dark.std())

    def tensor(values: NDArray[np.generic]) -> Tensor:
        whole = (values.astype(np.float32) / white - mean) / deviation
        return torch.from_numpy(whole).unsqueeze(1)

    return Gallery(
        tensor(images),
        torch.from_numpy(labels.astype(np.int64)),
        tensor(held_out[:HELD_OUT_IMAGES]),
        torch.from_numpy(held_out_labels[:HELD_OUT_IMAGES].astype(np.int64)),
    )


class Images:
    """Classification; `accuracy` is that of the last evaluation."""

    def __init__(self, gallery: Gallery, width: int) -> None:
        self.gallery, self.width = gallery, width
        self.accuracy = math.nan

    def model(self) -> nn.Module:
        return ResNet(self.width)

    def batches(self, shard: Shard, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images at random, moved by up to one pixel each way."""
        gallery, batch = self.gallery, start
        while True:
            stream = shard.generator(batch)
            count = len(gallery.labels)
            picked = torch.randint(count, (shard.batch_size,), generator=stream)
            moves = torch.randint(-1, 2, (2,), generator=stream).tolist()
            images = torch.roll(gallery.images[picked], moves, dims=(2, 3))
            yield images.to(shard.device), gallery.labels[picked].to(shard.device)
            batch += 1

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images).float(), labels)

    def evaluate(self, model: nn.Module, device: torch.device) -> float:
        labels = self.gallery.held_out_labels
        parts = torch.split(self.gallery.held_out_images, EVALUATED_AT_ONCE)
        logits = torch.cat([model(part.to(device)).float().cpu() for part in parts])
        self.accuracy = float((logits.argmax(1) == labels).float().mean())
        return float(F.cross_entropy(logits, labels))


class ResNet(nn.Module):
    """Three stages of one residual block each, the side halved between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            Residual(width, width, 1),
            Residual(width, 2 * width, 2),
            Residual(2 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Shapes: (batch, 1, side, side) float32 -> logits (batch, 10)."""
        x = self.stages(F.relu(self.norm(self.stem(images))))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """relu(shortcut(x) + two normed convolutions)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.body(x))
