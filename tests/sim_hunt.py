"""Hunt for seeds whose schedule breaks a promise: `make sim SEEDS=10000`.

Rule: a seed that fails is printed with the line that plays it again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback

from tests import schedule


def play(seed: int) -> tuple[int, str | None]:
    """The seed, and what went wrong."""
    try:
        schedule.run(seed)
    except Exception:
        return seed, traceback.format_exc(limit=-4)
    return seed, None


def hunt(first: int, seeds: int, jobs: int) -> list[int]:
    """The seeds that fail."""
    failed, begun = [], time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        todo = pool.imap_unordered(play, range(first, first + seeds), chunksize=8)
        for done, (seed, fault) in enumerate(todo, start=1):
            if fault is not None:
                failed.append(seed)
                print(f"seed {seed} fails; again: {sys.executable} -m tests.sim_hunt --seed {seed}")
                print(fault, flush=True)
            if done % 100 == 0:
                seconds = time.monotonic() - begun
                print(f"{done} seeds, {len(failed)} failed, {seconds:.0f} s", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", type=int, help="play this one, and show its error in full")
    args = parser.parse_args()
    if args.seed is not None:
        schedule.run(args.seed)
        print(f"seed {args.seed} holds")
        return 0
    failed = hunt(args.first, args.seeds, args.jobs)
    print(f"{args.seeds} seeds from {args.first}: {len(failed)} failed {failed or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
