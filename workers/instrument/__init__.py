"""Instruments for any causal language model: found by running it, not by class names.

``inspect`` decides what can be measured and where to hook; ``SiteReader`` hands over the residual
stream and the attention updates during a pass.
"""

from workers.instrument.inspection import Instrumentation, inspect
from workers.instrument.sites import Site, SiteReader, Tap

__all__ = ["Instrumentation", "Site", "SiteReader", "Tap", "inspect"]
