"""The worker: carries out commands in order, and between them makes inner steps.

    while the node lives:
        a command waits?   carry it out
        inner steps left?  make one
        else               wait for a command

The same loop runs in the child process (`serve`) and, step by step, inside a test (`memory.py`).
"""

from __future__ import annotations

import math
import queue
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

import torch

from demoloco.errors import StoreError
from demoloco.task.load import load_task
from demoloco.task.port import Task
from demoloco.types import Round
from demoloco.worker import device, exporting, giving, keeping
from demoloco.worker.checkpoint import Counters
from demoloco.worker.exports import Export, NotExported
from demoloco.worker.faults import NotFinite, TaskFault, in_task, verdict
from demoloco.worker.inner import BadStep, Trainer
from demoloco.worker.own import OwnModel
from demoloco.worker.port import (
    Begin,
    Command,
    Contribute,
    Contributed,
    Correct,
    Corrected,
    Cut,
    Describe,
    Described,
    Died,
    Evaluated,
    Failed,
    InitialWritten,
    Lapsed,
    NotSaved,
    Progress,
    Ready,
    Restore,
    SaveCheckpoint,
    Skipped,
    Stop,
    TakeAgreed,
    Train,
    Trained,
    WorkerEvent,
    WriteInitial,
)
from demoloco.worker.schedule import learning_rate
from demoloco.worker.stint import Stint

if TYPE_CHECKING:
    from torch import nn

Emit = Callable[[WorkerEvent], None]
PROGRESS_SECONDS = 0.25
NO_NUMBERS = "the model is not finite"
MAX_LAPSES = 3
"""So often a worker may lose its model to bad numbers without a packet in between."""

LAPSED_FIX = (
    "a smaller --set learning_rate (now {:g}), a longer warm-up,"
    " or look for a division by zero in the task's loss"
)


def serve(inbox: queue.SimpleQueue[Command], emit: Emit) -> bool:
    """Carry out commands until Stop; False if something failed, which has been told."""
    loop = Loop(emit)
    while True:
        try:
            command = inbox.get(block=not loop.training)
        except queue.Empty:
            command = None
        if isinstance(command, Stop):
            return True
        if not loop.advance(command):
            return False


@dataclass(frozen=True)
class Subject:
    """What Describe built."""

    order: Describe
    task: Task
    model: nn.Module
    device: torch.device
    own: OwnModel


