"""All-reduce each step: one model, and at every step the mean gradient of all nodes' batches."""

from __future__ import annotations

import math
import time

from torch import nn

from benchmarks.methods.settings import Setting
from benchmarks.methods.subjects import subject_of
from benchmarks.methods.swarm import CPU, Course, Node, Point, is_point, rate_at
from demoloco.task.port import Shard

FLOAT_BYTES = 4


def play_synchronous(setting: Setting) -> Course:
    """Carry out a run of `ddp`; a round is H steps, for the points alone."""
    began = time.process_time()
    task = subject_of(setting.subject, setting.size)
    node = Node(task, setting, 0)
    shards = [
        Shard(setting.seed, f"node-{number}", setting.batch_size, CPU)
        for number in range(setting.nodes)
    ]
    batches = [task.batches(shard, 0) for shard in shards]
    parameters = list(node.model.parameters())
    course = Course(parameters=node.layout.parameters)
    optimizer = node.trainer.optimizer
    for step in range(setting.steps):
        node.model.train()
        optimizer.zero_grad(set_to_none=True)
        for stream in batches:
            (task.loss(node.model, next(stream)) / setting.nodes).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, node.config.clip_norm or math.inf)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(node.config, step)
        optimizer.step()
        round_, rest = divmod(step + 1, setting.inner_steps)
        if rest == 0 and is_point(round_, setting.rounds):
            course.points.append(_look(node, setting, round_))
    course.cpu_seconds = time.process_time() - began
    return course


def _look(node: Node, setting: Setting, round_: int) -> Point:
    steps = round_ * setting.inner_steps
    loss = node.trainer.evaluate()
    return Point(
        round=round_,
        samples=steps * setting.batch_size * setting.nodes,
        told_bytes=steps * node.layout.parameters * FLOAT_BYTES,
        own=loss,
        merged=loss,
        agreed=loss,
        apart=0.0,
        behind=0.0,
        accuracy=getattr(node.trainer.task, "accuracy", None),
    )
