"""What a flow reads of a response's headers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from lacuna.client.flows import retry_after


def test_retry_after_dates_and_nonsense() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert retry_after(later) == pytest.approx(30, abs=2)
    earlier = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert retry_after(earlier) == 0
    assert retry_after("-3") == 0
    assert retry_after("soon") is None
    assert retry_after(None) is None
