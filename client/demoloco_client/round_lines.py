"""One line for each committed round, put together from what several nodes say of it. No I/O.

Rule: a round is told once, when every node that takes part has reached it, or when the others have
left a node MAX_LAG rounds behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from demoloco_client.render import size
from demoloco_proto.v1.control_pb2 import StatusReply

MAX_LAG = 3
JOINING = "joining"
HEADER = (
    f"{'time':>6} {'round':>6} {'loss':>8} {'held out':>9} {'samples/s':>10} "
    f"{'packet':>8} {'instead of':>11} {'members':>8}  same state"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLine:
    """What the nodes say of one round; numbers are means over the nodes, speed is their sum."""

    round: int
    seconds: float
    loss: float | None
    eval_loss: float | None
    samples_per_second: float
    packet_bytes: int
    model_bytes: int
    members: int
    fingerprint: str
    same_state: bool | None
    nodes: int
    """How many said something of it."""

    def text(self) -> str:
        """The line under HEADER."""
        minutes, seconds = divmod(int(self.seconds), 60)
        loss = "–" if self.loss is None else f"{self.loss:.3f}"
        held_out = "" if self.eval_loss is None else f"{self.eval_loss:.3f}"
        packet = size(self.packet_bytes) if self.packet_bytes else "–"
        same = {True: f"yes  {self.fingerprint[:8]}", False: "NO, they differ", None: "–"}
        return (
            f"{minutes:>3}:{seconds:02d} {self.round:>6} {loss:>8} {held_out:>9} "
            f"{self.samples_per_second:>10.1f} {packet:>8} {size(self.model_bytes):>11} "
            f"{self.members:>8}  {same[self.same_state]}"
        )


class RoundLines:
    """Collects statuses, gives lines."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._born = clock()
        self._reached: dict[str, int] = {}
        self._said: dict[int, dict[str, StatusReply]] = {}
        self._told = 0
        self._told_eval = -1

    def hear(self, name: str, reply: StatusReply) -> None:
        """Take in what a node says; a node that has no agreed state yet says nothing of rounds."""
        if reply.phase == JOINING or not reply.fingerprint:
            return
        self._reached[name] = reply.round
        if reply.round > self._told:
            self._said.setdefault(reply.round, {})[name] = reply

    def forget(self, name: str) -> None:
        """A node has left: nobody waits for it any more."""
        self._reached.pop(name, None)

    def take(self) -> Iterator[RoundLine]:
        """The lines of the rounds that are complete and not told yet, in order."""
        if self._reached:
            complete = max(min(self._reached.values()), max(self._reached.values()) - MAX_LAG)
        else:
            complete = max(self._said, default=0)
        for number in sorted(number for number in self._said if number <= complete):
            self._told = number
            yield self._line(number, list(self._said.pop(number).values()))

    def _line(self, number: int, replies: list[StatusReply]) -> RoundLine:
        losses = [reply.loss for reply in replies if reply.HasField("loss")]
        packets = [reply.packet_bytes for reply in replies if reply.packet_bytes]
        fingerprints = {reply.fingerprint for reply in replies}
        return RoundLine(
            round=number,
            seconds=self._clock() - self._born,
            loss=sum(losses) / len(losses) if losses else None,
            eval_loss=self._new_eval_loss(replies),
            samples_per_second=sum(reply.samples_per_second for reply in replies),
            packet_bytes=sum(packets) // len(packets) if packets else 0,
            model_bytes=4 * max(reply.parameters for reply in replies),
            members=max(len(reply.members) for reply in replies),
            fingerprint=replies[0].fingerprint,
            same_state=len(fingerprints) == 1 if len(replies) > 1 else None,
            nodes=len(replies),
        )

    def _new_eval_loss(self, replies: list[StatusReply]) -> float | None:
        newest = max(
            (reply.eval_round for reply in replies if reply.HasField("eval_loss")), default=None
        )
        if newest is None or newest <= self._told_eval:
            return None
        self._told_eval = newest
        losses = [
            reply.eval_loss
            for reply in replies
            if reply.HasField("eval_loss") and reply.eval_round == newest
        ]
        return sum(losses) / len(losses)
