"""Changes images at random while training, so that the model sees more hands, pens and cameras than the data holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from training.digits.rendering import SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator


def augment(key: jax.Array, pixels: jax.Array) -> jax.Array:
    """Shift, turn, scale, shear, soften, fade, add noise and invert.

    Args:
        key: Random key of the batch.
        pixels: Prepared images with light ink, uint8 (rows, 28, 28).

    Returns:
        Inputs of the graph, float32 (rows, 1, 28, 28).
    """
    ink = pixels.astype(jnp.float32) / 255.0
    changed = jax.vmap(_one)(jax.random.split(key, ink.shape[0]), ink)
    return ((changed - 0.5) / 0.5)[:, jnp.newaxis]


def _one(key: jax.Array, ink: jax.Array) -> jax.Array:
    keys = iter(jax.random.split(key, 12))
    drawn = _affine(ink, keys)
    softened = (drawn + jnp.roll(drawn, 1, 0) + jnp.roll(drawn, 1, 1) + jnp.roll(drawn, (1, 1), (0, 1))) / 4
    drawn = jnp.where(jax.random.bernoulli(next(keys), 0.15), softened, drawn)
    drawn **= jax.random.uniform(next(keys), minval=0.7, maxval=1.4)
    # Most pictures use the whole range; the others have grey ink or grey paper.
    faded = jax.random.bernoulli(next(keys), 0.4)
    paper = jnp.where(faded, jax.random.uniform(next(keys), maxval=0.25), 0.0)
    full = jnp.where(faded, jax.random.uniform(next(keys), minval=0.6, maxval=1.0), 1.0)
    drawn = paper + drawn * (full - paper)
    noise = jax.random.uniform(next(keys), maxval=0.08) * jax.random.normal(next(keys), drawn.shape)
    drawn = jnp.clip(jnp.where(jax.random.bernoulli(next(keys), 0.3), drawn + noise, drawn), 0.0, 1.0)
    return jnp.where(jax.random.bernoulli(next(keys), 0.5), 1.0 - drawn, drawn)


def _affine(ink: jax.Array, keys: Iterator[jax.Array]) -> jax.Array:
    """Draw the image through a random affine map; outside it there is no ink."""
    values = jax.random.uniform(next(keys), (6,), minval=-1.0, maxval=1.0)
    changed = jax.random.bernoulli(next(keys), 0.85)
    values = jnp.where(changed, values, 0.0)
    angle = jnp.deg2rad(12.0) * values[0]
    # Digits fill the data's 8 x 8 pixels; pictures often have a margin, so scales go further down than up.
    scale = jnp.exp(jnp.where(values[1] > 0, 0.12, 0.4) * values[1])
    aspect = jnp.exp(0.12 * values[2])
    shear = 0.15 * values[3]
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    turn = jnp.array([[cosine, -sine], [sine, cosine]])
    stretch = jnp.array([[1.0 / (scale * aspect), shear], [0.0, aspect / scale]])
    centre = (SIZE - 1) / 2
    grid = jnp.stack(jnp.meshgrid(jnp.arange(SIZE), jnp.arange(SIZE), indexing="ij")).reshape(2, -1) - centre
    points = turn @ stretch @ grid + centre - 2.5 * values[4:6, jnp.newaxis]
    return jax.scipy.ndimage.map_coordinates(ink, list(points), order=1).reshape(SIZE, SIZE)
