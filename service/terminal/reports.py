"""How numbers, names and jobs look in a terminal; the report and the list of profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lacuna.contract.endpoints import EndpointEstimate, ServedModel, Spending
from lacuna.contract.jobs import Job
from lacuna.contract.profiles import (
    DeadZone,
    DocumentSampling,
    Interval,
    Prediction,
    Profile,
    ProfileSummary,
    Shape,
    ZoneVerdict,
)
from lacuna.contract.recall import RecallCurve
from lacuna.pictures.recall import facts_line
from lacuna.pictures.terminal import chart, shown

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LISTED = 20
_BAR = 16


def clean(text: str) -> str:
    """A name without control characters: it comes from a file or another machine."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def number(value: float) -> str:
    """At most three significant digits."""
    return f"{value:.3g}"


def bar(share: float, width: int = 12) -> str:
    """A bar of `width` columns when `share` is 1, to an eighth of a column."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def zone_span(found: DeadZone | None, verdict: ZoneVerdict | None = None) -> str:
    """First and last token of a dead zone, and its share of the prompt, or the verdict on it."""
    if verdict == "undecided":
        return "undecided"
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
    """A progress bar, drawn in terminals only; yields the function that moves it."""
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
            bar.update(task, completed=job.progress, message=job_state(job))

        yield show


def job_state(job: Job) -> str:
    """State, message, place in the queue and time left of a job, in a few words."""
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
    for name, curve in (profile.recall or {}).items():
        console.print(_recall(name, curve))
    if profile.measured is not None:
        drawn = chart(profile, width=min(console.width, 100))
        console.print(shown(drawn, console.encoding))
    if profile.endpoint is not None:
        for line in _served(profile.endpoint, profile.spending):
            console.print(line, soft_wrap=True)
    for warning in profile.warnings:
        console.print(f"note: {clean(warning)}", soft_wrap=True)


def profile_list(console: Console, summaries: Sequence[ProfileSummary]) -> None:
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
            "-" if one.shape is None else zone_span(one.dead_zone, one.dead_zone_verdict),
            clean(one.created_at[:16].replace("T", " ")),
        )
        for one in summaries
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        console.print("  ".join(cells).rstrip(), soft_wrap=True)


def _documents(summary: ProfileSummary) -> str:
    """How many, and of which source unless it is the built-in text; groups where only recall was
    measured."""
    if summary.shape is None:
        return f"{summary.documents} groups"
    of = summary.documents_name or summary.documents_source.replace("_", " ")
    return str(summary.documents) + ("" if of == "builtin" else f" {clean(of)}")


def _method(summary: ProfileSummary) -> str:
    """What differs from how a model is measured by default."""
    parts = [
        f"seed {summary.seed}" if summary.seed else "",
        "positions off" if summary.positional_encoding == "off" else "",
        "raw content" if summary.content_scale == "raw" else "",
        ("recall alone" if summary.shape is None else "recall too") if summary.recall else "",
    ]
    return ", ".join(filter(None, parts)) or "plainly"


def _facts(profile: Profile) -> Table:
    title = f"{clean(profile.model.id)}, {counted(profile.request.sequence_length, 'token')}"
    table = Table(title=title)
    table.add_column("quantity")
    table.add_column("value", justify="right")
    table.add_row("id", profile.id)
    if profile.measured is None or profile.shape is None:
        return table
    measured = profile.measured
    table.add_row("documents", f"{measured.documents} ({_sampling(measured.sampling)})")
    if profile.mixing is not None:
        table.add_row("lambda, sum over layers", f"{profile.mixing.sum:.3f}")
    found, form = profile.dead_zone, profile.shape
    table.add_row("dead zone (tokens)", zone_span(found, profile.dead_zone_verdict))
    if found is not None and profile.dead_zone_verdict == "undecided":
        table.add_row("of this curve alone", zone_span(found))
    if found is not None:
        if found.start_band is not None and found.end_band is not None:
            low, high = found.start_band, found.end_band
            table.add_row(
                "its 95% band",
                f"{low.low:.0f}..{low.high:.0f} - {high.low - 1:.0f}..{high.high - 1:.0f}",
            )
        table.add_row("mean density inside", f"{found.mean_density:.3f}")
    table.add_row("primacy mass (first 10%)", _with_band(form.primacy_mass, form.primacy_band))
    table.add_row("recency mass (last 10%)", _with_band(form.recency_mass, form.recency_band))
    table.add_row("shape", shape_words(form))
    return table


def shape_words(form: Shape) -> str:
    """The class, or what it may be."""
    if form.decided:
        return form.class_
    if form.support is None:
        return f"undecided ({form.class_})"
    likely = [f"{name} {share:.0%}" for name, share in form.support.items() if share >= 0.05]
    return f"undecided ({', '.join(likely)})"


def _sampling(found: DocumentSampling) -> str:
    """Why reading stopped, and how precisely the masses of tenths are known."""
    reason = {
        "narrow": "enough",
        "budget": "the most allowed",
        "exhausted": "there are no more",
        "fixed": "as asked for",
    }[found.reason]
    if found.half_width is None:
        return reason
    text = f"{reason}; tenths known to {found.half_width:.1%}"
    if found.half_width > found.target and found.needed is not None:
        text += f", to {found.target:.0%} with about {found.needed}"
    return text


def _with_band(value: float, band: Interval | None) -> str:
    return f"{value:.3f}" if band is None else f"{value:.3f} [{band.low:.3f}, {band.high:.3f}]"


def _recall(name: str, curve: RecallCurve) -> Table:
    """Recall by depth as bars with their bands, the verdict, and the agreement with influence."""
    table = Table(title=f"recall of {clean(name)} by depth", caption=facts_line(curve))
    table.add_column("token", justify="right")
    table.add_column("recall", justify="right")
    table.add_column("", min_width=_BAR)
    table.add_column("95% band", justify="right")
    table.add_column("of differences", justify="right")
    table.add_column("influence", justify="right")
    highest = max(*curve.probability, 1e-6)
    level = _bands(curve.low, curve.high, len(curve.depth))
    shape = _bands(curve.simultaneous_low, curve.simultaneous_high, len(curve.depth))
    for at, position in enumerate(curve.position):
        value, density = curve.probability[at], curve.influence_density
        table.add_row(
            f"{position:.0f}",
            f"{value:.3f}",
            bar(value / highest, _BAR),
            level[at],
            shape[at],
            "-" if density is None else f"{density[at]:.2f}",
        )
    return table


def _served(found: ServedModel, spent: Spending | None) -> Iterator[str]:
    """Which model answered, how it was read, and what that took."""
    called = "" if found.served_model is None else f", which calls itself {found.served_model}"
    yield clean(f"{found.model}{called}; tokens counted by {found.counts_by}")
    for probe, way in found.ways.items():
        beyond = found.censored.get(probe, 0.0)
        yield clean(f"{probe} read by {way}; {beyond:.1%} of answers beyond the server's list")
    for way, why in found.why_not_higher.items():
        yield clean(f"  not {way}: {why}")
    if spent is not None:
        yield (
            f"calls {spent.calls:,}, from earlier starts {spent.replayed:,}; tokens "
            f"{spent.prompt_tokens:,} in, {spent.generated_tokens:,} out; cost {spent.cost:.4g}"
        )


def estimate_table(found: EndpointEstimate) -> Table:
    """What measuring an endpoint takes, at least and at most."""
    table = Table(title=f"endpoint {clean(found.endpoint)}")
    for name in ("", "calls", "tokens in", "tokens out", "cost", "minutes"):
        table.add_column(name, justify="right")
    for name, one in (("at least", found.least), ("at most", found.most)):
        table.add_row(
            name, f"{one.calls:,}", f"{one.prompt_tokens:,}", f"{one.generated_tokens:,}",
            f"{one.cost:.4g}", f"{one.minutes:.1f}",
        )  # fmt: skip
    return table


def _bands(low: list[float] | None, high: list[float] | None, count: int) -> list[str]:
    if low is None or high is None:
        return ["-"] * count
    return [f"{a:.3f}..{b:.3f}" for a, b in zip(low, high, strict=True)]


def _agreement(profile: Profile) -> Table:
    table = Table(title="prediction against measurement")
    table.add_column("prediction")
    table.add_column("Wasserstein", justify="right")
    table.add_column("Spearman", justify="right")
    for name, prediction in profile.predictions.items():
        rank = "-"
        if prediction.spearman is not None:
            rank = _with_band(prediction.spearman, prediction.spearman_band)
        distance = _with_band(prediction.wasserstein, prediction.wasserstein_band)
        table.add_row(clean(name), distance, rank)
    return table


def _closest(profile: Profile) -> str:
    """Which prediction is closest, and whether the distance is more than noise."""
    name, best = min(profile.predictions.items(), key=lambda item: item[1].wasserstein)
    noise = profile.influence.split_half_wasserstein
    text = f"closest: {name}, {best.wasserstein:.4f}"
    if best.same_documents is not None:
        text += f"; {_paired(best)}"
    elif noise is not None and best.wasserstein <= noise:
        text += f", within the noise of the measurement ({noise:.4f})"
    missed = sum(
        p.wasserstein > max(10 * best.wasserstein, noise or 0.0)
        for p in profile.predictions.values()
    )
    return f"{text}; {missed} of the others miss this model" if missed else text


def _paired(prediction: Prediction) -> str:
    """How a prediction that reads documents agrees with what was measured on the same ones."""
    found = prediction.same_documents
    assert found is not None
    text = f"{found.wasserstein:.4f} from the measurement of the {found.documents} it read"
    if found.noise is None:
        return text
    where = "within" if found.wasserstein <= found.noise else "beyond"
    return f"{text}, {where} paired noise ({found.noise:.4f})"
