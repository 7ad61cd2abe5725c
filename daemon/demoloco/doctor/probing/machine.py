"""Memory, open files and the kernel's TCP settings."""

from __future__ import annotations

import resource
from pathlib import Path

from demoloco.doctor.words import Facts
from demoloco.swarm.links.congestion import tcp_setting

_CGROUP = Path("/sys/fs/cgroup")


def probe_memory() -> Facts:
    """The least of what the machine and this process's group have free; None where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {"total_bytes": None, "available_bytes": None}
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
    total, available = kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        total, available = min(total, limit), min(available, max(0, limit - used))
    return {"total_bytes": total, "available_bytes": available}


def probe_files() -> Facts:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 1 << 30
    return {
        "soft": unlimited if soft == resource.RLIM_INFINITY else soft,
        "hard": unlimited if hard == resource.RLIM_INFINITY else hard,
    }


def probe_tcp() -> Facts:
    congestion = tcp_setting("tcp_congestion_control")
    return {
        "congestion": congestion,
        "available": (tcp_setting("tcp_available_congestion_control") or "").split(),
        "slow_start_after_idle": tcp_setting("tcp_slow_start_after_idle") == "1",
    }


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdigit() else None
