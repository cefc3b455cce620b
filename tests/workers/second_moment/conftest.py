"""The tiny models of tests/workers/instrument, and the dense rivals of tests/lacuna/theory."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "instrument"))
sys.path.insert(0, str(Path(__file__).parents[2] / "lacuna" / "theory"))
