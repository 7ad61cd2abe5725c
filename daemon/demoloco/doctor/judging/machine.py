"""Has this machine what a node needs: memory, open files, a TCP that suits long ways?"""

from __future__ import annotations

from demoloco.doctor.words import Facts, Verdict, byte_size, fail, ok, warn

LITTLE_MEMORY_BYTES = 2e9
NO_MEMORY_BYTES = 0.7e9
FEW_FILES = 1024


def judge_memory(memory: Facts) -> Verdict:
    available, total = memory["available_bytes"], memory["total_bytes"]
    if available is None:
        return ok("how much is free cannot be asked here")
    said = f"{byte_size(available)} free of {byte_size(total)}"
    if available < NO_MEMORY_BYTES:
        return fail(f"{said}: torch alone takes most of it", "end other programs, or add swap")
    if available < LITTLE_MEMORY_BYTES:
        return warn(f"{said}: enough for small models only", "end other programs, or add swap")
    return ok(said)


def judge_files(files: Facts) -> Verdict:
    soft = files["soft"]
    if soft < FEW_FILES:
        return warn(
            f"{soft} files may be open at once; each peer takes some",
            "ulimit -n 4096 before the node is started, LimitNOFILE=4096 in its unit",
        )
    return ok(f"{soft} may be open at once")


def judge_tcp(tcp: Facts) -> Verdict:
    """BBR where packets get lost on long ways, and no slow start after each pause."""
    control = tcp["congestion"]
    if control is None:
        return ok("its settings cannot be asked here")
    said, fixes = [f"{control}"], []
    if control != "bbr":
        said.append("which gives way on long ways that lose packets")
        load = "" if "bbr" in tcp["available"] else "modprobe tcp_bbr && "
        fixes.append(f"{load}sysctl -w net.ipv4.tcp_congestion_control=bbr")
    if tcp["slow_start_after_idle"]:
        said.append("starts slowly again after each pause")
        fixes.append("sysctl -w net.ipv4.tcp_slow_start_after_idle=0")
    if fixes:
        return warn(", ".join(said), f"as root: {' && '.join(fixes)}")
    return ok(f"{control}, no slow start after a pause")
