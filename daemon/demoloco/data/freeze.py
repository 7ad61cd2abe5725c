"""Freeze the standard library of the running CPython into the corpus of the built-in `lm` task.

Run once, by hand: `python daemon/demoloco/data/freeze.py`. The same interpreter gives the same
bytes. What is kept is the library as people read it: no tests, no bundled wheels, no tables of
character sets. Training files come first and held-out files after them, so that a reader needs one
number to tell them apart; which file is held out follows from its name alone.
"""

from __future__ import annotations

import json
import platform
import sysconfig
from pathlib import Path

import zstandard
from blake3 import blake3

HERE = Path(__file__).parent
LEFT_OUT = frozenset(
    (
        *("__pycache__", "__phello__", "site-packages", "ensurepip"),
        *("test", "tests", "idle_test", "turtledemo"),
        *("encodings", "idlelib", "lib2to3"),
    )
)
GENERATED = ("_sysconfigdata", "config-")
"""They hold paths and flags of the machine that built the interpreter."""
HELD_OUT_BELOW = 10  # of the 256 values of a digest's first byte: about 4 %
LEVEL = 22


def main() -> None:
    """Write pystdlib-3.11.zst, CONTENTS.json and LICENSE beside this file."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = _read(library)
    order = sorted(files, key=lambda name: (is_held_out(name), name))
    text = b"".join(files[name] for name in order)
    packed = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(text)
    contents = {
        "source": f"CPython {platform.python_version()}, Lib/",
        "licence": "PSF-2.0, see LICENSE",
        "bytes": len(text),
        "train_bytes": sum(len(files[name]) for name in order if not is_held_out(name)),
        "blake3": blake3(text).hexdigest(),
        "held_out_rule": f"first byte of blake3(file name) < {HELD_OUT_BELOW}",
        "held_out": [name for name in order if is_held_out(name)],
        "files": [[name, len(files[name]), blake3(files[name]).hexdigest()] for name in order],
    }
    (HERE / "pystdlib-3.11.zst").write_bytes(packed)
    (HERE / "CONTENTS.json").write_text(_one_file_a_line(contents))
    (HERE / "LICENSE").write_text((library / "LICENSE.txt").read_text())
    print(
        f"{len(order)} files, {len(text):,} bytes, {len(packed):,} packed,"
        f" blake3 {contents['blake3']}"
    )


def is_held_out(name: str) -> bool:
    """Whether a file is kept out of training: a function of its name; a new file moves no other."""
    return blake3(name.encode()).digest()[0] < HELD_OUT_BELOW


def _read(library: Path) -> dict[str, bytes]:
    """File name under Lib/ -> its bytes, where they are UTF-8, not empty and no copy of another."""
    files: dict[str, bytes] = {}
    seen: set[bytes] = set()
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if LEFT_OUT & set(name.parts) or name.parts[0].startswith(GENERATED):
            continue
        text = path.read_bytes()
        if text in seen or not text.strip() or not _is_utf8(text):
            continue
        seen.add(text)
        files[name.as_posix()] = text
    return files


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _one_file_a_line(contents: dict[str, object]) -> str:
    """JSON that a person can read and `diff`."""
    lines = [
        f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in contents.items()
        if key != "files"
    ]
    rows = contents["files"]
    assert isinstance(rows, list)
    table = ",\n  ".join(json.dumps(row) for row in rows)
    return "{\n" + ",\n".join(lines) + ',\n "files": [\n  ' + table + "\n ]\n}\n"


if __name__ == "__main__":
    main()
