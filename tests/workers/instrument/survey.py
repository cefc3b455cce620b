"""Every causal model type of the installed transformers, tried out: the table of docs/models.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
import transformers
from tiny_types import NotBuilt, tiny
from transformers import PreTrainedModel

from lacuna.contract.errors import LacunaError, ModelUnsupported
from lacuna.contract.profile_requests import PREDICTION_NAMES
from workers.attention.kernels import KernelRecorder
from workers.documents import DocumentSet
from workers.influence import influence
from workers.influence.batching import Recorder
from workers.influence.mixing import MixingRecorder
from workers.instrument import Instrumentation, describe_positions, inspect
from workers.job import predictions
from workers.models.loaded import LoadedModel
from workers.second_moment import moments

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "models.md"
CATALOGUE = ROOT / "lacuna" / "architectures" / "measurable.json"
LENGTH = 24


@dataclass(frozen=True)
class Row:
    """One model type. Everything is text, as it stands in the table."""

    type: str
    support: str
    attention: str = ""
    positions: str = ""
    block: str = ""
    watched_by: str = ""
    second_moment: str = ""
    notes: str = ""


def survey(model_type: str) -> Row:
    """Build the type tiny, inspect it, and measure influence, mixing and kernels on it."""
    try:
        model = tiny(model_type)
    except NotBuilt as reason:
        return Row(model_type, "not built", notes=str(reason))
    try:
        return _measured(model_type, model)
    except ModelUnsupported as refusal:
        return Row(model_type, "refused", notes=_sentence(refusal.detail) + _as_decoder(model))


def _measured(model_type: str, model: PreTrainedModel) -> Row:
    found = inspect(model)
    positions = describe_positions(model, found)
    windows = sorted({w for w in positions.windows if w is not None})
    notes = [*found.reasons, *found.warnings]
    failure, predicted = _failure(model, found)
    if failure:
        notes.insert(0, failure)
    if predicted is not None and predicted.reason is not None and found.level == "full":
        notes.append(f"no second moment: {_sentence(predicted.reason)}")
    return Row(
        model_type,
        "not working" if failure else found.level.replace("_", " "),
        f"{found.attention_layers} of {found.layers}",
        positions.kind + (", window" if windows else ""),
        found.block,
        found.capture,
        "yes" if predicted is not None and predicted.influence is not None else "no",
        "; ".join(notes),
    )


def _failure(
    model: PreTrainedModel, found: Instrumentation
) -> tuple[str | None, moments.SecondMomentPrediction | None]:
    """Run a whole measurement with its predictions; what went wrong, if anything."""
    recorders: list[Recorder] = []
    mixing = MixingRecorder(model, found.branches)
    kernels = None if found.capture == "none" else KernelRecorder(model, found)
    recorders += [mixing] if found.branches else []
    recorders += [kernels] if kernels else []
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 131, (2, LENGTH), generator=generator)
    documents = DocumentSet(ids, leading_bos=False, source="random_tokens")
    try:
        result = influence.measure(_loaded(model), documents, batch_size=2, recorders=recorders)
    except LacunaError as error:
        return f"the measurement fails: {_sentence(error.detail)}", None
    if not (np.isfinite(result.norms).all() and (result.norms.sum(-1) > 0).all()):
        return "gradients are not finite", None
    if found.branches and not ((mixing.by_token >= 0) & (mixing.by_token <= 1)).all():
        return "mixing leaves [0, 1]", None
    attention = None if kernels is None else kernels.result()
    if attention is not None and not np.isfinite(attention.last_token_attention).all():
        return "kernels are not finite", None
    if not found.branches:
        return None, None
    failure = _failing(
        predictions.PredictionInputs(LENGTH, mixing.per_document.mean(axis=0), attention)
    )
    return failure if found.level == "full" else None, moments.predict(model, found, ids)


def _failing(evidence: predictions.PredictionInputs) -> str | None:
    """What is missing of the predictions that follow from mixing and kernels."""
    try:
        for name in PREDICTION_NAMES:
            if (
                name != "second_moment"
                and abs(predictions.predict(name, evidence).sum() - 1) > 1e-9
            ):
                return f"{name} does not sum to 1"
        predictions.forces(evidence)
        predictions.collapse(evidence)
    except predictions.Unavailable as reason:
        return f"no prediction of kernels: {reason}"
    return None


def _loaded(model: PreTrainedModel) -> LoadedModel:
    return LoadedModel(
        model=model,
        tokenizer=None,
        id=f"local:{model.config.model_type}",
        revision=None,
        config_digest="0" * 40,
        device=torch.device("cpu"),
        dtype=torch.float32,
        weights="random",
        seed=0,
    )


def _as_decoder(model: PreTrainedModel) -> str:
    """Encoders that have a decoder mode: does it work?"""
    if getattr(model.config, "is_decoder", None) is not False:
        return ""
    config = model.config.to_dict() | {"is_decoder": True}
    try:
        again = type(model)(type(model.config).from_dict(config)).eval().requires_grad_(False)
        level = inspect(again).level.replace("_", " ")
    except Exception:  # whatever the model's own code makes of that setting
        return ""
    return f" With is_decoder = true: {level}."


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


def counts(rows: Sequence[Row]) -> Counter[str]:
    """How many types have which support."""
    return Counter(row.support for row in rows)


def render(rows: Sequence[Row]) -> str:
    """The page, in Markdown."""
    number = counts(rows)
    measurable = number["full"] + number["influence only"]
    lines = [
        "# Models",
        "",
        "Written by `tests/workers/instrument/test_survey.py`, which says how to rewrite it; it",
        "fails when this page is out of date.",
        "",
        f"All {len(rows)} causal model types of transformers {transformers.__version__}, each",
        "built tiny with random weights, inspected and measured: "
        f"{measurable} can be measured ({number['full']} fully,",
        f"{number['influence only']} influence only), {number['refused']} are refused, "
        f"{number['not built']} could not be built that small, "
        f"{number['not working']} do not work.",
        "",
        "- **full**: influence, mixing, attention kernels, and every prediction that follows from",
        "  them. `second_moment` runs the model's branches alone and has a column of its own: "
        f"{sum(row.support == 'full' and row.second_moment == 'yes' for row in rows)}",
        f"  of the {number['full']} have it.",
        "- **influence only**: the gradient alone (and mixing where the notes say so).",
        "- **refused**: `model_unsupported`, with the reason given here.",
        "- **not built**: no tiny model could be made of its configuration; nothing is known about",
        "  the type, and a real model of it is inspected like any other.",
        "",
        '"Watched by" is how the attention weights are seen: transformers\' attention interface,',
        "the fused attention call (`sdpa`), or the softmax itself. Windows are those of the tiny",
        "configuration. What a real model supports is found by inspecting that model, not here.",
        "",
        "| type | support | attention layers | positions | block | watched by | second moment "
        "| notes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(astuple(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def parse(page: str) -> dict[str, Row]:
    """The rows of a rendered page, by type."""
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == len(fields(Row)) and cells[0] != "type":
            rows[cells[0]] = Row(*cells)
    return rows


def catalogue(rows: Sequence[Row]) -> str:
    """The types that can be measured, as the gateway's data file."""
    types = {
        support: sorted(row.type for row in rows if row.support == support.replace("_", " "))
        for support in ("full", "influence_only")
    }
    return json.dumps({"transformers": transformers.__version__} | types, indent=1) + "\n"
