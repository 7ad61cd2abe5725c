"""A swarm too large to tell all: real meshes over the memory network, on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from demoloco.bounds import MAX_SEQUENCE
from demoloco.swarm import calls
from demoloco.swarm.gossip.rumours import PARTNERS, PUBLISHED_TO, RELAYED_TO, Batch, Silent
from demoloco.swarm.gossip.talk import MAX_OFFERS, MAX_VERSIONS, Talk
from demoloco.swarm.identity import Identity
from demoloco.swarm.memory import MemoryNetwork, MemorySwarm
from demoloco.swarm.port import ManifestHeard, MemberLost, MemberSeen, OffersHeard, SwarmEvent
from demoloco.swarm.service import PeerService
from demoloco.swarm.timing import Timing
from demoloco.swarm.transport import Method
from demoloco.types import Digest, Offer, PeerId, Phase, Round
from demoloco.wire import digest_of, encode_manifest, seal
from tests.contract.swarm_lab import Shelf
from tests.faults.virtual_time import in_virtual_time
from tests.wire.values import DRAFT, MEMBER, OFFER

NODES = 24
RUN = digest_of(b"run")
TIMING = Timing()


class Ear:
    """A node that only listens."""

    def __init__(self, network: MemoryNetwork, address: str, seeds: list[str]) -> None:
        self.swarm = MemorySwarm(
            network, Identity.new(), address=address, seeds=seeds, timing=TIMING
        )
        self.peer = self.swarm.peer_id
        self.said = 0
        self.members: set[PeerId] = set()
        self.lost: list[PeerId] = []
        self.offers: dict[Digest, set[PeerId]] = {}  # packet → holders
        self.manifests: list[Digest] = []

    def hear(self, event: SwarmEvent) -> None:
        match event:
            case MemberSeen(member):
                self.members.add(member.peer)
            case MemberLost(peer):
                self.members.discard(peer)
                self.lost.append(peer)
            case OffersHeard(holder, offers):
                for offer in offers:
                    self.offers.setdefault(offer.packet, set()).add(holder)
            case ManifestHeard(_, manifest):
                self.manifests.append(manifest.digest)

    def speak(self, phase: Phase = Phase.TRAINING) -> None:
        self.swarm.enter(RUN)
        self.said += 1
        here = replace(MEMBER, peer=self.peer, run=RUN, addresses=self.swarm.addresses)
        self.swarm.say(replace(here, phase=phase, sequence=MEMBER.sequence + self.said))


class Swarm:
    """So many nodes that all know one seed, and the calls that travel between them."""

    def __init__(self, nodes: int = NODES, loss: float = 0.0) -> None:
        self.network = MemoryNetwork(7, delay=(0.01, 0.1))
        self.loss = loss
        seed = Ear(self.network, "/memory/seed", [])
        where = f"/memory/seed/p2p/{seed.peer}"
        self.nodes = [seed]
        self.nodes += [Ear(self.network, f"/memory/{i}", [where]) for i in range(1, nodes)]
        self.calls: Counter[tuple[PeerId, Method]] = Counter()

    async def __aenter__(self) -> Swarm:
        for node in self.nodes:
            await node.swarm.start(node.hear, Shelf())
            node.speak()
        await until(lambda: all(len(one.members) == len(self.nodes) - 1 for one in self.nodes))
        self.network.loss = self.loss
        return self

    async def __aexit__(self, *_: object) -> None:
        self.network.loss = 0.0
        for node in self.nodes:
            await node.swarm.stop()

    def count_calls(self, monkeypatch) -> None:
        """From now on, by who calls."""
        answer = PeerService.answer

        def counted(service, peer, method, body):
            self.calls[peer, method] += 1
            return answer(service, peer, method, body)

        monkeypatch.setattr(PeerService, "answer", counted)

    def most_calls(self, method: Method) -> int:
        return max(self.calls[node.peer, method] for node in self.nodes)


async def until(test: Callable[[], bool], seconds: float = 60.0) -> float:
    """How many seconds of the jumping clock that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not test():
        assert loop.time() - began < seconds, "it does not come about"
        await asyncio.sleep(0.1)
    return loop.time() - began


