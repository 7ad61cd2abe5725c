"""How does the outside see this machine?"""

from __future__ import annotations

import ipaddress

from demoloco.doctor.words import Facts, Verdict, ok, warn

CARRIER = ipaddress.ip_network("100.64.0.0/10")
FORWARD = (
    "forward the port on the router (or turn on its UPnP) and start the node with"
    " --announce /ip4/PUBLIC-ADDRESS/tcp/PORT"
)
ONLY_OUTGOING = "others reach you only through a relay or over your own outgoing connections"


def kind_of(host: str) -> str:
    """loopback | private | carrier | public, for the text of an IP address."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return "private"
    if ip.is_loopback:
        return "loopback"
    if ip.version == 4 and ip in CARRIER:
        return "carrier"
    return "public" if ip.is_global else "private"


def judge_nat(nat: Facts, dial_back: Facts | None) -> Verdict:
    """By the addresses that libp2p shows, and by the one that the peer sees, if there is a peer."""
    hosts = [address.split("/")[2] for address in nat["addresses"]]
    kinds = {kind_of(host) for host in hosts}
    if hosts and kinds == {"loopback"}:
        return warn("listens on this machine alone", "--listen /ip4/0.0.0.0/tcp/0 for all to reach")
    public = next((host for host in hosts if kind_of(host) == "public"), None)
    if public:
        return ok(f"public address {public}")
    back = dial_back or {}
    seen = back.get("observed_host", "")
    if back.get("outcome") == "open" and kind_of(seen) == "public":
        return ok(f"behind NAT, and the peer comes in: --announce /ip4/{seen}/tcp/{back['port']}")
    shown = next((host for host in hosts if kind_of(host) != "loopback"), "none")
    if "carrier" in kinds or kind_of(seen or "10.0.0.1") == "carrier":
        return warn(
            f"behind the provider's NAT ({shown}, no port can be forwarded): {ONLY_OUTGOING}",
            "IPv6, a public address from the provider, or a peer that everybody can dial",
        )
    if seen and seen not in hosts:
        return warn(
            f"behind NAT: {shown} here, {seen} for the peer, no mapping seen: {ONLY_OUTGOING}",
            FORWARD,
        )
    return warn(f"private address {shown}, no mapping seen: {ONLY_OUTGOING}", FORWARD)
