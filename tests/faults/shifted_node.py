"""demoloco-node on a machine whose clock is off: `shifted_node.py SECONDS argument …`.

For machines without `faketime`. The shift is in Python alone, which is all that asks for the time:
p2pd has nothing that depends on a minute.
"""

from __future__ import annotations

import sys
import time

SECONDS = float(sys.argv[1])
_right = time.time


def _shifted() -> float:
    return _right() + SECONDS


time.time = _shifted  # before anything takes it by name

from demoloco.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
