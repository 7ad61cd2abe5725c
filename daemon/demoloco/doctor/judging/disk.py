"""Is the home's disk large, quick and complete enough?"""

from __future__ import annotations

from demoloco.doctor.words import Facts, Verdict, byte_size, fail, ok, span, warn

LITTLE_BYTES = 5e9
TOO_LITTLE_BYTES = 0.5e9
SLOW_BYTES_A_SECOND = 10e6
SLOW_SYNC_SECONDS = 0.25
ELSEWHERE = "choose a home on a local disk with --home DIR"


def judge_disk(disk: Facts) -> Verdict:
    if disk["error"]:
        return fail(
            f"{disk['path']}: {disk['error']}", "choose a home that you may write in: --home"
        )
    lacks = [
        name for name, key in (("hard links", "hard_links"), ("mmap", "mmap")) if not disk[key]
    ]
    if lacks:
        return fail(f"{disk['filesystem']} has no {' and no '.join(lacks)}", ELSEWHERE)
    free, rate = disk["free_bytes"], disk["write_bytes_a_second"]
    said = (
        f"{byte_size(free)} free on {disk['filesystem']}, writes {byte_size(rate)}/s,"
        f" a sync takes {span(disk['sync_seconds'])}"
    )
    if free < TOO_LITTLE_BYTES:
        return fail(said, "free some room, or choose another home with --home DIR")
    if free < LITTLE_BYTES:
        return warn(
            f"{said}; a home keeps about 30 bytes for each parameter of the model",
            "free some room, or choose another home with --home DIR",
        )
    if rate < SLOW_BYTES_A_SECOND or disk["sync_seconds"] > SLOW_SYNC_SECONDS:
        return warn(f"{said}: slow, rounds wait for it", ELSEWHERE)
    return ok(said)
