"""`demoloco demo` with the stub in the place of demoloco-node: run_demo.py HOME [ROUNDS [keep]]."""

from __future__ import annotations

import sys
from pathlib import Path

from demoloco_client.demo import Plan, run

STUB = Path(__file__).with_name("stub_node.py")


def main() -> None:
    home = None if sys.argv[1] == "fresh" else Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    plan = Plan(rounds=rounds, home=home, keep="keep" in sys.argv, settings=("inner_steps=5",))
    sys.exit(run(plan, program=[sys.executable, str(STUB)]))


if __name__ == "__main__":
    main()