def offer_of(node: Ear, number: int = 0) -> Offer:
    packet = digest_of(f"{node.peer} {number}".encode())
    return replace(OFFER, packet=packet, contributor=node.peer, round=Round(7))


def test_all_see_all_though_each_greets_a_few(monkeypatch) -> None:
    async def story() -> None:
        async with Swarm() as swarm:
            await asyncio.sleep(10)
            swarm.count_calls(monkeypatch)
            await asyncio.sleep(20)
            beats = 20 / (TIMING.heartbeat_seconds * 0.9)
            assert 0 < swarm.most_calls(Method.HELLO) <= (PARTNERS + 1) * beats
            assert not [peer for node in swarm.nodes for peer in node.lost]

    in_virtual_time(story())


def test_who_lies_of_silence_prompts_hardly_more_hellos_than_the_beats(monkeypatch) -> None:
    async def story() -> None:
        async with Swarm(12) as swarm:
            liar, victim, *others = swarm.nodes
            silent = tuple(Silent(other.peer, MAX_SEQUENCE, 3_600_000) for other in others[:8])
            body = calls.encode_hello(calls.Hello(RUN, (), silent=silent))
            swarm.count_calls(monkeypatch)
            for _ in range(200):
                await liar.swarm._transport.call(victim.peer, Method.HELLO, body, 5.0)
            beats = 200 * 0.2 / TIMING.heartbeat_seconds  # a call takes 0.2 seconds at most
            assert swarm.calls[victim.peer, Method.HELLO] < (5 * len(silent) + PARTNERS) * beats
            assert not victim.lost

    in_virtual_time(story())


def test_a_death_is_noticed_by_all_in_a_few_beats_more_than_the_patience() -> None:
    async def story() -> None:
        async with Swarm() as swarm:
            await asyncio.sleep(10)
            victim, others = swarm.nodes[3], [*swarm.nodes[:3], *swarm.nodes[4:]]
            swarm.network.partition([victim.peer], [node.peer for node in others])
            limit = TIMING.patience_seconds + 8 * TIMING.heartbeat_seconds
            await until(lambda: all(victim.peer not in node.members for node in others), limit)
            assert {peer for node in others for peer in node.lost} == {victim.peer}
            swarm.network.heal()
            await until(lambda: all(victim.peer in node.members for node in others), 120)

    in_virtual_time(story())


def test_a_goodbye_reaches_all_at_once() -> None:
    async def story() -> None:
        async with Swarm() as swarm:
            leaver = swarm.nodes.pop()
            await leaver.swarm.stop()
            await until(lambda: all(leaver.peer not in node.members for node in swarm.nodes), 10)

    in_virtual_time(story())


def test_lost_messages_cost_no_member_its_place() -> None:
    async def story() -> None:
        async with Swarm(loss=0.1) as swarm:
            await asyncio.sleep(40)
            assert not [peer for node in swarm.nodes for peer in node.lost]

    in_virtual_time(story())


def test_offers_reach_all_and_only_who_holds_a_packet_counts_as_its_holder(monkeypatch) -> None:
    async def story() -> None:
        async with Swarm() as swarm:
            swarm.count_calls(monkeypatch)
            offers = [offer_of(node) for node in swarm.nodes]
            for node, offer in zip(swarm.nodes, offers, strict=True):
                await node.swarm.announce([offer])

            def heard(node: Ear) -> bool:
                return {offer.packet for offer in offers} <= {
                    *node.offers,
                    offer_of(node).packet,
                }

            for _ in range(4):  # what the machine says is said every few seconds
                await asyncio.sleep(3)
                for node, offer in zip(swarm.nodes, offers, strict=True):
                    await node.swarm.announce([offer])
            assert all(heard(node) for node in swarm.nodes)
            for node in swarm.nodes:
                for offer in offers:
                    assert node.offers.get(offer.packet, set()) <= {offer.contributor}
            assert swarm.most_calls(Method.ANNOUNCE) <= 100  # to all it would be 23 for each offer

    in_virtual_time(story())


