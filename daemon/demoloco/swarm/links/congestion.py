"""What this machine's kernel is set to do with TCP connections."""

from __future__ import annotations

from pathlib import Path

SYSCTL = Path("/proc/sys/net/ipv4")
NEVER_IDLE = ("bbr",)
"""Congestion controls that do not begin anew after a pause."""


def begins_slowly(sysctl: Path = SYSCTL) -> bool:
    """Whether this machine's connections do so after a pause; where it does not tell: yes."""
    try:
        after_idle = (sysctl / "tcp_slow_start_after_idle").read_text().strip()
        control = (sysctl / "tcp_congestion_control").read_text().strip()
    except OSError:
        return True
    return after_idle != "0" and control not in NEVER_IDLE