class Loop:
    """All of one worker's state; `advance` is one turn of the loop in the module's text."""

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._clock = clock
        self._subject: Subject | None = None
        self._trainer: Trainer | None = None
        self._stint: Stint | None = None
        self._shown = Stint(Round(0), 0, 0.0)  # the stint as the last Progress told it
        self._round = Round(0)  # of the agreed state that the model stands on
        self._inner_steps = 0
        self._learnt = 0  # samples; see Trained
        self._busy_seconds = 0.0
        self._lapsed = False
        self._lapses = 0  # since the last packet

    @property
    def training(self) -> bool:
        """Whether inner steps are under way."""
        return self._stint is not None

    def advance(self, command: Command | None) -> bool:
        """Carry out a command or else make an inner step; False if it failed, which was told."""
        try:
            if command is not None:
                self._carry_out(command)
            elif self._stint is not None:
                self._step(self._stint)
        except NotFinite as error:
            return self._lapse(error)
        except (
            Exception
        ) as error:  # one of the three walls: the node must hear of it, whatever it is
            self._stint = None
            told = verdict(error)
            if isinstance(told, Died):  # ours: the log is the place for the traceback
                traceback.print_exception(error)
            self._emit(told)
            return False
        return True

    def _lapse(self, error: NotFinite) -> bool:
        """Nothing that comes of this model is of use; the node knows what it can go back to."""
        self._stint = None
        self._lapses += 1
        if self._lapses > MAX_LAPSES:
            rate = self._training.config.learning_rate
            why = f"{self._lapses} times in a row without a round in between: {error}"
            self._emit(Failed(why=why, fix=LAPSED_FIX.format(rate), detail=""))
            return False
        self._lapsed = True
        self._emit(Lapsed(why=str(error)))
        return True

    def _carry_out(self, command: Command) -> None:
        if self._lapsed and isinstance(command, SaveCheckpoint):
            self._emit(NotSaved(head=command.head, why=NO_NUMBERS))
        elif self._lapsed and isinstance(command, Export):
            self._emit(NotExported(ticket=command.ticket, why=NO_NUMBERS))
        elif not self._lapsed or isinstance(command, TakeAgreed | Restore | Stop):
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Describe():
                self._on_describe(command)
            case Begin():
                self._on_begin(command)
            case WriteInitial(path=path):
                self._own.write_initial(path)
                self._emit(InitialWritten(path=path))
            case TakeAgreed():
                self._on_take_agreed(command)
            case Restore():
                self._on_restore(command)
            case Train(round=round, steps=steps):
                self._on_train(round, steps)
            case Cut(least=least):
                self._on_cut(least)
            case Contribute(ticket=ticket, agreed=agreed, k=k):
                body = self._own.contribute(agreed, k)
                self._lapses = 0
                self._emit(Contributed(ticket=ticket, body=body, k=k))
            case Correct():
                self._on_correct(command)
            case SaveCheckpoint():
                self._on_save(command)
            case Export():
                self._emit(exporting.export(command, self._own, self._training))
            case Stop():
                self._stint = None
            case _:
                assert_never(command)

    # -- inner steps ------------------------------------------------------------------------------
    def _on_train(self, round: Round, steps: int | None) -> None:
        if self._stint is not None:
            return
        self._stint = Stint(round, steps, self._clock())
        self._shown = Stint(round, steps, self._stint.began)
        if self._stint.is_done:
            self._finish(self._stint)

    def _on_cut(self, least: int) -> None:
        if self._stint is None:
            return
        self._stint.end = least
        if self._stint.is_done:
            self._finish(self._stint)

    def _step(self, stint: Stint) -> None:
        trainer = self._training
        began = self._clock()
        rate = learning_rate(trainer.config, stint.round, stint.share(trainer.config, began))
        loss = trainer.step(rate)
        self._busy_seconds += self._clock() - began
        stint.done += 1
        if isinstance(loss, BadStep):
            self._show_bad(loss)
        else:
            self._inner_steps += 1
            stint.good += 1
            stint.loss_sum += loss
            stint.samples += trainer.config.batch_size
            self._learnt += trainer.config.batch_size
        last = stint.is_done
        if last or self._clock() - self._shown.began >= PROGRESS_SECONDS:
            self._show(stint, rate)
        if last:
            self._finish(stint)

    def _show(self, stint: Stint, rate: float) -> None:
        shown, now = self._shown, self._clock()
        good = stint.good - shown.good
        step, steps = stint.shown(self._training.config)
        self._emit(
            Progress(
                round=stint.round,
                step=step,
                steps=steps,
                loss=(stint.loss_sum - shown.loss_sum) / good if good else math.nan,
                samples_per_second=(stint.samples - shown.samples) / max(now - shown.began, 1e-9),
                learning_rate=rate,
                learnt=self._learnt,
                busy_seconds=self._busy_seconds,
            )
        )
        self._shown = replace(stint, began=now)

    def _show_bad(self, step: BadStep) -> None:
        self._emit(
            Skipped(
                first_batch=step.batches[0],
                last_batch=step.batches[-1],
                loss=step.loss,
                in_a_row=step.in_a_row,
            )
        )

    def _finish(self, stint: Stint) -> None:
        self._stint = None
        self._emit(
            Trained(
                round=stint.round,
                steps=stint.done,
                samples=stint.samples,
                loss=stint.loss,
                learnt=self._learnt,
                busy_seconds=self._busy_seconds,
            )
        )

    # -- beginning --------------------------------------------------------------------------------
    def _on_describe(self, order: Describe) -> None:
        if order.threads:
            torch.set_num_threads(order.threads)
        where = device.choose(order.device)
        task = load_task(order.task, order.task_args)
        torch.manual_seed(order.seed)
        with in_task("model"):
            model = task.model()
            if not isinstance(model, torch.nn.Module):
                raise TaskFault(
                    f"the task's model is a {type(model).__name__}",
                    "return a torch.nn.Module from model()",
                )
            model.to(where)
        own = OwnModel(model, where)
        self._subject = Subject(order, task, model, where, own)
        self._emit(
            Described(
                layout=own.layout.to_bytes(),
                defaults=dict(getattr(task, "defaults", {})),
                device=device.name_of(where),
                unit=str(getattr(task, "unit", "samples")),
            )
        )

    def _on_begin(self, order: Begin) -> None:
        subject = self._described
        self._own.begin(order.config)
        self._trainer = Trainer(
            task=subject.task,
            model=subject.model,
            device=subject.device,
            config=order.config,
            accumulate=order.accumulate,
            node=subject.order.node,
        )
        # All nodes build one model from the run's seed, but each drops out its own part of it.
        torch.manual_seed(self._trainer.shard.generator(-1).initial_seed())
        self._emit(Ready())

    # -- rounds -----------------------------------------------------------------------------------
    def _on_take_agreed(self, order: TakeAgreed) -> None:
        self._stint = None  # of the model that was
        self._own.take(order.agreed)
        self._training.forget_moments()
        self._learnt = order.told_samples
        if order.start is not None:
            self._emit(giving.take(order.start, order.agreed, self._own, self._training))
        self._stand_on(order.round)

    def _on_correct(self, order: Correct) -> None:
        self._own.correct(order.before, order.after, order.told, order.untold)
        self._own.give_back(order.returned)
        self._learnt -= order.forgotten
        self._stand_on(order.round)
        if order.evaluate:
            self._emit(Evaluated(round=order.round, loss=self._training.evaluate()))

    def _stand_on(self, round: Round) -> None:
        self._round = round
        self._lapsed = False
        self._emit(Corrected(round=round))

    # -- checkpoints ------------------------------------------------------------------------------
    def _on_save(self, order: SaveCheckpoint) -> None:
        own, trainer = self._own, self._training
        if not own.is_finite():  # what is on the disk is the last that was
            self._emit(NotSaved(head=order.head, why=NO_NUMBERS))
            raise NotFinite(f"{NO_NUMBERS} after batch {trainer.batches_read - 1}")
        began = self._clock()
        counters = Counters(
            round=self._round,
            head=order.head.hex(),
            layout=own.layout.digest.hex(),
            samples_read=trainer.samples_read,
            inner_steps=self._inner_steps,
            samples_learnt=self._learnt,
            lenders=order.loan.lenders if order.loan else (),
            borrowed_since=order.loan.since if order.loan else 0,
            made=tuple(own.made),
        )
        try:
            saved = keeping.save(order, counters, own, trainer)
        except StoreError as error:
            self._emit(NotSaved(head=order.head, why=str(error)))
            return
        self._emit(replace(saved, seconds=self._clock() - began))

    def _on_restore(self, order: Restore) -> None:
        self._stint = None
        counters = keeping.restore(order, self._own, self._training)
        self._inner_steps = counters.inner_steps
        self._learnt = max(counters.samples_learnt, order.told_samples)
        self._stand_on(order.round)

    # -- what must have been said before ----------------------------------------------------------
    @property
    def _described(self) -> Subject:
        assert self._subject is not None, "Describe comes first"
        return self._subject

    @property
    def _own(self) -> OwnModel:
        return self._described.own

    @property
    def _training(self) -> Trainer:
        assert self._trainer is not None, "Begin comes first"
        return self._trainer
