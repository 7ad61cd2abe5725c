"""The `demoloco` command: a function per verb.

Rule: results go to stdout, everything else to stderr. What is heavy is imported by the verb that
needs it, so that help and mistakes are answered at once. Exit codes: 0 done, 1 failed, 2 wrong
usage, 3 no node is running (status).
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from demoloco_client.sdk import NodeClient

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NOT_RUNNING = 3

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train one PyTorch model together: look at the nodes of this machine and steer them.",
)

Home = Annotated[
    Path | None,
    typer.Option("--home", help="The node's home directory.", show_default="$DEMOLOCO_HOME"),
]
Node = Annotated[
    str | None, typer.Option("--node", help="A node by its name among this user's homes.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON, under the names of control.proto.")]


class Which(StrEnum):
    """A model of a node."""

    OWN = "own"
    AGREED = "agreed"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            print(f"demoloco {metadata.version('demoloco-node')}")
        except metadata.PackageNotFoundError:
            print("demoloco, not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and stop.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Steer the nodes of this machine; the options that belong to no verb."""


@app.command()
def demo(
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Nodes to start.")] = 2,
    rounds: Annotated[
        int, typer.Option(min=0, help="Stop after so many that all nodes are in; 0 = at Ctrl-C.")
    ] = 0,
    task: Annotated[str, typer.Option(help="What to train: a built-in task.")] = "lm",
    home: Annotated[
        Path | None, typer.Option(help="Where the nodes live; kept, and continued the next time.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the nodes' homes afterwards.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE for the run, like demoloco-node's.")
    ] = None,
) -> None:
    """Train a real model with several nodes on this machine; nothing to set up."""
    from demoloco_client.demo import Plan, run

    plan = Plan(
        nodes=nodes, rounds=rounds, task=task, home=home, keep=keep, settings=tuple(settings or ())
    )
    raise typer.Exit(run(plan))


@app.command()
def status(home: Home = None, node: Node = None, json: Json = False) -> None:
    """Show what a node does now."""
    from demoloco_client import render, sdk

    with _connected(home, node) as client:
        try:
            reply = client.status()
        except sdk.NoNodeError as error:
            _fail(error, EXIT_NOT_RUNNING)
        except sdk.ClientError as error:
            _fail(error)
    if json:
        _print_json(render.as_dict(reply), indent=2)
        return
    from rich.console import Console

    # uncropped, so that the join command can be copied however narrow the terminal is
    Console(highlight=False).print(render.status_screen(reply), crop=False)


@app.command()
def watch(
    home: Home = None,
    node: Node = None,
    json: Json = False,
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds.")] = 1.0,
) -> None:
    """Follow what a node does, until Ctrl-C or until it leaves; with --json one object a line."""
    from demoloco_client import render, sdk

    with _connected(home, node) as client:
        try:
            if json:
                for reply in client.watch(interval):
                    _print_json(render.as_dict(reply), indent=None)
            elif sys.stdout.isatty():
                _watch_screen(client, interval)
            else:
                for reply in client.watch(interval):
                    print(render.status_line(reply), flush=True)
        except sdk.ClientError as error:
            _fail(error)
        except KeyboardInterrupt:
            raise typer.Exit from None
    print("the node has left", file=sys.stderr)


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help="The file to write, for torch.load.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="The mean of the live members' models, measured.")
    ] = False,
    which: Annotated[
        Which | None, typer.Option(help="The node's own model, or the agreed state's.")
    ] = None,
    format: Annotated[str, typer.Option(help="How the file is written: torch.")] = "torch",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    patience: Annotated[
        float, typer.Option(min=1, max=86400, help="Seconds for the members to give their models.")
    ] = 300.0,
    home: Home = None,
    node: Node = None,
    json: Json = False,
) -> None:
    """Write a model to a file while the node trains on; with --merge averaged over the members."""
    if merge and which is not None:
        raise typer.BadParameter("--merge writes the merged model; leave out --which")
    from demoloco_client import sdk
    from demoloco_client.export import Ticker, as_json, show
    from demoloco_proto.v1.control_pb2 import ExportRequest

    request = ExportRequest(
        which=which or "", merge=merge, format=format, patience_seconds=patience
    )
    with _connected(home, node) as client:
        ticker = Ticker()
        try:
            result = client.export(out, request, force=force, heard=ticker.hear)
        except sdk.ClientError as error:
            _fail(error, EXIT_USAGE if isinstance(error, sdk.TargetError) else EXIT_FAILURE)
        finally:
            ticker.stop()
    if json:
        _print_json(as_json(result, out.absolute()), indent=2)
    else:
        show(result, out)


@app.command()
def leave(
    home: Home = None,
    node: Node = None,
    now: Annotated[bool, typer.Option("--now", help="Do not contribute first.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the node is gone.")] = False,
) -> None:
    """Let a node contribute what it has done, say goodbye and stop."""
    from demoloco_client import sdk

    with _connected(home, node) as client:
        try:
            client.leave(now=now)
        except sdk.ClientError as error:
            _fail(error)
        print("the node stops" if now else "the node contributes and leaves", file=sys.stderr)
        if wait:
            client.wait_until_gone()
            print("the node is gone", file=sys.stderr)


@app.command()
def doctor(
    peer: Annotated[
        str, typer.Option("--peer", metavar="ADDR", help="A peer to try: its full multiaddr.")
    ] = "",
    home: Home = None,
    node: Node = None,
    listen: Annotated[
        list[str] | None, typer.Option("--listen", metavar="ADDR", help="As demoloco-node's.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON, with all facts.")] = False,
) -> None:
    """Examine this machine, and the way to a peer; no node needs to run."""
    from demoloco_client import paths
    from demoloco_client.doctor import Wish, run

    chosen = _home_meant(home, node) or paths.default_home()
    wish = Wish(home=chosen.expanduser(), listen=tuple(listen or ()), peer=peer)
    raise typer.Exit(run(wish, json_wanted=json))


def _watch_screen(client: NodeClient, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from demoloco_client import render

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for reply in client.watch(interval):
            live.update(render.status_screen(reply), refresh=True)


def _home_meant(home: Path | None, node: str | None) -> Path | None:
    from demoloco_client import paths

    if home is not None and node is not None:
        raise typer.BadParameter("give --home or --node, not both")
    try:
        return paths.home_of(node) if node is not None else home
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _connected(home: Path | None, node: str | None) -> NodeClient:
    chosen = _home_meant(home, node)
    from demoloco_client.sdk import ClientError, NodeClient

    try:
        return NodeClient(chosen.expanduser() if chosen else None)
    except ClientError as error:
        _fail(error)


def _print_json(value: object, *, indent: int | None) -> None:
    import json

    print(json.dumps(value, indent=indent), flush=True)


def _fail(error: Exception, code: int = EXIT_FAILURE) -> NoReturn:
    print(f"demoloco: {error}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="demoloco")


if __name__ == "__main__":
    main()
