"""Files that are whole or absent: written aside, made durable, renamed into place.

Rule: nothing is written under its final name, but for a snapshot on its way in. So a reader keeps
what it opened, and a crash at any step leaves the old file, or the new one, or a draft in `tmp/`
that the next start removes. `at` is told each step as it is reached; tests end the process there.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from demoloco.errors import ConfigError, StoreError

log = logging.getLogger(__name__)

Step = Callable[[str], None]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_RESERVE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_BLOCK = bytes(1 << 20)


def ignore_step(step: str) -> None:
    """The `at` of every start but a test's."""


class Home:
    """A node's directory: the only way in which the store's parts change files."""

    def __init__(self, path: Path, at: Step = ignore_step) -> None:
        self.path = path
        self.at = at
        self._drafts = itertools.count()

    def folder(self, name: str) -> Path:
        """A directory of this name, made durably if it is not there."""
        folder = self.path / name
        if not folder.is_dir():
            with self.explained(f"make {folder}"):
                folder.mkdir(mode=0o700, exist_ok=True)
                sync_folder(folder.parent)
        return folder

    def draft(self) -> Path:
        """A new path in `tmp/`, on the same file system as everything else."""
        return self.path / "tmp" / str(next(self._drafts))

    def settle(self) -> None:
        """Remove what a crash left half written, and make durable what it left merely named."""
        for leftover in self.folder("tmp").iterdir():
            self.remove(leftover)
        with self.explained(f"sync {self.path}"):
            for folder, _, _ in os.walk(self.path):
                sync_folder(Path(folder))

    def write(self, path: Path, data: bytes, what: str) -> None:
        """Make `path` hold `data`, durably; whatever it held before is there until then."""
        draft = self.draft()
        with self.discarding(draft), self.explained(f"write the {what}", len(data)):
            with draft.open("xb", buffering=0) as file:
                write_all(file.fileno(), data)
                self.at(f"{what} written")
                sync(file.fileno())
            self.publish(draft, path, what)

    def publish(self, draft: Path, path: Path, what: str) -> None:
        """Give a file whose content is durable its name, durably."""
        self.at(f"{what} synced")
        with self.explained(f"name the {what}"):
            os.replace(draft, path)
            self.at(f"{what} renamed")
            sync_folder(path.parent)
        self.at(f"{what} durable")

    def open(self, path: Path) -> FileRange | None:
        """The file for reading, or None if there is none."""
        with self.explained(f"open {path}"):
            try:
                return FileRange(path)
            except FileNotFoundError:
                return None

    def read(self, path: Path) -> bytes | None:
        """All of a small file, or None if there is none or the disk cannot read it."""
        reader = self.open(path)
        if reader is None:
            return None
        with reader:
            try:
                return reader.read(0, reader.size)
            except StoreError as error:
                log.warning("file unreadable error=%r", str(error))
                return None

    def remove(self, path: Path) -> None:
        """Unlink a file; readers that have it open keep it."""
        with self.explained(f"remove {path}"):
            path.unlink(missing_ok=True)

    @contextmanager
    def discarding(self, draft: Path) -> Iterator[None]:
        """Leave no draft behind when the body fails."""
        try:
            yield
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    @contextmanager
    def explained(self, doing: str, needed: int = 0) -> Iterator[None]:
        """Turn an OSError of the body into a StoreError that says what could not be done."""
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise StoreError(
                    f"no room to {doing}: {needed} bytes needed, {self.free_bytes()} free "
                    f"in {self.path} ({error.strerror}); free some space or raise the quota"
                ) from error
            raise StoreError(f"cannot {doing}: {error}") from error

    def free_bytes(self) -> int:
        """Bytes that this user may still write to the home's file system."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def used_bytes(self) -> int:
        """Bytes that the home takes on its disk."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with suppress(FileNotFoundError):  # pruned while we look
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        return total


def make_home(path: Path) -> None:
    """Make the node's directory.

    Raises: ConfigError if it cannot be one that this user may write in.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(
            f"the home {path} is not a directory; move that file away or choose another --home"
        ) from error
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> ConfigError:
    """What to tell a user whose home cannot be written in."""
    return ConfigError(
        f"cannot write in the home {path} ({error.strerror}); make it writable for this user "
        "or choose another --home"
    )


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte: the kernel may take fewer at once, above all before the disk is full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_at(descriptor: int, offset: int, length: int) -> bytes:
    """Read `length` bytes, fewer only where the file ends."""
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(descriptor, length, offset)):
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_at(descriptor: int, offset: int, data: bytes) -> None:
    """Write every byte from `offset` on."""
    rest = memoryview(data)
    while rest:
        done = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[done:], offset + done


def reserve(descriptor: int, size: int) -> None:
    """Give an empty file `size` bytes of zeros that the disk really has.

    A file that is only made long would let a full disk kill the process at a write through a map.
    """
    if sys.platform != "darwin":
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in _NO_RESERVE:
                raise
        else:
            return
    for offset in range(0, size, len(_BLOCK)):
        write_at(descriptor, offset, _BLOCK[: size - offset])


def sync(descriptor: int) -> None:
    """Make a file's content survive a power cut."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync alone stops at the drive's cache there
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileRange:
    """A file, or a part of it, opened for reading; stays valid when the file is unlinked."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._offset = 0
        self.size = os.fstat(self._file.fileno()).st_size

    def part(self, offset: int, size: int) -> Self:
        """Narrow this reader to a part of the file; itself."""
        self._offset, self.size = offset, size
        return self

    def fileno(self) -> int:
        """The descriptor, for a map of the whole file."""
        return self._file.fileno()

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset` on, fewer where the range ends.

        Raises: StoreError if the disk cannot read them; ValueError for a negative number or a
        closed range.
        """
        if offset < 0 or length < 0:
            raise ValueError(f"a range has no bytes at {offset} + {length}")
        length = min(length, self.size - offset)
        try:
            data = read_at(self._file.fileno(), self._offset + offset, length)
        except OSError as error:
            raise StoreError(f"cannot read {self._file.name}: {error}") from error
        if len(data) < length:
            raise StoreError(f"{self._file.name} ends {length - len(data)} bytes early")
        return data

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
