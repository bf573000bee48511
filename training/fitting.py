"""Fits parameters to data: AdamW, a warm-up and cosine schedule, and an average of the last weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Parameters = Any
"""A tree of weights, as jax handles them."""

_AVERAGE_DECAY = 0.995


def use_one_thread() -> None:
    """Keep jax and numpy to one thread. Call before jax's first computation.

    Training then leaves the other cores alone. A seed gives the same weights only where the processor and the number
    of cores that the process may use are the same: even on one thread, the weights were seen to differ by that number.
    """
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")
    jax.config.update("jax_platforms", "cpu")
    threadpool_limits(limits=1)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.05) -> jax.Array:
    """The mean cross-entropy of ``logits`` (rows, classes) against ``labels`` (rows), with smoothed targets."""
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), smoothing)
    return optax.softmax_cross_entropy(logits, targets).mean()


def fit(
    loss: Callable[[Parameters, jax.Array, tuple[jax.Array, ...]], jax.Array],
    parameters: Parameters,
    data: tuple[NDArray[Any], ...],
    *,
    steps: int,
    rows: int,
    learning_rate: float,
    weight_decay: float,
    seed: int,
    title: str,
    validate: Callable[[Parameters], float],
) -> Parameters:
    """Minimise ``loss`` and return the exponential moving average of the weights.

    Args:
        loss: Takes the parameters, a random key for augmentation, and one array per item of ``data``.
        parameters: Where to start.
        data: Arrays with the samples along axis 0; batches are drawn without replacement, epoch by epoch.
        steps: Number of batches.
        rows: Samples per batch.
        learning_rate: The peak, reached after a twentieth of the steps; the end is at a thousandth of it.
        weight_decay: Of AdamW, for weights of two and more dimensions.
        seed: Fixes order and augmentation.
        title: What the progress bar is called.
        validate: Gives the accuracy of some weights, shown beside the progress.
    """
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, steps // 20, steps, learning_rate / 1000)
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            schedule, weight_decay=weight_decay, mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)
        ),
    )

    def step(
        state: tuple[Parameters, Any, Parameters], key: jax.Array, batch: tuple[jax.Array, ...]
    ) -> tuple[tuple[Parameters, Any, Parameters], jax.Array]:
        weights, momenta, average = state
        value, gradients = jax.value_and_grad(loss)(weights, key, batch)
        updates, momenta = optimiser.update(gradients, momenta, weights)
        weights = optax.apply_updates(weights, updates)
        average = optax.incremental_update(weights, average, 1.0 - _AVERAGE_DECAY)
        return (weights, momenta, average), value

    compiled = jax.jit(step)
    state = (parameters, optimiser.init(parameters), parameters)
    key = jax.random.key(seed)
    generator = np.random.default_rng(seed)
    order = np.empty(0, dtype=np.int64)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task(title, total=steps, note="")
        for number in range(steps):
            if order.size < rows:
                order = generator.permutation(data[0].shape[0])
            chosen, order = order[:rows], order[rows:]
            batch = tuple(jnp.asarray(array[chosen]) for array in data)
            state, value = compiled(state, jax.random.fold_in(key, number), batch)
            if number % 100 == 99 or number == steps - 1:
                progress.update(task, note=f"loss {value:.3f}, validation {validate(state[2]):.2%}")
            progress.advance(task)
    return state[2]