def test_who_is_leaving_hears_at_once_of_all_who_hold_its_packet() -> None:
    async def story() -> None:
        async with Swarm() as swarm:
            leaver, *others = swarm.nodes
            leaver.speak(Phase.LEAVING)
            await asyncio.sleep(5)
            mine = offer_of(leaver)
            for node in others:
                await node.swarm.announce([mine])
            await asyncio.sleep(0.5)
            assert leaver.offers[mine.packet] == {node.peer for node in others}

    in_virtual_time(story())


def test_an_offer_that_got_lost_is_found_by_comparing() -> None:
    async def story() -> None:
        async with Swarm() as swarm:
            first, second, *others = swarm.nodes
            away = [first.peer, *(node.peer for node in others)]
            swarm.network.partition(away, [second.peer])
            for node in others:
                await node.swarm.announce([offer_of(node)])
            await asyncio.sleep(4)
            swarm.network.heal()
            mine = offer_of(second)
            for _ in range(3):
                await second.swarm.announce([mine])
                await asyncio.sleep(3)
            assert {offer_of(node).packet for node in others} <= set(second.offers)

    in_virtual_time(story())


def test_a_manifest_reaches_nearly_all_and_each_passes_it_on_once(monkeypatch) -> None:
    async def story() -> None:
        async with Swarm() as swarm:
            swarm.count_calls(monkeypatch)
            proposer = swarm.nodes[5]
            draft = replace(DRAFT, run=RUN, proposer=proposer.peer)
            sealed = proposer.swarm.seal("manifest", encode_manifest(draft))
            await proposer.swarm.publish(sealed)
            await asyncio.sleep(3)
            reached = [node for node in swarm.nodes if node.manifests == [digest_of(sealed)]]
            assert len(reached) >= 0.7 * NODES  # the others see by hellos that they lack one
            assert swarm.calls[proposer.peer, Method.PUBLISH] == PUBLISHED_TO
            others = {node: swarm.calls[node.peer, Method.PUBLISH] for node in reached}
            assert set(others.values()) <= {RELAYED_TO, PUBLISHED_TO}

    in_virtual_time(story())


def test_a_manifest_of_a_stranger_is_heard_and_not_passed_on(monkeypatch) -> None:
    async def story() -> None:
        async with Swarm() as swarm:
            stranger = Identity.new()
            draft = replace(DRAFT, run=RUN, proposer=stranger.peer_id)
            sealed = seal("manifest", stranger.sign, encode_manifest(draft))
            swarm.count_calls(monkeypatch)
            await swarm.nodes[1].swarm.publish(sealed)
            await asyncio.sleep(3)
            assert sum(swarm.calls[node.peer, Method.PUBLISH] for node in swarm.nodes) == (
                PUBLISHED_TO
            )

    in_virtual_time(story())


def test_a_flood_of_offers_is_relayed_within_bounds() -> None:
    talk = Talk(PeerId("me"))
    liar, victim = PeerId("liar"), PeerId("victim")
    lies = tuple(replace(OFFER, contributor=victim, samples=i + 1) for i in range(MAX_OFFERS))
    told = talk.hear(liar, Batch(heard=lies), {liar, victim}, now=0.0)
    assert [(holder, len(offers)) for holder, offers in told] == [(victim, 1)]
    heard = talk.batch_for(PeerId("other")).heard
    assert len(heard) == MAX_VERSIONS
    truth = replace(OFFER, contributor=victim, samples=4711)
    told = talk.hear(victim, Batch(offers=(truth,)), {liar, victim}, now=1.0)
    assert told == [(victim, (truth,))]
