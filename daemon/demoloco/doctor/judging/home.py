"""What did earlier nodes leave in this home?"""

from __future__ import annotations

from demoloco.doctor.words import Facts, Verdict, fail, ok, warn


def judge_home(home: Facts) -> Verdict:
    """A dead node's socket is harmless, its libp2p daemon is not: it holds the port."""
    where = home["home"]
    if home["error"]:
        return fail(f"{where}: {home['error']}", "choose another home with --home DIR")
    if home["orphans"]:
        pids = " ".join(map(str, home["orphans"]))
        return warn(
            f"a libp2p daemon of a node that died still runs: process {pids}", f"kill {pids}"
        )
    if home["node_pid"]:
        return ok(f"{where}: a node runs here, process {home['node_pid']}")
    if home["stale_socket"]:
        return warn(
            f"{where}: the last node here ended without a word, its socket is left",
            f"nothing but to start it again: demoloco-node --home {where} goes on where it was",
        )
    return ok(f"{where}: {'no node runs here' if home['exists'] else 'a new home'}")
