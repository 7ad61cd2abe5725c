"""Is this machine's clock right?"""

from __future__ import annotations

from demoloco.doctor.words import Facts, Verdict, fail, ok, span, warn

SET_IT = "sudo timedatectl set-ntp true   (in WSL: sudo hwclock -s)"
SLACK_SECONDS = 1.0
FAR_SECONDS = 600.0
"""Words that nodes leave for each other in the DHT last for ten minutes."""


def judge_clock(kernel: Facts, peer: Facts | None) -> Verdict:
    """Against the peer's clock if there is one, else by what the kernel knows."""
    ahead = peer.get("clock_ahead_seconds") if peer else None
    if ahead is not None:
        return _against_peer(ahead)
    if kernel["synchronised"] is None:
        return ok("whether it is synchronised cannot be asked here; give --peer to compare clocks")
    if not kernel["synchronised"]:
        return warn("nothing keeps this clock synchronised, as far as the kernel knows", SET_IT)
    return ok(f"kept synchronised, at most {span(kernel['max_error_seconds'])} off")


def _against_peer(ahead: float) -> Verdict:
    off = f"{span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the peer's"
    if abs(ahead) < SLACK_SECONDS:
        return ok(off)
    if abs(ahead) < FAR_SECONDS:
        return warn(f"{off}; one of the two is wrong", SET_IT)
    return fail(f"{off}; so far off, nodes do not find each other through the DHT", SET_IT)
