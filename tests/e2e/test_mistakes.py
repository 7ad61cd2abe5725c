"""What a user can do wrong: exit code 2, one message that says what to do, nothing lost.

All mistakes are made against one node that trains, a few at a time; each test looks at one.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.daemons import LISTEN, Daemon, World, await_end, sets

pytestmark = pytest.mark.timeout(400)

OWN = Path(__file__).with_name("own_task.py")
TASK = ("--task", "own_task:Sine")
AT_ONCE = 3
SECONDS = 150.0
STRANGER = "12D3KooWSuUJrNRa4MNzRNzRd4iecF5bomjFjK5bxigJhGgR4s48"


@dataclass(frozen=True)
class Mistake:
    """A command line, and what the message must say: the mistake, then what to do."""

    arguments: tuple[str, ...]
    says: tuple[str, ...]
    home: str = ""  # an existing one
    cwd: str = "."


MISTAKES = {
    "a malformed address": Mistake(
        ("--peers", "127.0.0.1:31337"),
        ("'127.0.0.1:31337' is not a multiaddr", "/ip4/127.0.0.1/tcp/31337/p2p/<peer id>"),
    ),
    "an address without a peer id": Mistake(
        ("--peers", "/ip4/127.0.0.1/tcp/31337"),
        ("does not say which node it is", "demoloco status"),
    ),
    "a peer that refuses": Mistake(
        ("--peers", f"/ip4/127.0.0.1/tcp/{{refusing_port}}/p2p/{STRANGER}"),
        ("/tcp/{refusing_port}/", "connection refused", "is that node running"),
    ),
    "a right address with a wrong peer id": Mistake(
        ("--peers", f"/ip4/127.0.0.1/tcp/{{port}}/p2p/{STRANGER}"),
        (f"{STRANGER}: another peer answers", "{peer_id}", "take the address that"),
    ),
    "a home that holds another run": Mistake(
        ("--peers", "{address}"),
        ("this home holds run", "the peers train run {run}", "--home DIR"),
        home="other",
    ),
    "a home in use": Mistake(
        (), ("is in use by process {pid}", "stop that node or choose another --home"), home="peer"
    ),
    "a port in use": Mistake(
        ("--listen", "/ip4/127.0.0.1/tcp/{port}"),
        ("port {port} is in use", "listen on another port"),
    ),
    "a task that cannot be imported": Mistake(
        ("--task", "nowhere:Task"), ("there is no module 'nowhere'", "fix: start the node in")
    ),
    "an argument that the task does not take": Mistake(
        ("--set", "task.dept=3"), ("no argument 'dept'", "did you mean 'depth'", "fix:")
    ),
    "another model under the task's name": Mistake(
        ("--peers", "{address}", *TASK),
        ("not the run's model", "0.weight", "install the version of the task"),
        cwd="changed",
    ),
    "an unknown setting": Mistake(
        ("--set", "inner_step=3"), ("unknown setting 'inner_step'", "did you mean inner_steps?")
    ),
    "a value out of bounds": Mistake(
        ("--set", "inner_steps=0"), ("inner_steps = 0 is out of bounds", "leave it out")
    ),
    "settings that contradict the run": Mistake(
        ("--peers", "{address}", *TASK, "--set", "inner_steps=21"),
        ("inner_steps is 21 here and 200 in the run", "leave them out"),
    ),
    "somebody's code without a word": Mistake(
        ("--peers", "{address}"),
        ("trains own_task:Sine", "code of somebody's own", "add --task own_task:Sine"),
    ),
}

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Scene:
    """The node that the mistakes are made against, and what came of each."""

    place: World
    peer: Daemon
    facts: dict[str, str]
    other: dict[str, str]  # the files of the other run's home, before
    done: dict[str, Future[Done]]


@pytest.fixture(scope="module")
def scene(place: World) -> Iterator[Scene]:
    _write_tasks(place)
    peer = place.daemon("peer").start(*TASK, *sets(threads=1, inner_steps=200, evaluate_every=0))
    made = place.run("demoloco-node", *_home(place, "other"), *sets(stop_after=1, **_SMALL))
    assert made.returncode == 0, made.stderr
    with socket.socket() as refusing, ThreadPoolExecutor(AT_ONCE) as pool:
        refusing.bind(("127.0.0.1", 0))  # and never listens
        facts = _facts(peer) | {"refusing_port": str(refusing.getsockname()[1])}
        other = _files(place.root / "other")
        done = {name: pool.submit(_make, place, name, facts) for name in MISTAKES}
        yield Scene(place, peer, facts, other, done)


_SMALL = {"inner_steps": 2, "task__depth": 1, "task__width": 64, "threads": 1}


def _write_tasks(place: World) -> None:
    shutil.copy(OWN, place.root)
    changed = place.root / "changed"
    changed.mkdir()
    (changed / OWN.name).write_text(OWN.read_text().replace("64", "32"))


def _facts(peer: Daemon) -> dict[str, str]:
    status = peer.ready()
    return {
        "address": status.addresses[0],
        "port": status.addresses[0].split("/")[4],
        "peer_id": status.peer_id,
        "run": status.run_id[:8],
        "pid": str(peer.pid),
    }


def _home(place: World, name: str) -> list[str]:
    return ["--home", str(place.root / name), "--listen", LISTEN]


def _make(place: World, name: str, facts: dict[str, str]) -> Done:
    mistake = MISTAKES[name]
    home = mistake.home or f"h{list(MISTAKES).index(name)}"
    given = [argument.format_map(facts) for argument in mistake.arguments]
    where = ["--home", str(place.root / home)] if "--listen" in given else _home(place, home)
    return place.run(
        "demoloco-node",
        *where,
        *given,
        *sets(threads=1),
        seconds=SECONDS,
        cwd=place.root / mistake.cwd,
    )


def _files(home: Path) -> dict[str, str]:
    """Their digests; the lock says who used the home last."""
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in home.rglob("*")
        if path.is_file() and path.name != "lock"
    }


LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+Z \S")  # what the node did until it knew


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_message_that_says_what_to_do(scene: Scene, name: str) -> None:
    done = scene.done[name].result()
    assert done.returncode == 2, done.stderr
    before, *messages = done.stderr.split("demoloco-node: ")
    assert len(messages) == 1
    assert len(messages[0].splitlines()) <= 3
    assert all(LOG_LINE.match(line) for line in before.splitlines()), before
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for words in MISTAKES[name].says:
        assert words.format_map(scene.facts) in done.stderr


def test_a_home_that_was_refused_is_as_it_was(scene: Scene) -> None:
    scene.done["a home that holds another run"].result()
    assert scene.other
    assert _files(scene.place.root / "other") == scene.other


def test_the_node_that_was_asked_trains_on(scene: Scene) -> None:
    for done in scene.done.values():
        done.result()
    then = scene.peer.status.round
    assert scene.peer.wait_for_round(then + 2).rounds_contributed >= then + 2


def test_a_mistake_leaves_no_process(scene: Scene) -> None:
    for done in scene.done.values():
        done.result()
    peer = psutil.Process(scene.peer.pid)
    own = {peer, *peer.children(recursive=True)}
    assert await_end([one for one in scene.place.processes() if one not in own]) == []
