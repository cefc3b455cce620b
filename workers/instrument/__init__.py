"""Instruments for any causal language model, found by running it and not by class names.

`inspect` decides what can be measured and where to hook. `BranchReader` hands over the residual
stream and the attention updates during a pass; `capturing` shows the attention operations;
`describe_positions` and `positions_off` find and disable the positional encoding.
"""

from workers.instrument.branches import AttentionBranch, BranchReader, HookPoint
from workers.instrument.capture import capturing
from workers.instrument.inspection import Instrumentation, inspect
from workers.instrument.positions import Positions, describe_positions, positions_off

__all__ = [
    "AttentionBranch",
    "BranchReader",
    "HookPoint",
    "Instrumentation",
    "Positions",
    "capturing",
    "describe_positions",
    "inspect",
    "positions_off",
]
