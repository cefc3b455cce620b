"""Answers in notebooks, as figures and as data frames."""

from __future__ import annotations

import html
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest

import lacuna
from lacuna import Comparison, ExperimentResult, OfflinePlacer, PlacementResponse, Profile, Refused
from lacuna.comparisons import compare
from lacuna.contract import comparisons, placements, profiles
from lacuna.contract.recall import RecallCurve
from lacuna.views import columns_of

EXAMPLES = Path(__file__).parents[3] / "openapi" / "examples"
CHUNKS = [
    {"id": "<b>&", "tokens": 20, "relevance": 0.9},
    {"id": "b", "tokens": 30, "relevance": 0.5},
    {"id": "c", "tokens": 14, "relevance": 0.1},
]


@pytest.fixture
def measured(profile: profiles.Profile) -> Profile:
    """A profile as a client answers it."""
    return Profile.of(profile)


@pytest.fixture
def placed(measured: Profile) -> PlacementResponse:
    """An answer of a placer."""
    return OfflinePlacer(measured).place(CHUNKS, max_chunks=2)


@pytest.fixture
def compared(profile: profiles.Profile, make_profile: Any) -> Comparison:
    """Two profiles, b less a."""
    return Comparison.of(compare(profile, make_profile(tokens=64), source="measured", bins=10))


@pytest.fixture
def experiment() -> ExperimentResult:
    """An experiment as the API's documentation shows it."""
    return ExperimentResult.of_answer(
        (EXAMPLES / "get_v1_experiments_experiment_id.response-200.json").read_bytes()
    )


@pytest.fixture
def pyplot() -> Any:
    """matplotlib without a screen."""
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    pyplot.close("all")


def test_every_client_answers_with_them(
    client: Any, profile: profiles.Profile, placed: PlacementResponse, compared: Comparison
) -> None:
    answers = {"profiles": profile, "placements": placed, "comparisons": compared}

    def handler(request: httpx.Request) -> httpx.Response:
        answer = answers[request.url.path.split("/")[2]]
        return httpx.Response(200, content=answer.model_dump_json())

    found = client(handler)
    for kind, answer in (
        (Profile, found.get_profile("a" * 32)),
        (PlacementResponse, found.place(CHUNKS, model="gpt2")),
        (Comparison, found.compare("a" * 32, "b" * 32)),
    ):
        assert type(answer) is kind
    assert type(placed) is PlacementResponse


def test_they_are_equal_to_what_the_contract_has(
    profile: profiles.Profile, measured: Profile, placed: PlacementResponse, compared: Comparison
) -> None:
    plain = profiles.Profile.model_validate_json(measured.model_dump_json())
    assert (measured == plain, plain == measured) == (True, True)
    assert measured == profile
    assert measured != profile.model_copy(update={"id": "0" * 32})
    assert measured != placed
    assert Profile.of(measured) is measured
    for answer, kind in (
        (measured, profiles.Profile),
        (placed, placements.PlacementResponse),
        (compared, comparisons.Comparison),
    ):
        assert isinstance(answer, kind)
        assert kind.model_validate_json(answer.model_dump_json()) == answer
        assert pickle.loads(pickle.dumps(answer)) == answer
        assert type(answer).of_answer(answer.model_dump_json()) == answer


def test_notebooks_show_words_numbers_and_pictures_as_html(
    measured: Profile, placed: PlacementResponse, compared: Comparison
) -> None:
    for answer in (measured, placed, compared):
        root = ET.fromstring(f"<div>{answer._repr_html_()}</div>")  # whole, and escaped
        assert not {"script", "style", "svg"} & {element.tag for element in root.iter()}
    said = placed._repr_html_()
    assert placed.advice.reason in html.unescape(said)
    assert "over the given order, 95% interval " in said
    assert "&lt;b&gt;&amp;" in said
    assert "dropped: c (only 2 may stay)" in said
    assert "data:image/svg+xml;base64," in measured._repr_html_()
    assert f"profile <code>{measured.id}</code>" in measured._repr_html_()
    assert compared.summary in html.unescape(compared._repr_html_())
    many = [{"id": f"c{i}", "tokens": 1, "relevance": 1.0} for i in range(80)]
    assert "and 30 more" in OfflinePlacer(measured).place(many)._repr_html_()


