"""Multiaddrs as people write them: checked here, before anything is started or dialled.

Rule: text in, a value or a ConfigError that shows the right form out.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from dataclasses import dataclass

from demoloco.bounds import peer_to_raw
from demoloco.errors import ConfigError
from demoloco.types import PeerId

HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
TRANSPORTS = ("tcp", "udp")
FORM = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…"
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_HOST_PORT = re.compile(r"(?:\w+://)?\[?([\w.:-]+?)\]?:(\d{1,5})/?")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a peer can be dialled, and who must answer there."""

    peer: PeerId
    address: str  # without /p2p/…

    def __str__(self) -> str:
        return f"{self.address}/p2p/{self.peer}"


def parse_peer(text: str) -> PeerAddress:
    """An address to dial.

    Raises: ConfigError that says what is wrong and what was probably meant.
    """
    address, _, name = text.strip().rpartition("/p2p/")
    if not address:
        raise _refusal(text, _guess_peer(text))
    _check_name(text, name)
    direct, relayed, rest = address.partition("/p2p-circuit")
    if relayed:
        if rest:
            raise _refusal(text, "nothing may stand between /p2p-circuit and /p2p/")
        relay = parse_peer(direct)
        return PeerAddress(PeerId(name), f"{relay}/p2p-circuit")
    port = _check_transport(text, address)
    if port == 0:
        raise _refusal(
            text, "port 0 cannot be dialled; take the address that the peer's node shows"
        )
    return PeerAddress(PeerId(name), address)


def parse_listen(text: str) -> str:
    """An address to listen on; port 0 means any.

    Raises: ConfigError.
    """
    address = text.strip()
    if "/p2p/" in address:
        raise _refusal(text, f"without /p2p/…, as {address.partition('/p2p/')[0]}")
    _check_transport(text, address)
    if not address.startswith(("/ip4/", "/ip6/")):
        raise _refusal(
            text, "a node listens on an IP address of its machine, as /ip4/0.0.0.0/tcp/4001"
        )
    return address


def parse_announce(text: str) -> str:
    """An address to tell others.

    Raises: ConfigError.
    """
    address = text.strip()
    if "/p2p/" in address:
        raise _refusal(text, f"without /p2p/…, as {address.partition('/p2p/')[0]}")
    if _check_transport(text, address) == 0:
        raise _refusal(text, "an announced address needs the port at which others reach this node")
    return address


def tcp_host_port(address: str) -> tuple[str, int] | None:
    """Host and port of a checked TCP address, else None."""
    _, host_kind, host, transport, port = address.split("/")[:5]
    return (host, int(port)) if transport == "tcp" and host_kind in ("ip4", "ip6") else None


def is_direct_tcp(address: str) -> bool:
    """Whether it is an IP address and a TCP port, and nothing else."""
    parts = address.split("/")
    return len(parts) == 5 and parts[1] in ("ip4", "ip6") and parts[3] == "tcp"


def is_direct_ip(address: str) -> bool:
    """Whether it begins with an IP address and goes through no relay."""
    return address.startswith(("/ip4/", "/ip6/")) and "/p2p-circuit" not in address


def is_loopback(address: str) -> bool:
    """Whether nobody but this machine can dial it."""
    return address.startswith(("/ip4/127.", "/ip6/::1/"))


def with_port(address: str, port: int) -> str:
    """The same checked address with another port."""
    parts = address.split("/")
    parts[4] = str(port)
    return "/".join(parts)


def _check_transport(text: str, address: str) -> int:
    parts = address.split("/")
    if parts[0] or len(parts) < 5:
        raise _refusal(text, _guess_address(text))
    _, host_kind, host, transport, port, *rest = parts
    if host_kind not in HOSTS:
        raise _refusal(text, _nearest(host_kind, HOSTS))
    _check_host(text, host_kind, host)
    if transport not in TRANSPORTS:
        raise _refusal(text, _nearest(transport, TRANSPORTS))
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise _refusal(text, f"{port!r} is not a port; ports are 0 to 65535")
    if transport == "udp" and rest != ["quic-v1"]:
        raise _refusal(text, f"UDP carries QUIC: /{host_kind}/{host}/udp/{port}/quic-v1")
    if transport == "tcp" and rest:
        raise _refusal(text, f"nothing may follow the port, but /{'/'.join(rest)} does")
    return int(port)


def _check_host(text: str, host_kind: str, host: str) -> None:
    try:
        if host_kind == "ip4":
            ipaddress.IPv4Address(host)
        elif host_kind == "ip6":
            ipaddress.IPv6Address(host)
        elif not _NAME.fullmatch(host):
            raise ValueError(f"{host!r} is not a host name")
    except ValueError as error:
        hint = (
            f"/dns/{host}/… for a host name"
            if host_kind == "ip4" and _is_name(host)
            else str(error)
        )
        raise _refusal(text, hint) from None


def _check_name(text: str, name: str) -> None:
    try:
        peer_to_raw(PeerId(name))
    except ValueError:
        raise _refusal(
            text, f"{name!r} is not a peer id of this network: 52 characters from 12D3KooW on"
        ) from None


def _is_name(host: str) -> bool:
    return bool(_NAME.fullmatch(host)) and any(character.isalpha() for character in host)


def _guess_peer(text: str) -> str:
    address = text.strip().rstrip("/")
    if address.startswith(tuple(f"/{kind}/" for kind in HOSTS)):
        return f"did you mean {address}/p2p/<peer id>? That node prints its address when it starts"
    return _guess_address(text)


def _guess_address(text: str) -> str:
    found = _HOST_PORT.fullmatch(text.strip())
    if found is None:
        slashed = "/" + text.strip().lstrip("/")
        if slashed != text.strip() and slashed.count("/") > 3:
            return f"did you mean {slashed}?"
        return f"the form is {FORM}"
    host, port = found.groups()
    kind = "ip6" if ":" in host else "dns" if _is_name(host) else "ip4"
    return f"did you mean /{kind}/{host}/tcp/{port}/p2p/<peer id>?"


def _nearest(word: str, words: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.4)
    if near:
        return f"did you mean /{near[0]}/ instead of /{word}/?"
    return f"{word!r} is not one of {', '.join(words)}"


def _refusal(text: str, hint: str) -> ConfigError:
    return ConfigError(f"{text!r} is not an address that can be used: {hint}")
