"""What this machine's kernel is set to do with TCP connections."""

from __future__ import annotations

from pathlib import Path

SYSCTL = Path("/proc/sys/net/ipv4")
NEVER_IDLE = ("bbr",)
"""Congestion controls that do not begin anew after a pause."""


def begins_slowly(sysctl: Path = SYSCTL) -> bool:
    """Whether this machine's connections do so after a pause; where it does not tell: yes."""
    after_idle = tcp_setting("tcp_slow_start_after_idle", sysctl)
    control = tcp_setting("tcp_congestion_control", sysctl)
    if after_idle is None or control is None:
        return True
    return after_idle != "0" and control not in NEVER_IDLE


def tcp_setting(name: str, sysctl: Path = SYSCTL) -> str | None:
    """What the kernel says of it; None where it does not tell."""
    try:
        return (sysctl / name).read_text().strip()
    except OSError:
        return None
