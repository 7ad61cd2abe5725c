"""What a host hands to the router: an IPv4 packet behind a virtio header, often many TCP segments.

Rule: a packet's size is what it takes on a real wire, with the headers of each segment.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.wanlab.links import Port

VNET = struct.Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
IP_AT = VNET.size
DESTINATION = slice(IP_AT + 16, IP_AT + 20)
MAX_READ = IP_AT + 65535
_NEEDS_CSUM = 1
_FIN_PSH, _CWR = 0x09, 0x80


def _fold(total: int) -> int:
    """A one's complement sum in 16 bits."""
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)


class Packet:
    """`segments` TCP segments of at most `mss` bytes each, or one packet of whatever kind."""

    __slots__ = ("data", "dst", "header", "mss", "segments", "size", "src")

    def __init__(self, data: bytes, src: Port, dst: Port) -> None:
        self.data, self.src, self.dst = data, src, dst
        length = len(data) - IP_AT
        if data[1] == 0:  # gso_type: goes as it is
            self.size, self.segments, self.mss, self.header = length, 1, length, 0
            return
        self.mss = data[4] | data[5] << 8
        ip_header = (data[IP_AT] & 15) * 4
        self.header = ip_header + (data[IP_AT + ip_header + 12] >> 4) * 4
        payload = length - self.header
        self.segments = -(-payload // self.mss)
        self.size = payload + self.segments * self.header

    def cut(self, first: int, count: int) -> Packet:
        """Segments first … first+count-1 as a packet of their own, with checksums that are right.

        Both sums are updated, not computed anew. The IP header's is whole; TCP's covers only the
        pseudo-header so far, for the card does the rest, and the length is a part of that.
        """
        if count >= self.segments:
            return self
        data, mss = self.data, self.mss
        payload_at = IP_AT + self.header
        start = payload_at + first * mss
        stop = min(start + count * mss, len(data))
        head = bytearray(data[:payload_at])
        flags, kind, hdr_len, _, csum_start, csum_offset = VNET.unpack_from(head)
        if stop - start <= mss:
            VNET.pack_into(head, 0, flags, 0, hdr_len, 0, csum_start, csum_offset)
        else:
            VNET.pack_into(head, 0, flags, kind, hdr_len, mss, csum_start, csum_offset)
        before, after = len(data) - IP_AT, self.header + stop - start
        struct.pack_into(">H", head, IP_AT + 2, after)
        (ip_sum,) = struct.unpack_from(">H", head, IP_AT + 10)
        ip_sum = ~_fold((~ip_sum & 0xFFFF) + (~before & 0xFFFF) + after) & 0xFFFF
        struct.pack_into(">H", head, IP_AT + 10, ip_sum)
        if flags & _NEEDS_CSUM:
            at = IP_AT + csum_start + csum_offset
            (tcp_sum,) = struct.unpack_from(">H", head, at)
            shorter = (~(before - csum_start) & 0xFFFF) + after - csum_start
            struct.pack_into(">H", head, at, _fold(tcp_sum + shorter))
        tcp_at = IP_AT + (head[IP_AT] & 15) * 4
        (sequence,) = struct.unpack_from(">I", head, tcp_at + 4)
        struct.pack_into(">I", head, tcp_at + 4, (sequence + first * mss) & 0xFFFFFFFF)
        if stop < len(data):
            head[tcp_at + 13] &= ~_FIN_PSH
        if first > 0:
            head[tcp_at + 13] &= ~_CWR
        return Packet(bytes(head) + data[start:stop], self.src, self.dst)
