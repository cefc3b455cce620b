"""What clients answer, as notebooks and papers want it: tables, pictures and data frames.

Each class is one of the contract with four methods more: `_repr_html_` shows it in a notebook,
`plot` draws it with matplotlib, `to_pandas` gives its numbers, and a profile's `figure` and `save`
give its picture as SVG, PDF or PNG. matplotlib and pandas are imported when they are called for.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from lacuna.client.errors import Refused
from lacuna.contract import comparisons, experiments, placements, profiles
from lacuna.contract.base import Wire
from lacuna.contract.errors import InvalidRequest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from lacuna.pictures import View

Form = Literal["svg", "pdf", "png"]
_FORMS: dict[str, Form] = {".svg": "svg", ".pdf": "pdf", ".png": "png"}
_SHOWN = 50
"""Rows of a table in a notebook."""
_BLUE, _GREY = "#0072b2", "#9a9a9a"


class _Answer(Wire):  # noqa: PLW1641 - it holds lists, so it has no hash
    """What the classes share."""

    @classmethod
    def of(cls, answer: Wire) -> Self:
        """The same answer of the contract, with the methods of this class."""
        if isinstance(answer, cls):
            return answer
        build: Any = cls.model_construct  # its type says the base class
        made: Self = build(**dict(answer))
        return made

    def __eq__(self, other: object) -> bool:
        # An answer of the contract that says the same is equal, whichever of the two was asked.
        return (
            isinstance(other, Wire)
            and (isinstance(self, type(other)) or isinstance(other, type(self)))
            and dict(self) == dict(other)
        )


class Profile(_Answer, profiles.Profile):
    """A measured profile.

    >>> profile.plot(curves=["measured", "residual"], x="share")  # doctest: +SKIP
    >>> profile.save("figure.pdf", y="linear")  # doctest: +SKIP
    """

    def figure(self, form: Form = "svg", **view: Unpack[View]) -> bytes:
        """The picture of the profile, as the service draws it.

        Args:
            form: `svg`, `pdf` or `png`.
            view: `curves`, some of `measured`, `by_token` and the names of predictions; `x`,
                `tokens` or `share`; `y`, `log` or `linear`.

        Raises:
            Refused: the profile has no such curve.
            ImportError: a PNG needs Pillow: `lacuna-client[png]`.
        """
        from lacuna import pictures

        draw = {
            "svg": pictures.profile_svg, "pdf": pictures.profile_pdf, "png": pictures.profile_png,
        }  # fmt: skip
        if self.measured is None and not view:  # of an endpoint
            recalled = {
                "svg": pictures.recall_svg, "pdf": pictures.recall_pdf, "png": pictures.recall_png,
            }  # fmt: skip
            return recalled[form](self)
        try:
            return draw[form](self, **view)
        except InvalidRequest as error:
            raise Refused.of_error(error) from error

    def save(self, path: str | Path, **view: Unpack[View]) -> None:
        """Write the picture to a file that ends in .svg, .pdf or .png; arguments as `figure`.

        Raises:
            Refused: another ending, or as `figure`.
        """
        form = _FORMS.get(Path(path).suffix.lower())
        if form is None:
            raise Refused(f"{path}: a picture ends in .svg, .pdf or .png", field="path")
        Path(path).write_bytes(self.figure(form, **view))

    def plot(self, ax: Axes | None = None, **view: Unpack[View]) -> Axes:
        """Draw density over position with matplotlib, with band and dead zone.

        Args:
            ax: where to draw; None makes a figure.
            view: as `figure`.

        Raises:
            Refused: the profile has no such curve.
            ImportError: matplotlib is missing: `lacuna-client[figures]`.
        """
        from lacuna.pictures.profile import chosen, density_range

        ax = _axes(ax)
        try:
            curves = chosen(self, view.get("curves"))
        except InvalidRequest as error:
            raise Refused.of_error(error) from error
        share = view.get("x") == "share"
        length = 1.0 if share else float(self.request.sequence_length)
        self._plot_curves(ax, curves, length)
        zone = self.dead_zone
        if zone is not None and self.dead_zone_verdict != "undecided":
            scale = length / self.request.sequence_length
            ax.axvspan(zone.start * scale, zone.end * scale, color=_GREY, alpha=0.22, linewidth=0)
        ax.axhline(1.0, color=_GREY, linestyle=":", linewidth=1)
        ax.set_yscale(view.get("y", "log"))
        if view.get("y", "log") == "log":
            ax.set_ylim(*density_range(curves.values()))
        ax.set_xlabel(f"position in the prompt ({'share of its length' if share else 'tokens'})")
        ax.set_ylabel("density (1 = an even share)")
        ax.set_title(f"{self.model.id}, {self.request.sequence_length} tokens")
        ax.legend()
        return ax

    def _plot_curves(self, ax: Axes, curves: Mapping[str, Sequence[float]], length: float) -> None:
        """Draw curves over a prompt of this length, with the band of the measured one."""
        from lacuna.pictures.scene import STYLES

        measured = self.influence
        if "measured" in curves and measured.low is not None and measured.high is not None:
            (low, at), (high, _) = _density(measured.low, length), _density(measured.high, length)
            ax.fill_between(at, low, high, color=_BLUE, alpha=0.25, linewidth=0)
        styles = {"measured": "measured", "by_token": "tokens"}
        styles |= {
            name: f"prediction{i}" for i, name in enumerate(n for n in curves if n not in styles)
        }
        for name, masses in curves.items():
            density, at = _density(masses, length)
            style = STYLES[styles[name]]
            ax.plot(
                at, density, color=style.light, linewidth=style.width, label=_spaced(name),
                linestyle=(0, style.dash) if style.dash else "-",
            )  # fmt: skip

    def to_pandas(
        self, bins: int | None = None, *, curve: Literal["influence", "recall"] | None = None
    ) -> pd.DataFrame:
        """The numbers of the profile's CSV, column by column.

        Args:
            bins: of influence: equal parts of the prompt; None gives a row for each position.
            curve: `influence`: masses, which sum to 1 over the rows. `recall`: a row for each probe
                and depth. None: influence where it was measured, else recall.

        Raises:
            Refused: the profile has no such curve, or `bins` do not fit it.
            ImportError: pandas is missing: `lacuna-client[figures]`.
        """
        from lacuna import views

        if curve is None:
            curve = "recall" if self.measured is None else "influence"
        found: Sequence[Mapping[str, object]]
        try:
            found = views.recall_rows(self) if curve == "recall" else views.rows(self, bins)
        except InvalidRequest as error:
            raise Refused.of_error(error) from error
        return _frame(found, profile=self.id, model=self.model.id)

    def _repr_html_(self) -> str:
        from lacuna import pictures
        from lacuna.pictures.profile import describe

        shown = "" if self.measured is None else _image(describe(self), self.figure("svg"))
        if self.recall:
            shown += _image(_recall_words(self), pictures.recall_svg(self))
        return (
            f"<p><b>{escape(self.model.id)}</b>, {self.request.sequence_length} tokens, profile "
            f"<code>{self.id}</code></p>" + shown + _notes(self.warnings)
        )


def _image(words: str, svg: bytes) -> str:
    # Not inline: the styles of an SVG would change the whole notebook.
    picture = base64.b64encode(svg).decode()
    return (
        f'<p>{escape(words)}</p><img style="max-width:100%" alt="{escape(words)}" '
        f'src="data:image/svg+xml;base64,{picture}"/>'
    )


def _recall_words(profile: profiles.Profile) -> str:
    from lacuna.pictures.recall import describe

    return " ".join(describe(name, curve) for name, curve in (profile.recall or {}).items())


class PlacementResponse(_Answer, placements.PlacementResponse):
    """An order of chunks."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the prompt as bars, one a chunk: as wide as its tokens, as high as its visibility.

        Raises:
            ImportError: matplotlib is missing: `lacuna-client[figures]`.
        """
        ax = _axes(ax)
        placed = self.placements
        ax.bar(
            [one.offset for one in placed],
            [one.visibility for one in placed],
            width=[one.tokens for one in placed],
            align="edge",
            color=[_GREY if one.in_dead_zone else _BLUE for one in placed],
            edgecolor="white",
        )
        for one in placed if len(placed) <= _SHOWN else ():
            ax.text(one.offset + one.tokens / 2, 0, one.id, ha="center", va="bottom", rotation=90)
        ax.axhline(1.0, color=_GREY, linestyle=":", linewidth=1)
        ax.set_xlim(0, max(self.prompt_tokens, 1))
        ax.set_xlabel("position in the prompt (tokens)")
        ax.set_ylabel("visibility (1 = an even share)")
        ax.set_title(f"{self.advice.decision}: {self.strategy}")
        return ax

    def to_pandas(self) -> pd.DataFrame:
        """A row for each chunk in its order: id, offset, tokens, visibility, mass, in_dead_zone.

        Raises:
            ImportError: pandas is missing: `lacuna-client[figures]`.
        """
        return _frame(
            [one.model_dump() for one in self.placements],
            profile=self.profile_id,
            decision=self.advice.decision,
        )

    def _repr_html_(self) -> str:
        given = self.gain.given
        gain = "" if given is None else f" ({given.value:+.1%} over the given order)"
        if given is not None and given.low is not None and given.high is not None:
            gain = gain[:-1] + f", 95% interval {given.low:+.1%} to {given.high:+.1%})"
        rows = [
            (one.id, one.offset, one.tokens, f"{one.visibility:.2f}",
             "dead zone" if one.in_dead_zone else "")
            for one in self.placements
        ]  # fmt: skip
        dropped = [f"dropped: {one.id} ({one.detail})" for one in self.dropped]
        return (
            f"<p><b>{escape(self.advice.decision)}</b>: {escape(self.advice.reason)}{gain}</p>"
            + _table(("chunk", "offset", "tokens", "visibility", ""), rows)
            + _notes([*dropped, *self.warnings])
        )


class Comparison(_Answer, comparisons.Comparison):
    """How one profile differs from another."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the change of mass on each tenth of the prompt, with its interval.

        Raises:
            ImportError: matplotlib is missing: `lacuna-client[figures]`.
        """
        ax = _axes(ax)
        middles = [(one.start + one.end) / 2 for one in self.masses]
        ax.bar(middles, [one.value for one in self.masses], width=0.08, color=_BLUE, alpha=0.5)
        for at, one in zip(middles, self.masses, strict=True):
            if one.low is not None and one.high is not None:
                ax.plot([at, at], [one.low, one.high], color=_BLUE, linewidth=2)
        ax.axhline(0.0, color=_GREY, linewidth=1)
        ax.set_xlim(0, 1)
        ax.set_xlabel("position in the prompt (share of its length)")
        ax.set_ylabel("change of mass, b less a")
        ax.set_title(f"{self.b.model} against {self.a.model}: {_spaced(self.verdict)}")
        return ax

    def to_pandas(self) -> pd.DataFrame:
        """A row for each tenth of the prompt: start, end, value, low, high, p.

        Raises:
            ImportError: pandas is missing: `lacuna-client[figures]`.
        """
        return _frame(
            [one.model_dump() for one in self.masses],
            a=self.a.id,
            b=self.b.id,
            verdict=self.verdict,
        )

    def _repr_html_(self) -> str:
        rows = [
            (f"{one.start:.0%} to {one.end:.0%}", _change(one.value, one.low, one.high),
             "" if one.p is None else f"{one.p:.3g}")
            for one in self.masses
        ]  # fmt: skip
        return (
            f"<p><b>{_spaced(self.verdict)}</b>: {escape(self.summary)}</p>"
            + _table(("tenth of the prompt", "change of mass, b less a", "p"), rows)
            + _notes(self.warnings)
        )


class ExperimentResult(_Answer, experiments.ExperimentResult):
    """Orders of chunks, compared on the user's own questions."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw each order's gain over the reference as a point with its interval around zero.

        The intervals hold for all orders together, as the verdict takes them.

        Raises:
            ImportError: matplotlib is missing: `lacuna-client[figures]`.
        """
        ax = _axes(ax)
        compared = [one for one in self.orders if one.name != self.reference]
        for at, one in enumerate(compared):
            certain = one.joint_low > 0 or one.joint_high < 0
            colour = _BLUE if certain else _GREY
            ax.plot([one.joint_low, one.joint_high], [at, at], color=colour, linewidth=2)
            ax.plot([one.difference.value], [at], "o", color=colour)
        ax.set_yticks(range(len(compared)), [_spaced(one.name) for one in compared])
        ax.invert_yaxis()
        ax.axvline(0.0, color=_GREY, linestyle=":", linewidth=1)
        ax.set_xlabel(f"score less that of {_spaced(self.reference)} (95%, all orders together)")
        ax.set_title(f"{self.model}, {self.questions} questions: {_spaced(self.verdict.decision)}")
        return ax

    def to_pandas(self) -> pd.DataFrame:
        """A row for each order, the reference first: name, mean, low, high, difference with its
        interval (`difference_low`, `joint_low`, ..), p, flips, changed.

        Raises:
            ImportError: pandas is missing: `lacuna-client[figures]`.
        """
        rows = []
        for one in self.orders:
            row = one.model_dump()
            gain = row.pop("difference")
            row |= {
                "difference": gain["value"], "difference_low": gain["low"],
                "difference_high": gain["high"],
            }  # fmt: skip
            rows.append(row)
        return _frame(rows, experiment=self.id, decision=self.verdict.decision)

    def _repr_html_(self) -> str:
        rows = [
            (_spaced(one.name), f"{one.mean:.3g}",
             "reference" if one.name == self.reference
             else _change(one.difference.value, one.joint_low, one.joint_high), f"{one.p:.3g}")
            for one in self.orders
        ]  # fmt: skip
        return (
            f"<p><b>{_spaced(self.verdict.decision)}</b>: {escape(self.verdict.words)}</p>"
            + _table(("order", "mean score", "difference", "p"), rows)
            + _notes(self.warnings)
        )


def _density(masses: Sequence[float], length: float) -> tuple[list[float], list[float]]:
    """Densities, and the positions of their middles on an axis of this length."""
    count = len(masses)
    at = [(i + 0.5) * length / count for i in range(count)]
    return [mass * count for mass in masses], at


def _needed(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{what} needs {package}: pip install 'lacuna-client[figures]'"
        ) from error


def _axes(ax: Axes | None) -> Axes:
    # Also where axes are given, so that the error does not depend on it.
    pyplot = _needed("matplotlib.pyplot", "plot()")
    if ax is not None:
        return ax
    made: Axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]
    return made


def _frame(rows: Iterable[Mapping[str, Any]], **attrs: object) -> pd.DataFrame:
    frame: pd.DataFrame = _needed("pandas", "to_pandas()").DataFrame(list(rows))
    frame.attrs |= attrs
    return frame


def _spaced(verdict: str | None) -> str:
    return "not tested" if verdict is None else verdict.replace("_", " ")


def _change(value: float, low: float | None, high: float | None) -> str:
    band = "" if low is None or high is None else f" [{low:+.3g}, {high:+.3g}]"
    return f"{value:+.3g}{band}"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def line(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(c))}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows[:_SHOWN])
    more = len(rows) - _SHOWN
    rest = f"<p>and {more} more: to_pandas() has all</p>" if more > 0 else ""
    return f"<table><thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>{rest}"


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes[:_SHOWN]) + "</ul>"
