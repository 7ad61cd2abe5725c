"""demoloco-node on a disk that a test commands: `odd_disk_node.py FILE argument …`.

FILE says what its fsync does from now on: `slow SECONDS`, `read-only`, or nothing. A sync in the
event loop's thread, where it would hold up every word to the others, is told on stderr.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import time
from pathlib import Path

ORDER = Path(sys.argv[1])
_fsync = os.fsync


def _odd_fsync(descriptor: int) -> None:
    order, _, seconds = ORDER.read_text().partition(" ")
    if order == "read-only":
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if order == "slow":
        if asyncio._get_running_loop() is not None:
            print(json.dumps({"event": "fsync in the loop"}), file=sys.stderr)
        time.sleep(float(seconds))
    _fsync(descriptor)


os.fsync = _odd_fsync

from demoloco.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
