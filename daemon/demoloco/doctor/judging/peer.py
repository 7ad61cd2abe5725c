"""Can the peer be reached, can it reach this machine, and how fast is the way?"""

from __future__ import annotations

from demoloco.doctor.words import Facts, Verdict, byte_size, fail, ok, span, warn

THIN_BYTES_A_SECOND = 125_000
SLOW_SECONDS = 0.5
NOT_TRIED = "not tried: the peer was not reached"
UPDATE = "pip install -U demoloco-node on the older of the two"
PEER_LINE = "see the line `peer`"


def judge_peer(peer: Facts) -> Verdict:
    if not peer["reached"]:
        return fail(f"{peer['address']}: {peer['error']}", peer["advice"] or "ask its operator")
    run = f"run {peer['run'][:8]}" if peer["run"] else "no run yet"
    software = f"demoloco {peer['software']}" if peer["software"] else "version not told"
    way = "through a relay, " if peer["relayed"] else ""
    said = f"answers {way}in {span(peer['rtt_seconds'])}: {software}, {run}"
    if peer["rtt_seconds"] > SLOW_SECONDS:
        return warn(f"{said}; that is slow", "a peer that is nearer, if there is one")
    return ok(said)


def judge_dial_back(back: Facts) -> Verdict:
    """Whether the peer could open the port here."""
    if back.get("skipped"):
        return warn(NOT_TRIED, PEER_LINE)
    where = f"port {back['port']} of {back['observed_host'] or 'this machine'}"
    match back["outcome"]:
        case "open":
            return ok(f"the peer opened {where}")
        case "refused" | "silent" | "stranger":
            why = {
                "refused": "the connection was refused",
                "silent": "no answer, as behind a firewall or NAT",
                "stranger": "something else answers there",
            }[back["outcome"]]
            return warn(
                f"the peer could not open {where}: {why}",
                f"open TCP port {back['port']} in the firewall, forward it on the router",
            )
        case "relayed":
            return warn("the peer sees this machine through a relay only", "see the line `nat`")
        case "old":
            return warn("the peer's version dials nobody back", UPDATE)
        case _:
            return warn(f"the peer did not try: {back['error'] or 'no reason told'}", "try again")


def judge_link(link: Facts) -> Verdict:
    """Up and down, as measured against the peer."""
    if link.get("skipped"):
        return warn(NOT_TRIED, PEER_LINE)
    up, down = link["up"], link["down"]
    if up is None or down is None:
        fix = UPDATE if link["old"] else "try again in a minute, or with another peer"
        return warn(f"not measured: {link['error']}", fix)
    said = f"up {_rate(up)}, down {_rate(down)}"
    if min(up, down) < THIN_BYTES_A_SECOND:
        return warn(
            f"{said}: thin, a packet of 1 MB takes {span(1e6 / max(1.0, min(up, down)))}",
            "stop what else uses the link, or give the run more inner_steps between rounds",
        )
    return ok(said)


def _rate(bytes_a_second: float) -> str:
    return f"{byte_size(bytes_a_second)}/s ({bytes_a_second * 8 / 1e6:.3g} Mbit/s)"
