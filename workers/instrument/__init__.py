"""Instruments for any causal language model: found by running it, not by class names.

``inspect`` decides what can be measured and where to hook; ``SiteReader`` hands over the residual
stream and the attention updates during a pass; ``capturing`` shows the attention operations;
``describe_positions`` and ``positions_off`` find and disable the positional encoding.
"""

from workers.instrument.capture import capturing
from workers.instrument.inspection import Instrumentation, inspect
from workers.instrument.positions import Positions, describe_positions, positions_off
from workers.instrument.sites import Site, SiteReader, Tap

__all__ = [
    "Instrumentation",
    "Positions",
    "Site",
    "SiteReader",
    "Tap",
    "capturing",
    "describe_positions",
    "inspect",
    "positions_off",
]
