"""What the kernel knows of the clock: adjtimex, read only."""

from __future__ import annotations

import ctypes
import sys

from demoloco.doctor.words import Facts

STA_UNSYNC = 0x40
TIME_ERROR = 5


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # microseconds
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def probe_clock() -> Facts:
    """`synchronised` is None where it cannot be asked."""
    unknown = {"synchronised": None, "max_error_seconds": None}
    if sys.platform != "linux":
        return unknown
    asked = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    if state < 0:
        return unknown
    synchronised = state != TIME_ERROR and not asked.status & STA_UNSYNC
    return {"synchronised": synchronised, "max_error_seconds": asked.maxerror / 1e6}