def test_an_experiment_shows_its_verdict_and_its_orders(
    client: Any, experiment: ExperimentResult
) -> None:
    document = experiment.model_dump_json()
    found = client(lambda _: httpx.Response(200, content=document)).get_experiment("a" * 32)
    assert type(found) is ExperimentResult
    assert found == experiment
    said = html.unescape(found._repr_html_())
    ET.fromstring(f"<div>{found._repr_html_()}</div>")
    assert found.verdict.words in said
    for one in found.orders:
        assert one.name.replace("_", " ") in said


def test_an_experiment_is_drawn_as_points_with_intervals(
    pyplot: Any, experiment: ExperimentResult
) -> None:
    ax = experiment.plot()
    compared = [one for one in experiment.orders if one.name != experiment.reference]
    points = [line for line in ax.get_lines() if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in points] == [one.difference.value for one in compared]
    bars = [list(line.get_xdata()) for line in ax.get_lines() if line.get_linewidth() == 2]
    assert [[one.joint_low, one.joint_high] for one in compared] == bars
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == [one.name.replace("_", " ") for one in compared]


def test_an_experiment_is_a_data_frame(experiment: ExperimentResult) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = experiment.to_pandas()
    assert list(frame["name"]) == [one.name for one in experiment.orders]
    assert list(frame["difference"]) == [one.difference.value for one in experiment.orders]
    assert frame.attrs["decision"] == experiment.verdict.decision


def test_figures_have_the_curves_and_axes_that_are_chosen(
    measured: Profile, tmp_path: Path
) -> None:
    everything = measured.figure()
    assert everything == lacuna.client.answers.Profile.of(measured).figure("svg")
    for form, start in (("svg", b"<svg"), ("pdf", b"%PDF-1.4"), ("png", b"\x89PNG")):
        path = tmp_path / f"figure.{form}"
        measured.save(path, curves=["measured"], y="linear")
        assert path.read_bytes().startswith(start)
        assert path.read_bytes() != measured.figure(form)  # type: ignore[arg-type]
    one = measured.figure("svg", curves=["residual"], x="share").decode()
    assert 'class="prediction0"' in one
    assert 'class="measured"' not in one
    assert 'class="band"' not in one
    assert "share of its length" in one
    assert ">100%<" in one
    linear = measured.figure("svg", curves=["measured"], y="linear").decode()
    assert ">0<" in linear
    for wrong in ({"curves": ["nothing"]}, {"curves": []}, {"curves": ["measured", "x"]}):
        with pytest.raises(Refused, match="curves"):
            measured.figure(**wrong)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"ends in \.svg, \.pdf or \.png"):
        measured.save(tmp_path / "figure.gif")


def test_plots_are_matplotlibs(
    pyplot: Any, measured: Profile, placed: PlacementResponse, compared: Comparison
) -> None:
    ax = measured.plot(curves=["measured", "residual"])
    lines = {line.get_label(): line for line in ax.get_lines()}
    masses = measured.measured.smoothed
    assert list(lines["measured"].get_ydata()) == [mass * len(masses) for mass in masses]
    assert lines["measured"].get_xdata()[0] == 0.5
    assert "residual" in lines
    assert ax.get_yscale() == "log"
    assert lines["measured"].get_color() != lines["residual"].get_color()
    collapsed = measured.predictions["residual"].model_copy(
        update={"influence": [1.0 - 63e-30] + [1e-30] * 63}
    )
    flat = measured.model_copy(update={"predictions": {"residual": collapsed}}).plot()
    low, high = flat.get_ylim()
    assert high / low <= 2_000
    again = measured.plot(pyplot.subplots()[1], x="share", y="linear", curves=["by_token"])
    assert again.get_yscale() == "linear"
    assert again.get_lines()[0].get_xdata()[-1] < 1
    with pytest.raises(Refused, match="curves"):
        measured.plot(curves=["nothing"])
    bars = placed.plot().patches
    assert [bar.get_height() for bar in bars] == [one.visibility for one in placed.placements]
    assert [bar.get_width() for bar in bars] == [one.tokens for one in placed.placements]
    assert len(compared.plot().patches) == 10
    for drawn in (ax, again):
        drawn.figure.canvas.draw()


