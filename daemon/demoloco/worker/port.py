"""What the node asks of the process that owns all tensors, and what it hears from it.

Commands are carried out in the order in which they are given; between two inner steps the worker
looks for new ones, so a correction reaches the model while it trains. The worker maps agreed states
from files, read-only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from demoloco.config import RunConfig, Scalar
from demoloco.types import BlobRef, Loan, Round
from demoloco.worker.exports import Export, Exported, NotExported


# -- what the worker is told ---------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, slots=True)
class Describe:
    """Load the task and build its model; answered by Described."""

    task: str
    task_args: dict[str, Scalar]
    seed: int
    device: str
    threads: int
    node: str  # peer id


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """The run's configuration is known: make ready to train. Answered by Ready."""

    config: RunConfig
    accumulate: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteInitial:
    """Genesis: write DCT(model) as float32 (chunks, 4096) to `path`. Answered by InitialWritten."""

    path: Path


@dataclass(frozen=True, slots=True)
class Returned:
    """What goes of the borrowed part: all that its lenders told, and of the rest all but a share.

    `lent`: coefficient bodies of the lenders' packets."""

    lent: tuple[bytes, ...] = ()
    keep: float = 1.0


@dataclass(frozen=True, slots=True)
class Start:
    """A gift to start with, and what its lenders told since."""

    gift: Path
    returned: Returned


@dataclass(frozen=True, kw_only=True, slots=True)
class TakeAgreed:
    """The own model becomes IDCT(agreed), or starts with a gift on top of it; nothing is owed.
    Inner optimizer afresh, or the giver's. Answered by Corrected, after GiftTried where there is a
    gift."""

    agreed: Path
    round: Round
    start: Start | None = None
    told_samples: int = 0  # of this node, on the chain or on their way


@dataclass(frozen=True, kw_only=True, slots=True)
class Restore:
    """Load the checkpoint that `checkpoint.newest_whole` found, move it from its round's agreed
    state to `agreed`, take out what was told since. Answered by Corrected."""

    checkpoint: Path
    agreed: Path
    round: Round
    told_since: tuple[
        bytes, ...
    ]  # coefficient bodies of own packets in manifests after the checkpoint
    returned: Returned = Returned()
    told_samples: int = 0  # of this node in all, on the chain or on their way


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """Make `steps` inner steps for `round`; answered by Trained. Ignored while training.

    `steps`: None = until Cut; where the run has a fixed number of steps, these are beyond it."""

    round: Round
    steps: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """End the inner steps under way at the next step; Trained tells how many were done.

    `least`: so many are made first."""

    least: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Contribute:
    """Make a packet body from what is owed against `agreed`. Answered by Contributed; `ticket`
    comes back."""

    ticket: int
    agreed: Path
    k: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Correct:
    """The agreed state moved from `before` to `after`; `told` and `untold` are own packets'
    coefficient bodies that entered and left the winning chain by this. Answered by Corrected,
    then by Evaluated where one is due."""

    before: Path
    after: Path
    round: Round  # of `after`
    told: tuple[bytes, ...] = ()
    untold: tuple[bytes, ...] = ()
    returned: Returned = Returned()
    forgotten: int = 0  # samples of `untold` packets whose bodies are gone: learnt no longer
    evaluate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveCheckpoint:
    """Write model, inner optimizer, data position, RNG and owed state; answered by Saved or, on a
    full disk, NotSaved."""

    directory: Path
    agreed: Path  # the state that the model stands on; hard-linked into the checkpoint
    head: bytes  # digest of the manifest of that state
    loan: Loan | None = None  # what of the model is borrowed


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """End the process in order."""


Command = (
    Describe
    | Begin
    | WriteInitial
    | TakeAgreed
    | Restore
    | Train
    | Cut
    | Contribute
    | Correct
    | SaveCheckpoint
    | Export
    | Stop
)


# -- what the worker tells -------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """`layout`: canonical bytes of codec.layout; `defaults`: RunConfig fields that the task
    prefers."""

    layout: bytes
    defaults: dict[str, Scalar]
    device: str  # what auto became, e.g. cuda (NVIDIA H200)
    unit: str  # what one sample is


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """Begin is done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialWritten:
    """WriteInitial is done; the file is fsynced."""

    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Some inner steps later; at most a few a second."""

    round: Round
    step: int  # of this Train, from 1; beyond `steps` where it goes on after those of a round
    steps: int  # 0 = no fixed number
    loss: float  # mean since the last Progress
    samples_per_second: float
    learning_rate: float
    learnt: int  # as in Trained, the steps under way included
    busy_seconds: float = 0.0  # as in Trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """An inner step was not taken: the loss or gradient of these batches was not finite."""

    first_batch: int  # as the task counts them
    last_batch: int
    loss: float
    in_a_row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lapsed:
    """The model is not finite any longer. The process goes on; all but TakeAgreed and Restore is
    ignored until one of these has put the model back."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A Train is done, or was cut."""

    round: Round
    steps: int
    samples: int
    loss: float  # mean over the steps; nan if there were none
    learnt: int  # samples of all inner steps that the model holds or that were told; not borrowed
    busy_seconds: float = 0.0  # in inner steps since this process began


@dataclass(frozen=True, kw_only=True, slots=True)
class Contributed:
    """`body`: the packet's coefficients, as `codec.packet` encodes them."""

    ticket: int
    body: bytes
    k: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrected:
    """The own model stands on the agreed state of this round."""

    round: Round


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """Held-out loss of the own model after this round."""

    round: Round
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint is whole and durable. `gift`: the file in it that a joiner can start with, and
    the blobs that it is; not where there is nothing to give."""

    head: bytes
    seconds: float
    size: int  # bytes
    learnt: int  # as in Trained, of the model that was saved
    gift: Path | None = None
    blobs: tuple[BlobRef, ...] = ()
    loan: Loan | None = None  # as in the command


@dataclass(frozen=True, kw_only=True, slots=True)
class GiftTried:
    """Held-out losses of a model that starts on the agreed state, and with the gift on top of it;
    nan if they were not measured. A gift that is damaged or makes it worse is not taken."""

    taken: bool
    why: str
    agreed_loss: float
    gift_loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NotSaved:
    """A checkpoint could not be written; the one before it is as it was, and training goes on."""

    head: bytes
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The user's task or configuration is at fault: `fix` says what to do. The process ends after
    this."""

    why: str
    fix: str = ""
    detail: str = field(default="", repr=False)  # traceback, for the log file


@dataclass(frozen=True, kw_only=True, slots=True)
class Died:
    """The process is gone without having been told to stop; made by the adapter."""

    why: str
    detail: str = field(default="", repr=False)  # traceback, if there is one


WorkerEvent = (
    Described
    | Ready
    | InitialWritten
    | Progress
    | Skipped
    | Lapsed
    | Trained
    | Contributed
    | Corrected
    | Evaluated
    | Saved
    | NotSaved
    | Exported
    | NotExported
    | GiftTried
    | Failed
    | Died
)


class Worker(Protocol):
    """A running worker; made anew after it died."""

    def start(self, emit: Callable[[WorkerEvent], None]) -> None:
        """Start the process; events arrive in the caller's event loop."""
        ...

    def tell(self, command: Command) -> None:
        """Queue a command; never blocks. Ignored after the worker has died."""
        ...

    @property
    def pid(self) -> int | None: ...

    async def stop(self, timeout_seconds: float) -> None:
        """Stop in order, by force after the time-out; idempotent."""
        ...
