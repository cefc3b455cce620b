"""Profiles: the numbers that matter and the curve, or one line for each of many."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from service.contract.profiles import NeedleCurve, Profile, ProfileSummary
from service.render.terminal import chart
from service.report.text import clean, counted, zone

_REVISION = 8
"""Characters that tell commits apart."""


def report(console: Console, profile: Profile) -> None:
    """Print what a profile says."""
    console.print(_facts(profile))
    if profile.predictions and profile.request.sequence_length > 1:  # one token: nothing to predict
        console.print(_agreement(profile))
        console.print(_closest(profile), soft_wrap=True)
    if profile.measured.needle is not None:
        console.print(_retrieval(profile.measured.needle))
    console.print(chart(profile, width=min(console.width, 100)))
    for warning in profile.warnings:
        console.print(f"note: {clean(warning)}", soft_wrap=True)


def listing(console: Console, summaries: list[ProfileSummary]) -> None:
    """Print a line for each profile, its id first; no line is broken or cut."""
    rows = [
        ("id", "model", "tokens", "weights", "documents", "objective", "revision", "measured",
         "dead zone", "created (UTC)"),
    ]  # fmt: skip
    rows += [
        (
            one.id,
            clean(one.model),
            str(one.sequence_length),
            one.weights,
            _documents(one),
            one.objective,
            clean((one.revision or "-")[:_REVISION]),
            _method(one),
            zone(one.dead_zone),
            clean(one.created_at[:16].replace("T", " ")),
        )
        for one in summaries
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        console.print("  ".join(cells).rstrip(), soft_wrap=True)


def _documents(summary: ProfileSummary) -> str:
    """How many, and of what where they are not the built-in text."""
    of = summary.documents_name or summary.documents_source.replace("_", " ")
    return str(summary.documents) + ("" if of == "builtin" else f" {clean(of)}")


def _method(summary: ProfileSummary) -> str:
    """What else differs from how a model is measured by default."""
    parts = [
        f"seed {summary.seed}" if summary.seed else "",
        "positions off" if summary.positional_encoding == "off" else "",
        "raw content" if summary.content_scale == "raw" else "",
        "retrieval too" if summary.needle else "",
    ]
    return ", ".join(filter(None, parts)) or "plainly"


def _facts(profile: Profile) -> Table:
    title = f"{clean(profile.model.id)}, {counted(profile.request.sequence_length, 'token')}"
    table = Table(title=title)
    table.add_column("quantity")
    table.add_column("value", justify="right")
    measured = profile.measured
    table.add_row("id", profile.id)
    table.add_row("documents", str(measured.documents))
    if profile.mixing is not None:
        table.add_row("lambda, sum over layers", f"{profile.mixing.sum:.3f}")
    found = profile.dead_zone
    table.add_row("dead zone (tokens)", zone(found))
    if found is not None:
        if found.start_band is not None and found.end_band is not None:
            low, high = found.start_band, found.end_band
            table.add_row(
                "its 95% band",
                f"{low.low:.0f}..{low.high:.0f} - {high.low - 1:.0f}..{high.high - 1:.0f}",
            )
        if found.support is not None and found.support < 1:
            table.add_row("draws that have one", f"{found.support:.0%}")
        table.add_row("mean density inside", f"{found.mean_density:.3f}")
    table.add_row("primacy mass (first 10%)", f"{profile.shape.primacy_mass:.3f}")
    table.add_row("recency mass (last 10%)", f"{profile.shape.recency_mass:.3f}")
    table.add_row("shape", profile.shape.class_)
    if measured.split_half_wasserstein is not None:
        table.add_row("noise: W1 of two halves", f"{measured.split_half_wasserstein:.4f}")
    return table


def _retrieval(needle: NeedleCurve) -> Table:
    """The functional curve, and how it agrees with influence."""
    rank = needle.spearman_with_influence
    agreement = "" if rank is None else f"; Spearman with influence {rank:.2f}"
    table = Table(
        title=f"retrieval by depth, {needle.facts} facts",
        caption=f"{needle.baseline:.2f} without the fact{agreement}",
    )
    for name in ("token", "log-probability", "95% band"):
        table.add_column(name, justify="right")
    rows = zip(needle.position, needle.log_probability, needle.low, needle.high, strict=True)
    for position, value, low, high in rows:
        table.add_row(str(position), f"{value:.2f}", f"{low:.2f}..{high:.2f}")
    return table


def _agreement(profile: Profile) -> Table:
    table = Table(title="prediction against measurement")
    table.add_column("prediction")
    table.add_column("Wasserstein", justify="right")
    table.add_column("Spearman", justify="right")
    for name, prediction in profile.predictions.items():
        rank = "-" if prediction.spearman is None else f"{prediction.spearman:.3f}"
        table.add_row(clean(name), f"{prediction.wasserstein:.4f}", rank)
    return table


def _closest(profile: Profile) -> str:
    """What the table says, in a sentence."""
    name, best = min(profile.predictions.items(), key=lambda item: item[1].wasserstein)
    noise = profile.measured.split_half_wasserstein
    text = f"closest: {name}, {best.wasserstein:.4f}"
    if noise is None:
        return text
    if best.wasserstein <= noise:
        text += f", not to be told from the measurement's own noise ({noise:.4f})"
    missed = sum(
        p.wasserstein > max(10 * best.wasserstein, noise) for p in profile.predictions.values()
    )
    return f"{text}; {missed} of the others miss this model" if missed else text