def test_data_frames_have_the_numbers(
    measured: Profile, placed: PlacementResponse, compared: Comparison
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = measured.to_pandas()
    columns = columns_of(measured)
    assert len(frame) == measured.request.sequence_length
    assert set(columns) <= set(frame.columns)
    assert frame["measured"].sum() == pytest.approx(1, abs=1e-4)
    assert len(measured.to_pandas(bins=8)) == 8
    assert frame.attrs["profile"] == measured.id
    assert list(placed.to_pandas()["id"]) == placed.order
    assert list(compared.to_pandas()["value"]) == [one.value for one in compared.masses]


def test_without_the_packages_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, measured: Profile, placed: PlacementResponse,
    compared: Comparison,
) -> None:  # fmt: skip
    def refuses(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("matplotlib", "pandas"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *arguments, **more)

    real = lacuna.client.answers.import_module
    monkeypatch.setattr("lacuna.client.answers.import_module", refuses)
    for answer in (measured, placed, compared):
        with pytest.raises(ImportError, match=r"plot\(\) needs matplotlib: pip install 'lacuna-c"):
            answer.plot()
        with pytest.raises(ImportError, match=r"to_pandas\(\) needs pandas: pip install"):
            answer.to_pandas()
        assert answer._repr_html_()


def test_a_pdf_is_whole(measured: Profile) -> None:
    document = measured.figure("pdf")
    assert document == measured.figure("pdf")
    (table,) = re.findall(rb"startxref\n(\d+)\n%%EOF\n$", document)
    rows = document[int(table) :].splitlines()
    assert rows[0] == b"xref"
    count = int(rows[1].split()[1])
    for number, row in enumerate(rows[3 : 2 + count], 1):
        start = int(row.split()[0])
        assert document[start:].startswith(b"%d 0 obj" % number)
    (length,) = re.findall(rb"/Length (\d+)", document)
    stream = document.partition(b"stream\n")[2]
    assert stream[int(length) :].startswith(b"\nendstream")
    assert b"(density \\(1 = an even share\\)) Tj" in document


def test_importing_them_imports_neither_matplotlib_nor_pandas_nor_scipy() -> None:
    code = (
        "import sys, lacuna; lacuna.Profile, lacuna.Client;"
        "print({'matplotlib', 'pandas', 'scipy', 'numpy'} & set(sys.modules))"
    )

    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert said.strip() == "set()"


def test_recall_stands_beside_influence(
    measured: Profile, recall_curve: RecallCurve, served: profiles.Profile
) -> None:
    both = Profile.of(measured.model_copy(update={"recall": {"facts": recall_curve}}))
    said = both._repr_html_()
    ET.fromstring(f"<div>{said}</div>")
    assert said.count("data:image/svg+xml;base64,") == 2
    assert "Probability of recalling facts" in said
    assert "Share of the influence" in said
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = both.to_pandas(curve="recall")
    assert list(frame["probability"]) == recall_curve.probability
    assert set(frame["probe"]) == {"facts"}
    assert "measured" in both.to_pandas().columns
    alone = Profile.of(served)
    assert len(alone.to_pandas()) == 5
    with pytest.raises(Refused, match="recall was not measured"):
        measured.to_pandas(curve="recall")
    with pytest.raises(Refused, match="recall alone"):
        alone.to_pandas(curve="influence")


def test_an_undecided_shape_is_not_named(measured: Profile) -> None:
    assert measured.shape is not None
    assert f"shape='{measured.shape.class_}'" in repr(measured)
    open_ = measured.shape.model_copy(update={"decided": False})
    assert "shape='undecided'" in repr(measured.model_copy(update={"shape": open_}))


def test_recall_alone_shows_itself(served: profiles.Profile) -> None:
    found = Profile.of(served)
    assert found.figure("svg").startswith(b"<svg")
    assert found.figure("pdf").startswith(b"%PDF")
    assert "Probability of recalling facts" in found._repr_html_()
    assert "recall of facts" in repr(found)
    with pytest.raises(Refused, match="recall alone"):
        found.figure("svg", x="share")
