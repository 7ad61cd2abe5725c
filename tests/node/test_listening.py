"""A port that was had is asked for again."""

from __future__ import annotations

import socket

from demoloco.node.listening import listen_addresses

ANY = "/ip4/0.0.0.0/tcp/0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


async def test_the_last_port_is_asked_for_again() -> None:
    port = free_port()
    last = [f"/ip4/127.0.0.1/tcp/{port}", f"/ip4/10.0.0.1/tcp/{port}"]
    assert await listen_addresses([ANY], last) == (f"/ip4/0.0.0.0/tcp/{port}",)


async def test_a_port_that_another_has_by_now_is_not() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        last = [f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"]
        assert await listen_addresses([ANY], last) == (ANY,)


async def test_a_port_that_the_user_names_stays() -> None:
    wished = ["/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/0/quic"]
    assert await listen_addresses(wished, [f"/ip4/127.0.0.1/tcp/{free_port()}"]) == tuple(wished)


async def test_without_a_last_start_any_port_is_good() -> None:
    assert await listen_addresses([ANY], []) == (ANY,)
