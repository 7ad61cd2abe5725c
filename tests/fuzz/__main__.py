"""A coverage-guided hunt for bytes that the decoder does not refuse as it must.

    python -m tests.fuzz FOLDER [-max_total_time=SECONDS] [-runs=N]

Needs atheris (`make fuzz` installs it). The first byte of an input chooses the bits per value, the
rest is a body. Seeds are the golden packets of all versions, as they are and with their streams
laid open. FOLDER keeps what reached new code; an input that breaks a promise is written there and
ends the hunt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["demoloco.codec"]):
    from demoloco.codec.packet import PacketSpec
    from tests.fuzz.promises import accept_or_refuse, laid_open, tell_again

GOLDEN = Path(__file__).parents[1] / "golden"
GROUPS, LADDER = (34, 3), (8, 16)  # of the golden packets
BITS = (1, 2, 4, 8)


def try_one(data: bytes) -> None:
    """One input."""
    if not data:
        return
    spec = PacketSpec(GROUPS, BITS[data[0] % len(BITS)], LADDER)
    if accept_or_refuse(data[1:], spec):
        tell_again(data[1:], spec)


def plant(corpus: Path) -> None:
    """The golden packets as seeds."""
    corpus.mkdir(parents=True, exist_ok=True)
    for file in sorted(GOLDEN.glob("packet_v*.json")):
        for bits, body in json.loads(file.read_text())["bodies"].items():
            whole, choice = bytes.fromhex(body), bytes([BITS.index(int(bits))])
            seeds = {"sealed": whole, "open": laid_open(whole)}
            for name, seed in seeds.items():
                (corpus / f"{file.stem}-{bits}-{name}").write_bytes(choice + seed)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit("usage: python -m tests.fuzz FOLDER [-max_total_time=SECONDS]")
    folder = Path(sys.argv[1])
    plant(folder / "corpus")
    options = [f"-artifact_prefix={folder}/", "-max_len=8192", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], str(folder / "corpus"), *options, *sys.argv[2:]], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
