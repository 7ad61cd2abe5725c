"""Network namespaces and TUN devices by system calls: no `ip`, no netem, nothing to install.

Rule: what is made here lives as long as a descriptor or a process holds it, and no longer.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

INTERFACE = "wan0"

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_OFFLOADS = 0x01 | 0x02  # checksums and TCP segmentation are left to the router
_GET_FLAGS, _SET_FLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_SET_ADDRESS, _SET_MASK, _SET_MTU, _SET_QUEUE = 0x8916, 0x891C, 0x8922, 0x8943
_TUN_QUEUE_PACKETS = 4000  # what the kernel keeps while the router does not run
_KILL_SECONDS = 5.0
_LOOK_SECONDS = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


def current_namespace() -> int:
    """A descriptor of the calling thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_namespace(namespace: int) -> None:
    """Move the calling thread, and no other."""
    _succeed(_libc.setns(namespace, _CLONE_NEWNET), "setns")


def new_namespace() -> int:
    """Move the calling thread into a namespace of its own; the descriptor keeps that alive."""
    _succeed(_libc.unshare(_CLONE_NEWNET), "unshare")
    return current_namespace()


def _succeed(result: int, call: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")


def allow_congestion_control(name: str) -> None:
    """Let namespaces choose this one; call it in the machine's own namespace.

    A kernel that has `cubic` may allow new namespaces only what the machine itself uses. The list
    is longer afterwards for the whole machine: the one trace that a lab leaves.
    """
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    names = allowed.read_text().split()
    if name not in names:
        allowed.write_text(" ".join([*names, name]))


def make_interface(address: str, mtu: int, congestion_control: str) -> int:
    """In the calling thread's new namespace: lo, and a TUN device with this /24 address.

    The kernel hands TCP data over unsegmented, up to 64 KiB at a time, as it does to a network
    card, and the router cuts it as finely as the link's rate asks for: that is what lets Python
    carry hundreds of Mbit/s.
    """
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tun, _TUNSETIFF, _request(struct.pack("H", _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR)))
    fcntl.ioctl(tun, _TUNSETOFFLOAD, _OFFLOADS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _bring_up(control, "lo")  # without it, bind() to any address succeeds
        fcntl.ioctl(control, _SET_MTU, _request(struct.pack("i", mtu)))
        fcntl.ioctl(control, _SET_QUEUE, _request(struct.pack("i", _TUN_QUEUE_PACKETS)))
        with suppress(OSError):  # a kernel without IPv6
            _sysctl(f"ipv6/conf/{INTERFACE}/disable_ipv6", "1")
        fcntl.ioctl(control, _SET_ADDRESS, _request(_inet(address)))
        fcntl.ioctl(control, _SET_MASK, _request(_inet("255.255.255.0")))
        _bring_up(control, INTERFACE)
    _sysctl("ipv4/tcp_congestion_control", congestion_control)
    _sysctl("ipv4/tcp_no_metrics_save", "1")  # nothing remembered of earlier connections
    return tun


def _request(payload: bytes, name: str = INTERFACE) -> bytes:
    return struct.pack("16s24s", name.encode(), payload)


def _inet(address: str) -> bytes:
    return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(address))


def _bring_up(control: socket.socket, name: str) -> None:
    answer = fcntl.ioctl(control, _GET_FLAGS, _request(b"", name))
    flags = struct.unpack_from("H", answer, 16)[0] | _IFF_UP
    fcntl.ioctl(control, _SET_FLAGS, _request(struct.pack("H", flags), name))


def _sysctl(name: str, value: str) -> None:
    Path("/proc/sys/net", name).write_text(value)


def overrun() -> int:
    """Packets that the kernel dropped in front of this namespace's device: the router was slow."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counters.split()[11])
    return 0


def inode(namespace: int) -> int:
    """What names a namespace."""
    return os.fstat(namespace).st_ino


def processes_in(namespaces: Iterable[int], spare: Iterable[int] = ()) -> list[int]:
    """The processes whose main thread is in a namespace with one of these inodes."""
    wanted, spared = set(namespaces), set(spare)
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in spared:
            with suppress(OSError):  # ended meanwhile, or not ours to look at
                if os.stat(f"/proc/{entry}/ns/net").st_ino in wanted:
                    found.append(int(entry))
    return sorted(found)


def end_processes_in(
    namespaces: Iterable[int], grace_seconds: float, spare: Iterable[int] = ()
) -> None:
    """SIGTERM to each, and SIGKILL to those that are left after the grace time."""
    wanted, spared = set(namespaces), set(spare)
    asked: set[int] = set()
    start = time.monotonic()
    while alive := processes_in(wanted, spared):
        passed = time.monotonic() - start
        if passed > grace_seconds + _KILL_SECONDS:
            return
        for pid in alive:
            if passed > grace_seconds:
                _send(pid, signal.SIGKILL, wanted)
            elif pid not in asked:
                _send(pid, signal.SIGTERM, wanted)
            asked.add(pid)
        time.sleep(_LOOK_SECONDS)


def _send(pid: int, number: int, wanted: set[int]) -> None:
    """To the process only if it is still the one that was seen: the descriptor pins it."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino in wanted:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
