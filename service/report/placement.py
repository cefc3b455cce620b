"""A placement: the chunks in their best order, and what that order is worth."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from service.contract.placements import Gain, PlacementResponse
from service.report.text import bar, clean, listed, number, zone


def report(console: Console, answer: PlacementResponse, relevance: Mapping[str, float]) -> None:
    """Print an answer.

    Args:
        relevance: of every chunk, as it was given.
    """
    console.print(_order(answer, relevance))
    for line in _sentences(answer):
        console.print(line, soft_wrap=True)


def _order(answer: PlacementResponse, relevance: Mapping[str, float]) -> Table:
    table = Table(title="best order (visibility 1 is an even share)")
    table.add_column("place", justify="right")
    table.add_column("chunk", overflow="fold")
    for name in ("offset", "tokens", "relevance"):
        table.add_column(name, justify="right")
    table.add_column("visibility", no_wrap=True)
    table.add_column("")
    most = max((one.visibility for one in answer.placements), default=0.0) or 1.0
    for place, one in enumerate(answer.placements, 1):
        table.add_row(
            str(place),
            clean(one.id),
            str(one.offset),
            str(one.tokens),
            number(relevance[one.id]),
            f"{one.visibility:5.2f} {bar(one.visibility / most)}",
            "dead zone" if one.in_dead_zone else "",
        )
    return table


def _sentences(answer: PlacementResponse) -> list[str]:
    confidence = answer.confidence
    reasons = "; ".join(clean(reason) for reason in confidence.reasons) or confidence.basis
    at_most = f", at most {answer.gap:.2%} below the best" if answer.method != "exact" else ""
    lines = [
        f"value: {number(answer.value)} ({answer.method}{at_most}){_gains(answer.gain)}",
        f"prompt: {answer.prompt_tokens} tokens; dead zone: {zone(answer.dead_zone)}",
        f"confidence: {confidence.level} ({reasons})",
    ]
    if answer.relevance != "as_given":
        lines.append(f"relevance: {answer.relevance}, so that the worst counts 0")
    if answer.dropped:
        lines.append(f"did not fit: {listed(answer.dropped)}")
    lines += [f"suggestion: {clean(one.detail)}" for one in answer.suggestions]
    return lines + [f"note: {clean(warning)}" for warning in answer.warnings]


def _gains(gain: Gain) -> str:
    named = {
        "the given order": gain.given,
        "most relevant first": gain.relevance_first,
        "zigzag": gain.zigzag,
    }
    known = [f"{value:+.1%} over {name}" for name, value in named.items() if value is not None]
    return f"; {', '.join(known)}" if known else ""
