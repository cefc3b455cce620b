"""How the positions and heads of a layer are cut for the blocked pass (see `_blocked`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from service.theory._recursion import F64, geometric, running_scan

SETTLED = 39.0
"""exp(-39) is below half a unit in the last place of 1."""
EXPONENT_LIMIT = 600.0
"""exp() of more than this times a weight could leave the range of float64."""
MOST_SPANS = 4
NEAR_BLOCK, NEAR_ELEMENTS, NEAR_MINIMUM = 16, 1 << 15, 256
FAR_BLOCK, FAR_BLOCKS = 64, 128


@dataclass(frozen=True, eq=False)
class Layout:
    """How a chunk of `block * blocks` positions is cut, with the powers of q that it needs.

    Inside a chunk, entries are stored offset-first and the last block first, so that influence
    flows towards higher indices: entry (u, b) is position (blocks - 1 - b) * block + u.
    """

    block: int
    blocks: int
    powers: F64
    """[H, 1, block]: q^u."""
    outgoing: F64
    """[block, H]: c q^(block-1-v)."""
    decay: F64
    """[H]: q^block."""
    scale: F64 | None
    """[H, span]: decay^b; the scan is a running sum while the inverse stays within range."""
    inverse: F64 | None
    toeplitz: npt.NDArray[np.intp]
    """[block(u), block(v)]: block - 1 + u - v."""

    @property
    def size(self) -> int:
        """Positions per chunk."""
        return self.block * self.blocks

    def scan(self, states: F64, carry: F64) -> tuple[F64, F64]:
        """States arriving in each block [H, blocks], and the one that leaves the chunk [H]."""
        into = np.empty_like(states)
        into[:, 0] = carry
        into[:, 1:] = states[:, :-1]
        if self.scale is None or self.inverse is None:
            running_scan(into, self.decay)
        else:
            span = self.scale.shape[1]
            for first in range(0, self.blocks, span):
                part = into[:, first : first + span]
                if first:
                    part[:, 0] += self.decay * into[:, first - 1]
                part *= self.inverse[:, : part.shape[1]]
                np.cumsum(part, axis=1, out=part)
                part *= self.scale[:, : part.shape[1]]
        return into, states[:, -1] + self.decay * into[:, -1]


@dataclass(frozen=True, eq=False)
class Chunk:
    """A chunk in which the first `active` heads (gentlest slopes first) have not settled."""

    start: int
    active: int
    inside: F64
    """[block, active*block]: entry (v, (h, u)) = c_h q_h^(u-v-1) for u > v, else 0."""
    fall: F64
    """[active, 1]: q^start."""
    seen: F64
    """[active, 1]: g(start)."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything about one layer that its content does not change."""

    length: int
    slopes: F64
    """[H], ascending."""
    weights: F64
    limit: F64
    """[H]: g(infinity) = 1/(1-q); inf for slope 0, which never settles."""
    near: Layout
    geometric: F64
    """[H, near.size]: g of the offset inside a chunk, in storage order."""
    chunks: tuple[Chunk, ...]
    """From the last to the first."""
    far_start: int
    far: Layout | None


def plan(length: int, slopes: F64, weights: F64) -> Plan:
    """The plan for these heads; equal arguments share one, so that layers share their tables.

    Args:
        length: n >= 1.
        slopes: [H], ascending, >= 0.
        weights: [H], > 0.
    """
    return _plan(length, slopes.tobytes(), weights.tobytes())


@lru_cache(maxsize=4)
def _plan(length: int, slopes_: bytes, weights_: bytes) -> Plan:
    slopes, weights = np.frombuffer(slopes_), np.frombuffer(weights_)
    size = min(length, max(NEAR_MINIMUM, NEAR_ELEMENTS // slopes.size))
    near = _layout(slopes, weights, NEAR_BLOCK, -(-size // NEAR_BLOCK))
    chunks = -(-length // near.size)
    if slopes[0] * length > SETTLED:
        chunks = min(chunks, int(-(-SETTLED / slopes[0] // near.size)))
    rest = length - chunks * near.size
    far = None
    if rest > 0:
        far = _layout(slopes, weights, FAR_BLOCK, min(FAR_BLOCKS, -(-rest // FAR_BLOCK)))
    inside = _inside(slopes, weights, near.block)
    block, blocks = np.arange(near.block)[:, None], np.arange(near.blocks)[::-1]
    offsets = blocks * near.block + block
    return Plan(
        length=length,
        slopes=slopes,
        weights=weights,
        limit=geometric(slopes, np.array([np.inf])),
        near=near,
        geometric=geometric(slopes[:, None], offsets.ravel()[None, :].astype(np.float64)),
        chunks=tuple(
            _chunk(slopes, inside, start)
            for start in range((chunks - 1) * near.size, -1, -near.size)
        ),
        far_start=chunks * near.size,
        far=far,
    )


def _layout(slopes: F64, weights: F64, block: int, blocks: int) -> Layout:
    powers = np.exp(-slopes[:, None] * np.arange(block, dtype=np.float64))
    steepest = float(slopes[-1]) * block
    span = blocks if steepest * blocks <= EXPONENT_LIMIT else int(EXPONENT_LIMIT // steepest)
    short = span * MOST_SPANS >= blocks
    exponent = slopes[:, None] * (block * np.arange(span, dtype=np.float64))
    offsets = np.arange(block)
    return Layout(
        block=block,
        blocks=blocks,
        powers=np.ascontiguousarray(powers[:, None, :]),
        outgoing=np.ascontiguousarray((weights[:, None] * powers[:, ::-1]).T),
        decay=np.exp(-slopes * block),
        scale=np.exp(-exponent) if short else None,
        inverse=np.exp(exponent) if short else None,
        toeplitz=block - 1 + offsets[:, None] - offsets[None, :],
    )


def _inside(slopes: F64, weights: F64, block: int) -> F64:
    steps = np.arange(block, dtype=np.float64)
    gap = (steps[None, :] - steps[:, None] - 1)[:, None, :]  # [v, 1, u]
    table = np.exp(-slopes[None, :, None] * np.maximum(gap, 0.0))
    table *= (gap >= 0) * weights[None, :, None]
    return table.reshape(block, slopes.size * block)


def _chunk(slopes: F64, inside: F64, start: int) -> Chunk:
    active = int(np.searchsorted(slopes * start, SETTLED))
    block = inside.shape[0]
    gentle = slopes[:active, None]
    return Chunk(
        start=start,
        active=active,
        inside=inside[:, : active * block],
        fall=np.exp(-gentle * start),
        seen=geometric(gentle, np.array([float(start)])),
    )
