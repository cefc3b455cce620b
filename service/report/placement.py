"""A placement: the chunks in their best order, and what that order is worth."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from service.contract.placements import Gain, Placed, PlacementResponse
from service.report.text import bar, clean, listed, number, zone

_ROWS = 100
"""From each end: both matter, and drawing thousands takes longer than placing them."""


def report(console: Console, answer: PlacementResponse, relevance: Mapping[str, float]) -> None:
    """Print an answer.

    Args:
        relevance: of every chunk, as it was given.
    """
    console.print(_order(answer, relevance))
    for line in _sentences(answer):
        console.print(line, soft_wrap=True)


def _order(answer: PlacementResponse, relevance: Mapping[str, float]) -> Table:
    table = Table(title="best order (visibility 1 is an even share)", box=SIMPLE_HEAD)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("chunk", overflow="fold")
    for name in ("offset", "tokens", "relevance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("visibility", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max((one.visibility for one in answer.placements), default=0.0) or 1.0
    rows = list(enumerate(answer.placements, 1))
    left_out = len(rows) - 2 * _ROWS
    for place, one in rows[:_ROWS] if left_out > 0 else rows:
        table.add_row(str(place), *_cells(one, relevance[one.id], most))
    if left_out > 0:
        table.add_row("…", f"{left_out:,} more: --ids or --json")
        for place, one in rows[-_ROWS:]:
            table.add_row(str(place), *_cells(one, relevance[one.id], most))
    return table


def _cells(one: Placed, relevance: float, most: float) -> list[str]:
    return [
        clean(one.id),
        str(one.offset),
        str(one.tokens),
        number(relevance),
        f"{one.visibility:5.2f} {bar(one.visibility / most)}",
        "dead zone" if one.in_dead_zone else "",
    ]


def _sentences(answer: PlacementResponse) -> list[str]:
    confidence = answer.confidence
    reasons = "; ".join(clean(reason) for reason in confidence.reasons) or confidence.basis
    known = answer.method != "exact" and answer.gap is not None
    at_most = f", at most {answer.gap:.2%} below the best" if known else ""
    lines = [
        f"value: {number(answer.value)} ({answer.method}{at_most}){_gains(answer.gain)}",
        f"prompt: {answer.prompt_tokens} tokens; dead zone: {zone(answer.dead_zone)}",
        f"curve: {_curve(answer)}",
        f"confidence: {confidence.level} ({reasons})",
    ]
    if answer.relevance != "as_given":
        lines.append(f"relevance: {answer.relevance}, so that the worst counts 0")
    if answer.dropped:
        lines.append(f"did not fit: {listed(answer.dropped)}")
    lines += [f"suggestion: {clean(one.detail)}" for one in answer.suggestions]
    return lines + [f"note: {clean(warning)}" for warning in answer.warnings]


def _curve(answer: PlacementResponse) -> str:
    if answer.profile_id is None:
        return answer.source
    return (
        f"{answer.source}, profile {answer.profile_id} of {answer.confidence.profile_tokens} tokens"
    )


def _gains(gain: Gain) -> str:
    named = {
        "the given order": gain.given,
        "most relevant first": gain.relevance_first,
        "zigzag": gain.zigzag,
    }
    known = [f"{value:+.1%} over {name}" for name, value in named.items() if value is not None]
    return f"; {', '.join(known)}" if known else ""
