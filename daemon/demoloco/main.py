"""demoloco-node: arguments, configuration, logging, exit codes.

Exit codes: 0 done or left in order, 1 the node failed, 2 the user's mistake, 130 stopped by a
second signal before it had left. Nothing heavy is imported before the arguments are known to be
good.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from demoloco.config import NodeConfig, bytes_a_second
from demoloco.errors import ConfigError, DemolocoError
from demoloco.settings import Settings, load, parse_set
from demoloco.swarm.addresses import parse_announce, parse_listen, parse_peer

if TYPE_CHECKING:
    from demoloco.swarm.identity import Identity
    from demoloco.swarm.port import Swarm

DONE, FAILED, MISTAKE, FORCED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a node until it is done; the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        settings = _settings(arguments)
        node = settings.node_config()
        _check_addresses(node)
        settings.run_config()  # the user's mistakes in it are found before anything starts
        return _run(settings, node)
    except ConfigError as error:
        _say(error)
        return MISTAKE
    except DemolocoError as error:
        _say(error)
        return FAILED


def _leave_early(number: int, frame: FrameType | None) -> None:
    """While Python imports, nothing has begun that would have to be ended."""
    raise SystemExit(DONE)


def _run(settings: Settings, config: NodeConfig) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # the node has its own once it runs
        signal.signal(number, _leave_early)
    # gRPC and OpenMP read them when they are imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads starve the worker
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # strangers at the direct road fill no log
    import uvloop

    from demoloco.node.app import Node
    from demoloco.node.logs import configure_logging

    configure_logging(format=config.log_format, level=config.log_level)
    node = Node(settings, _hivemind_swarm)
    uvloop.run(node.run())
    return FORCED if node.forced else DONE


def _check_addresses(config: NodeConfig) -> None:
    """A mistyped address is told before anything starts. Raises: ConfigError."""
    for parse, given in (
        (parse_peer, config.peers),
        (parse_listen, config.listen),
        (parse_announce, config.announce),
    ):
        for address in given:
            parse(address)


def _hivemind_swarm(
    identity: Identity, config: NodeConfig, listen: tuple[str, ...], known: tuple[str, ...]
) -> Swarm:
    from demoloco.swarm.hivemind.transport import HivemindSwarm, Options  # takes seconds to import

    return HivemindSwarm(
        identity,
        listen=listen,
        announce=config.announce,
        seeds=config.peers,
        known_members=known,
        options=Options(
            exchange=config.exchange,
            direct_port=config.direct_port,
            max_upload=bytes_a_second(config.max_upload, "max_upload"),
            max_download=bytes_a_second(config.max_download, "max_download"),
        ),
    )


def _say(error: DemolocoError) -> None:
    print(f"demoloco-node: {error}", file=sys.stderr)


def _settings(arguments: argparse.Namespace) -> Settings:
    flags = {
        "peers": _many(arguments.peers),
        "home": arguments.home,
        "listen": _many(arguments.listen),
        "announce": _many(arguments.announce),
        "exchange": arguments.exchange,
        "task": arguments.task,
        "device": arguments.device,
        "max_upload": arguments.max_upload,
        "max_download": arguments.max_download,
        "stop_after": arguments.stop_after,
        "log_format": arguments.log_format,
        "log_level": "debug" if arguments.debug else None,
    }
    sets = dict(parse_set(one) for one in arguments.set)
    return load(flags | sets, os.environ, arguments.config)


def _many(groups: list[list[str]] | None) -> tuple[str, ...] | None:
    return tuple(one for group in groups for one in group) if groups else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demoloco-node",
        description="Train one PyTorch model together with peers. Without --peers: go on with"
        " the run of the home, or go on to join by the peers that it was given once; in a new home,"
        " start a new run.",
        epilog="Every setting of the run and the node can be given as --set name=value,"
        " as DEMOLOCO_NAME=value, or in a TOML file with [run], [node] and [task].",
    )
    add = parser.add_argument
    add(
        "--peers", nargs="+", action="append", metavar="ADDR", help="members to join by: multiaddrs"
    )
    add("--home", type=Path, metavar="DIR", help="everything that the node keeps")
    add("--listen", nargs="+", action="append", metavar="ADDR", help="multiaddrs to listen on")
    add("--announce", nargs="+", action="append", metavar="ADDR", help="multiaddrs to tell others")
    add("--exchange", metavar="ROAD", help="how blobs travel: auto, libp2p or grpc")
    add("--task", metavar="NAME", help="a built-in task (lm), or module:attr")
    add("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    add("--device", metavar="DEVICE", help="auto, cpu, cuda or mps")
    add("--max-upload", metavar="RATE", help="send no more than this: 2mbit, 500kbit, 1.5MB/s")
    add("--max-download", metavar="RATE", help="receive no more than this")
    add("--stop-after", type=int, metavar="ROUNDS", help="leave after this many rounds in all")
    add("--log-format", choices=("text", "json"), help="how log lines look")
    add("--debug", action="store_true", help="log more, and tracebacks")
    add("--version", action="version", version=_version())
    return parser


def _version() -> str:
    from demoloco.node.version import software_version

    return f"demoloco-node {software_version()}"


if __name__ == "__main__":
    sys.exit(main())
