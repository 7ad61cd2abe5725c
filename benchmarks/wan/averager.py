"""One peer of hivemind's DecentralizedAverager, as a program on a lab's host.

    python averager.py NUMBER PEERS MILLIONS float16|uniform8 IP [MULTIADDR …]

Says one JSON object a line: where it can be joined; then, for each line on its standard input, what
one step took. Options are hivemind's own defaults, but that a group is all peers.

Rule: times are of the machine's monotonic clock, and the all-reduce is timed without the search for
a group before it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np
import torch
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.compression import Float16Compression, Uniform8BitQuantization
from hivemind.compression.quantization import Quantization
from hivemind.proto import runtime_pb2

COMPRESSIONS = {"float16": Float16Compression, "uniform8": Uniform8BitQuantization}
WIDTH = 2048
PARTS = 4
SHOWN = 64  # elements of the first tensor, to see that all peers end alike
LOOK_SECONDS = 0.002


def mend_quantization() -> None:
    """hivemind 1.1.12 calls int() on an array, which numpy 2.4 refuses: its 8-bit averaging then
    averages nothing, and says that it did."""

    def extract(self: Quantization, serialized: runtime_pb2.Tensor) -> torch.Tensor:
        size = int(np.frombuffer(serialized.buffer, count=1, dtype=np.int64)[0])
        codebook = np.frombuffer(serialized.buffer, offset=8, count=size, dtype=self.codebook_dtype)
        indices = np.frombuffer(
            serialized.buffer, offset=8 + codebook.nbytes, dtype=self.indices_dtype
        )
        found = torch.as_tensor(codebook.copy())[torch.as_tensor(indices.astype(np.int64))]
        return found.reshape(tuple(serialized.size)).to(getattr(torch, serialized.dtype))

    Quantization.extract = extract


def main() -> None:
    number, peers, millions, compression, ip, *initial = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(int(number))
    mend_quantization()
    rows = round(float(millions) * 1e6 / WIDTH / PARTS)
    tensors = [torch.randn(rows, WIDTH) for _ in range(PARTS)]
    dht = DHT(initial_peers=initial, start=True, host_maddrs=[f"/ip4/{ip}/tcp/0"])
    averager = DecentralizedAverager(
        tensors,
        dht,
        start=True,
        prefix="wan",
        target_group_size=int(peers),
        min_group_size=int(peers),
        compression=COMPRESSIONS[compression](),
    )
    say(maddrs=[str(address) for address in dht.get_visible_maddrs()])
    for _ in sys.stdin:
        step(averager)
    averager.shutdown()
    dht.shutdown()


def step(averager: DecentralizedAverager) -> None:
    with averager.get_tensors() as tensors:
        before = tensors[0].flatten()[:SHOWN].tolist()
    called = time.monotonic()
    control = averager.step(wait=False)
    began: list[float] = []
    watcher = threading.Thread(target=watch, args=(control, began))
    watcher.start()
    try:
        group, failure = control.result(), ""
    except Exception as error:  # whatever it is, the other side must hear of it
        group, failure = None, f"{type(error).__name__}: {error}"
    ended = time.monotonic()
    watcher.join()
    with averager.get_tensors() as tensors:
        after = tensors[0].flatten()[:SHOWN].tolist()
    say(
        called=called,
        began=began[-1] if began else None,
        ended=ended,
        group=len(group) if group else 0,
        failure=failure,
        before=before,
        after=after,
    )


def watch(control: StepControl, began: list[float]) -> None:
    """Note when a group was found; the last time, if there were several attempts."""
    seen = control.stage
    while not control.done():
        stage = control.stage
        if stage != seen and stage == AveragingStage.RUNNING_ALLREDUCE:
            began.append(time.monotonic())
        seen = stage
        time.sleep(LOOK_SECONDS)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
