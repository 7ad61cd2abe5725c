"""demoloco-node that ends itself at a point: `killed_node.py argument …` with KILL_AT in the
environment, as in `Commit:before:3`: before it commits for the third time. Without KILL_AT it is an
ordinary node.

Points are those of `tests/points.py`, with colons for spaces: `replace:head:2`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from demoloco.main import main
from tests.points import (
    Homes,
    Watch,
    watch_disk,
    watch_driver,
    watch_process_worker,
)

KILL_AT = os.environ.get("KILL_AT", "")


def watch(home: Path) -> None:
    """Die at the point, at once and without a word; the worker and p2pd are left to notice."""
    words, _, times = KILL_AT.rpartition(":")
    name, left = words.replace(":", " "), Counter({words.replace(":", " "): int(times)})

    def reached(point: str) -> None:
        left[point] -= 1
        if point == name and left[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    homes = Homes()
    homes.add(Watch(home, reached))
    watch_disk(homes)
    watch_driver(homes)
    watch_process_worker(reached)


if __name__ == "__main__":
    if KILL_AT:
        watch(Path(sys.argv[sys.argv.index("--home") + 1]))
    sys.exit(main(sys.argv[1:]))
