"""How numbers, names and shares look in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from service.contract.curves import DeadZone

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LISTED = 20


def clean(text: str) -> str:
    """Names come from files and other machines: no control character reaches the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def number(value: float) -> str:
    """Three significant digits at most."""
    return f"{value:.3g}"


def bar(share: float, width: int = 12) -> str:
    """A bar of `width` columns when `share` is 1, to an eighth of a column."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def zone(found: DeadZone | None) -> str:
    """First and last token of a dead zone, and its share of the prompt."""
    if found is None:
        return "none"
    return f"{found.span} ({found.fraction:.0%})"


def counted(count: int, what: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def listed(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    shown = ", ".join(clean(name) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown
