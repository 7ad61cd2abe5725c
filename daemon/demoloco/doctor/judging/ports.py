"""Can the node listen where it is to listen?"""

from __future__ import annotations

from demoloco.doctor.words import Facts, Verdict, fail, ok, warn


def judge_ports(ports: Facts, home: Facts) -> Verdict:
    """A port that this home's own running node has is as it should be."""
    pid, last = home["node_pid"], ports["last_port"]
    held = bool(pid) and any(one["port"] in (0, last) for one in ports["listen"])
    troubles = [
        one for one in ports["listen"] if one["error"] and not (pid and one["port"] == last)
    ]
    if troubles:
        return fail(troubles[0]["error"], "--listen with another port, or the port freed")
    if held:
        return ok(f"port {last} is held by the node of this home, process {pid}")
    if ports["last_port_free"] is False and any(one["port"] == 0 for one in ports["listen"]):
        return warn(
            f"port {last} of the last start is taken by another process; the node will listen on"
            " another one",
            f"stop what has port {last}, or tell your peers the new address",
        )
    return ok(f"free: {', '.join(_named(one['address'], last) for one in ports['listen'])}")


def _named(address: str, last: int | None) -> str:
    if not address.endswith("/tcp/0"):
        return address
    return f"{address} (again port {last})" if last else f"{address} (any port)"
