"""How numbers, names and shares look in a terminal.

Progress while a profile is made.

Profiles: the numbers that matter and the curve, or one line for each of many.

Two profiles beside each other.

A placement: the chunks in their best order, and what that order is worth.

A rollout: what theory says of an architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lacuna.contract.jobs import Job
from lacuna.contract.placements import Gain, Placed, PlacementResponse
from lacuna.contract.profiles import Comparison, DeadZone, NeedleCurve, Profile, ProfileSummary
from lacuna.contract.rollouts import RolloutResponse
from lacuna.pictures.terminal import bars, chart, side_by_side

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


@contextmanager
def progress(console: Console, title: str) -> Iterator[Callable[[Job], None]]:
    """A progress bar, drawn in terminals alone; yields what moves it."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% {task.fields[message]}", markup=False),
        TimeElapsedColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(clean(title), total=1.0, message="")

        def show(job: Job) -> None:
            bar.update(task, completed=job.progress, message=standing(job))

        yield show


def standing(job: Job) -> str:
    """How a job stands, in a few words."""
    words: list[str] = [job.state]
    if job.message and job.message != job.state:
        words.append(job.message)
    if job.state == "queued" and job.position:
        words.append(f"{job.position} before it")
    if job.eta_seconds is not None:
        words.append(f"about {max(1, round(job.eta_seconds))} s left")
    return clean(", ".join(words))


_REVISION = 8
"""Characters that tell commits apart."""


def profile_report(console: Console, profile: Profile) -> None:
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


def comparison_report(
    console: Console, answer: Comparison, a: Sequence[float], b: Sequence[float]
) -> None:
    """Print an answer and the two curves.

    Args:
        a: masses that sum to 1.
        b: likewise, of any length.
    """
    for name, side in (("A", answer.a), ("B", answer.b)):
        facts = f"{clean(side.model)}, {side.weights}, {counted(side.sequence_length, 'token')}"
        console.print(f"{name}: {side.id}, {facts}", soft_wrap=True)
    console.print(_table(answer))
    console.print(_distance(answer), soft_wrap=True)
    for warning in answer.warnings:
        console.print(f"note: {clean(warning)}", soft_wrap=True)
    tokens = max(answer.a.sequence_length, answer.b.sequence_length)
    console.print(side_by_side({"A": a, "B": b}, tokens, min(console.width, 100)))


def _table(answer: Comparison) -> Table:
    a, b, moved = answer.a, answer.b, answer.dead_zone_change
    table = Table(title=f"{answer.source}, B against A")
    table.add_column("")
    for name in ("A", "B", "change"):
        table.add_column(name, justify="right")
    table.add_row("shape", a.shape, b.shape, "")
    table.add_row(
        "primacy mass", number(a.primacy_mass), number(b.primacy_mass),
        f"{answer.primacy_change:+.4f}",
    )  # fmt: skip
    table.add_row(
        "recency mass", number(a.recency_mass), number(b.recency_mass),
        f"{answer.recency_change:+.4f}",
    )  # fmt: skip
    share = "" if moved is None else f"{100 * moved.fraction:+.1f} points"
    table.add_row("dead zone", zone(a.dead_zone), zone(b.dead_zone), share)
    inside = ["-" if z is None else number(z.mean_density) for z in (a.dead_zone, b.dead_zone)]
    change = "" if moved is None else f"{moved.mean_density:+.4f}"
    table.add_row("mean density inside", *inside, change)
    return table


def _distance(answer: Comparison) -> str:
    rank = "" if answer.spearman is None else f", Spearman {answer.spearman:.3f}"
    text = f"distance: {answer.wasserstein:.4f} (Wasserstein){rank}"
    if answer.noise_a is None or answer.noise_b is None:
        return f"{text}; the noise of a profile of one document is unknown"
    text += f"; noise of A {answer.noise_a:.4f}, of B {answer.noise_b:.4f}"
    if answer.wasserstein <= max(answer.noise_a, answer.noise_b):
        text += ": not to be told from noise"
    return text


_ROWS = 100
"""From each end: both matter, and drawing thousands takes longer than placing them."""


def placement_report(
    console: Console, answer: PlacementResponse, relevance: Mapping[str, float]
) -> None:
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


_TELLING = ("second_moment", "measured_kernel", "residual_content", "residual")
"""Predictions whose curve is drawn large, the one that uses most of the request first."""


def rollout_report(console: Console, answer: RolloutResponse) -> None:
    """Print an answer."""
    width = min(console.width, 100)
    console.print(_predictions(answer))
    name = _drawn(answer)
    drawn = answer.predictions[name]
    console.print(f"{name}:")
    console.print(bars(drawn.influence, answer.sequence_length, drawn.dead_zone, width))
    if len(answer.predictions) > 1:
        curves = {name: drawn.influence}
        curves |= {n: p.influence for n, p in answer.predictions.items()}
        console.print(f"\n{side_by_side(curves, answer.sequence_length, width)}")
    console.print(_forces(answer))
    console.print(f"depth: {answer.collapse.verdict}", soft_wrap=True)
    console.print(answer.collapse.evidence, soft_wrap=True)
    for sentence in answer.summary:
        console.print(sentence, soft_wrap=True)
    for assumption in answer.assumptions:
        console.print(f"assumed: {assumption}", soft_wrap=True)


def _drawn(answer: RolloutResponse) -> str:
    known = answer.predictions
    if "residual" in known and known.get("residual_content") == known["residual"]:
        return "residual"
    return next((name for name in _TELLING if name in known), next(iter(known)))


def _predictions(answer: RolloutResponse) -> Table:
    named = f"{clean(answer.architecture)}: " if answer.architecture else ""
    sizes = (answer.layers, "layer"), (answer.heads, "head"), (answer.sequence_length, "token")
    table = Table(title=named + ", ".join(counted(*size) for size in sizes))
    table.add_column("prediction", no_wrap=True)
    table.add_column("dead zone", justify="right", no_wrap=True)
    table.add_column("primacy", justify="right")
    table.add_column("recency", justify="right")
    table.add_column("shape")
    for name, prediction in answer.predictions.items():
        shape = prediction.shape
        table.add_row(
            name,
            zone(prediction.dead_zone),
            number(shape.primacy_mass),
            number(shape.recency_mass),
            shape.class_,
        )
    return table


def _forces(answer: RolloutResponse) -> Table:
    table = Table(title="what each ingredient does to the mean position")
    table.add_column("ingredient")
    for name in ("shift", "mean position", "primacy", "recency"):
        table.add_column(name, justify="right")
    for force in answer.forces:
        table.add_row(
            force.name,
            f"{force.shift:+.4f}",
            number(force.mean_position),
            number(force.primacy_mass),
            number(force.recency_mass),
        )
    return table
