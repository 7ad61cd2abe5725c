"""A file that is there whole or not at all, and takes nobody's place unasked.

Rule: whether the place can be written is known before anything else is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

MAX_PART_NAME = 40
"""Characters of the name that the unfinished file bears: a long name must not become too long."""


class UnwritableError(Exception):
    """The file cannot be had at this place; the text says what to do."""


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Write into what is given; it gets the name `path` at the end, durably, unless that fails.

    Raises: UnwritableError at once where there is something already and `force` is not set, or
    nothing can be written."""
    part = path.parent / f".{path.name[:MAX_PART_NAME]}.{os.getpid()}.part"
    with _explained(path):
        _look(path, force)
        part.unlink(missing_ok=True)
        file = part.open("xb")
    try:
        with _explained(path):
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _name(part, path, force)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _look(path: Path, force: bool) -> None:
    if path.is_dir():
        raise UnwritableError(f"{path} is a directory; give the name of a file")
    if path.exists() and not path.is_file():
        raise UnwritableError(f"{path} is a device or the like; give the name of a file")
    if not path.parent.is_dir():
        raise UnwritableError(f"there is no directory {path.parent}; make it, or choose another")
    if not force and os.path.lexists(path):
        raise _taken(path)


def _name(part: Path, path: Path, force: bool) -> None:
    """Raises: UnwritableError, OSError."""
    if force:
        part.replace(path)
    else:
        try:
            os.link(part, path)  # unlike a rename it never takes another's place
        except FileExistsError:
            raise _taken(path) from None
        except OSError:  # a file system without links
            if os.path.lexists(path):
                raise _taken(path) from None
            part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot
            os.fsync(folder)
    finally:
        os.close(folder)


def _taken(path: Path) -> UnwritableError:
    return UnwritableError(f"{path} is there already; choose another name, or say --force")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnwritableError(
            f"can't write {path}: {error.strerror or error}; choose another place"
        ) from error
