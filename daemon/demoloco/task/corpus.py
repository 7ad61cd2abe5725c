"""The text that comes with the package: CPython's standard library, the same bytes on every node.

`data/freeze.py` made it, `data/CONTENTS.json` says which files it holds and which of them are held
out of training.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import zstandard
from blake3 import blake3
from numpy.typing import NDArray

from demoloco.errors import ConfigError

Text = NDArray[np.uint8]
_ARCHIVE = "pystdlib-3.11.zst"


@dataclass(frozen=True, slots=True)
class Contents:
    """What the archive must contain once it is unpacked."""

    size: int
    train_size: int  # the training files come first
    digest: str  # BLAKE3 of the whole text, in hex
    held_out: tuple[str, ...]
    files: tuple[tuple[str, int, str], ...]  # name, size and digest, in the order of the text


@cache
def load() -> tuple[Text, Text]:
    """The text for training and the text that is held out, read-only bytes.

    Raises: ConfigError if what is installed is not the text that all other nodes have.
    """
    wanted = contents()
    try:
        packed = files("demoloco.data").joinpath(_ARCHIVE).read_bytes()
        text = zstandard.ZstdDecompressor().decompress(packed, max_output_size=wanted.size)
    except (OSError, zstandard.ZstdError) as error:
        raise ConfigError(
            f"the corpus cannot be read: {error}\nfix: install demoloco-node again"
        ) from error
    return _split(text, wanted)


def contents() -> Contents:
    """What CONTENTS.json says."""
    read = json.loads(files("demoloco.data").joinpath("CONTENTS.json").read_text())
    return Contents(
        size=read["bytes"],
        train_size=read["train_bytes"],
        digest=read["blake3"],
        held_out=tuple(read["held_out"]),
        files=tuple((name, size, digest) for name, size, digest in read["files"]),
    )


def _split(text: bytes, wanted: Contents) -> tuple[Text, Text]:
    found = blake3(text).hexdigest()
    if len(text) != wanted.size or found != wanted.digest:
        raise ConfigError(
            f"the corpus is damaged: digest {found[:8]} instead of {wanted.digest[:8]}"
            "\nfix: install demoloco-node again"
        )
    whole = np.frombuffer(text, np.uint8)
    return whole[: wanted.train_size], whole[wanted.train_size :]
