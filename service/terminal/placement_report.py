"""A placement in the terminal: the order as a table, then what it is worth and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lacuna.contract.base import percent
from lacuna.contract.placements import Dropped, GainOver, Placed, PlacementResponse
from service.terminal.reports import bar, clean, listed, number, zone_span

_ROWS = 100
"""From each end: both matter, and drawing thousands takes longer than placing them."""


def placement_report(
    console: Console, answer: PlacementResponse, relevance: Mapping[str, float]
) -> None:
    """Print a placement.

    Args:
        relevance: of every chunk, as it was given.
    """
    console.print(_order(answer, relevance))
    for line in _sentences(answer):
        console.print(line, soft_wrap=True)


def _order(answer: PlacementResponse, relevance: Mapping[str, float]) -> Table:
    title = f"{answer.strategy.replace('_', ' ')} order (visibility 1 is an even share)"
    table = Table(title=title, box=SIMPLE_HEAD)
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
    advice = answer.advice
    lines = [
        f"advice: {advice.decision.replace('_', ' ')}: {clean(advice.reason)}",
        *_gains(answer),
        f"value: {number(answer.value)} ({answer.method}{at_most})",
        f"prompt: {answer.prompt_tokens} tokens; dead zone: {zone_span(answer.dead_zone)}",
        f"curve: {_curve(answer)}",
        f"confidence: {confidence.level} ({reasons})",
    ]
    lines.append(f"relevance: {_relevance(answer)}")
    if answer.dropped:
        lines.append(f"dropped: {dropped_words(answer.dropped)}")
    lines += [f"note: {clean(note)}" for note in answer.relevance.notes]
    lines += [f"suggestion: {clean(one.detail)}" for one in answer.suggestions]
    return lines + [f"note: {clean(warning)}" for warning in answer.warnings]


def _curve(answer: PlacementResponse) -> str:
    if answer.profile_id is None:
        return answer.source
    return (
        f"{answer.source}, profile {answer.profile_id} of {answer.confidence.profile_tokens} tokens"
    )


_RULES = {
    "given": "your order",
    "relevance_first": "most relevant first",
    "relevance_last": "most relevant last",
    "zigzag_best_first": "zigzag, best first",
    "zigzag_best_last": "zigzag, best last",
    "document_order": "document order",
}
_WEIGHTS = {
    "probability": "probabilities as given",
    "logit": "logits, turned into probabilities",
    "hit_curve": "by rank: how often the chunk of each rank holds the answer",
    "calibration": "calibrated probabilities",
}


def _gains(answer: PlacementResponse) -> list[str]:
    """What the judged order gains over each rule, with intervals."""
    known = [
        (words, found)
        for name, words in _RULES.items()
        if (found := getattr(answer.gain, name)) is not None
    ]
    if not known:
        return []
    name = answer.advice.name.replace("_", " ")
    judged = "this order" if answer.advice.order is None else f"another order ({name})"
    width = max(len(words) for words, _ in known)
    rows = [f"  over {words:<{width}}  {gain_words(found)}" for words, found in known]
    return [f"gain of {judged} in the visibility of relevant text:", *rows]


def gain_words(found: GainOver) -> str:
    """A gain with its interval: "+3.2% [+1.0%, +5.1%]"."""
    if found.low is None or found.high is None or found.low == found.high:
        return percent(found.value)
    return f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}]"


def _relevance(answer: PlacementResponse) -> str:
    found = answer.relevance
    length = "lengths may decide" if found.by_length else "lengths do not decide"
    return f"{_WEIGHTS.get(found.basis, found.basis)}; {length}"


def dropped_words(dropped: Sequence[Dropped]) -> str:
    """Ids by reason: "d, e (the prompt may have 80 tokens)"."""
    reasons: dict[str, list[str]] = {}
    for one in dropped:
        reasons.setdefault(one.detail, []).append(one.id)
    return "; ".join(f"{listed(names)} ({clean(why)})" for why, names in reasons.items())
