"""The tiny models of tests/workers/instrument, for the statistics gathered with the instruments."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "instrument"))
