"""Checkpoints as directories: written aside, made durable, renamed; the last two are kept. No torch
here.

    <directory>/00000042/          the newest number whose files are whole is the checkpoint
        manifest.json              counters, and every file's size and BLAKE3 digest
        agreed.f32                 the agreed state that the model stands on, a hard link where
                                   the disk allows it
        *.safetensors              what `worker.saved` writes: tensors only, nothing pickled
        gift.bin                   what a joiner may start with, see `codec.gift`

The node reads `newest_whole` before it sends Restore: the checkpoint's head tells which packets
came after it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from demoloco.errors import StoreError
from demoloco.types import Digest, Loan, PeerId, Round

KEPT = 2
AGREED = "agreed.f32"
GIFT = "gift.bin"
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Where a node was when it wrote the checkpoint."""

    round: int
    head: str  # hex digest of the manifest of the agreed state
    layout: str  # hex digest of the model's layout
    samples_read: int  # position in the data
    inner_steps: int  # made by this node in all
    samples_learnt: int = 0  # of inner steps that the model holds or that were told by then
    lenders: tuple[str, ...] = ()  # peer ids: whose untold learning the model holds
    borrowed_since: int = 0  # round
    made: tuple[str, ...] = ()
    """Hex digests of the bodies of own packets that the model holds, oldest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint whose files have been checked."""

    path: Path
    counters: Counters
    size: int  # bytes of all files

    @property
    def head(self) -> Digest:
        return Digest(bytes.fromhex(self.counters.head))

    @property
    def round(self) -> Round:
        return Round(self.counters.round)

    @property
    def loan(self) -> Loan | None:
        lenders = tuple(PeerId(lender) for lender in self.counters.lenders)
        since = Round(self.counters.borrowed_since)
        return Loan(lenders=lenders, since=since) if lenders else None


def newest_whole(directory: Path) -> Checkpoint | None:
    """The newest checkpoint in which every byte is what was written, or None."""
    for path in reversed(_numbered(directory)):
        try:
            return read(path)
        except StoreError:
            continue
    return None


def read(path: Path) -> Checkpoint:
    """Check one checkpoint.

    Raises: StoreError that names the first thing that is not as it was written.
    """
    try:
        sealed = json.loads((path / _MANIFEST).read_text())
        manifest, seal = sealed["manifest"], sealed["seal"]
        if _seal(manifest) != seal or manifest["format"] != _FORMAT:
            raise _damaged(path, _MANIFEST)
        counters = Counters(**manifest["counters"])
        counters = replace(counters, lenders=tuple(counters.lenders), made=tuple(counters.made))
        files: dict[str, tuple[int, str]] = manifest["files"]
        for name, (size, digest) in files.items():
            if (path / name).stat().st_size != size or _digest(path / name) != digest:
                raise _damaged(path, name)
        whole = sum(size for size, _ in files.values())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error)) from error
    return Checkpoint(path=path, counters=counters, size=whole)


def write(
    directory: Path, counters: Counters, fill: Callable[[Path], None], agreed: Path
) -> Checkpoint:
    """Make a new checkpoint: `fill` writes its files into the directory that it is given. Durable
    on return.

    Raises: StoreError that says what is needed; what was there before is as it was.
    """
    aside = directory / _UNFINISHED
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        fill(aside)
        _link(agreed, aside / AGREED)
        files = {
            file.name: (file.stat().st_size, _digest(file)) for file in sorted(aside.iterdir())
        }
        manifest = {"format": _FORMAT, "counters": asdict(counters), "files": files}
        (aside / _MANIFEST).write_text(
            json.dumps({"manifest": manifest, "seal": _seal(manifest)}, indent=1)
        )
        for file in aside.iterdir():
            _fsync(file)
        _fsync(aside)
        path = directory / f"{_next_number(directory):08d}"
        aside.rename(path)
        _fsync(directory)
        _prune(directory)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise StoreError(_not_written(directory, counters, agreed, error)) from error
    return Checkpoint(path=path, counters=counters, size=sum(size for size, _ in files.values()))


def _numbered(directory: Path) -> list[Path]:
    """Finished checkpoints, whole or not, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.name.isdecimal() and path.is_dir())


def _next_number(directory: Path) -> int:
    return max((int(path.name) for path in _numbered(directory)), default=0) + 1


def _prune(directory: Path) -> None:
    for path in _numbered(directory)[:-KEPT]:
        shutil.rmtree(path)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _digest(file: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(file).hexdigest()


def _seal(manifest: Any) -> str:
    return blake3(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"the checkpoint {path} is damaged: {what}"
        f"\nfix: rm -r {path}; the node goes on from the one before it, or from the agreed state"
    )


def _not_written(directory: Path, counters: Counters, agreed: Path, error: OSError) -> str:
    try:
        free = f", {shutil.disk_usage(directory.parent).free / 1e9:.1f} GB free"
        needed = f", about {3 * agreed.stat().st_size / 1e9:.1f} GB needed"
    except OSError:
        free = needed = ""
    why = error.strerror or error
    return f"checkpoint of round {counters.round} not written: {why}{needed}{free} in {directory}"
