"""What the doctor is asked to look at.

Rule: checked before anything is probed; it travels to the probes as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from demoloco.settings import load
from demoloco.swarm.addresses import parse_listen, parse_peer


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The node that is to run here, and the peer that it is to meet ("" = none)."""

    home: str
    listen: tuple[str, ...]
    peer: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        words = json.loads(text)
        return cls(home=words["home"], listen=tuple(words["listen"]), peer=words["peer"])


def make_plan(
    home: Path | None, listen: Sequence[str], peer: str, environ: Mapping[str, str]
) -> Plan:
    """The plan, with the node's own settings for what is not given.

    Raises: ConfigError.
    """
    flags = {"home": home, "listen": tuple(listen) or None}
    config = load(flags, environ).node_config()
    for address in config.listen:
        parse_listen(address)
    if peer:
        parse_peer(peer)
    return Plan(home=str(Path(config.home).absolute()), listen=config.listen, peer=peer.strip())
