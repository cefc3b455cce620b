"""Labelled scores as people have them, for `calibrate`: a table or JSON lines."""

from __future__ import annotations

import csv
import io
from typing import Any

from lacuna.client.chunks import parse_json, parse_number
from lacuna.contract.calibrations import MAX_LABELS
from lacuna.contract.errors import InvalidRequest

_COLUMNS = ("score", "label", "question")
_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")


def parse_labels(text: str, name: str = "the text") -> dict[str, Any]:
    """Fields of a calibration request: `scores`, `labels` and, where there are any, `questions`.

    Args:
        text: JSON lines if it begins with a brace, else a table with tabs, semicolons or commas
            under a heading that names `score`, `label` and perhaps `question`.
        name: of the source, for messages.

    Raises:
        InvalidRequest: names the source, the line and the column at fault.

    >>> parse_labels("score,label\\n0.8,1\\n0.3,0\\n")
    {'scores': [0.8, 0.3], 'labels': [True, False]}
    """
    rows = _objects(text, name) if text.lstrip().startswith("{") else _table(text, name)
    if not rows:
        raise InvalidRequest(f"{name}: no labels")
    if len(rows) > MAX_LABELS:
        raise InvalidRequest(f"{name}: more than {MAX_LABELS:,} labels")
    fields: dict[str, Any] = {
        "scores": [_score(row, where) for where, row in rows],
        "labels": [_label(row, where) for where, row in rows],
    }
    asked = [row.get("question") for _, row in rows]
    if any(asked):
        missing = next((where for where, row in rows if not row.get("question")), None)
        if missing is not None:
            raise InvalidRequest(f"{missing}: no question, and other lines have one")
        fields["questions"] = [str(question) for question in asked]
    return fields


def _score(row: dict[str, Any], where: str) -> float:
    if "score" not in row:
        raise InvalidRequest(f"{where}: no score")
    return parse_number(str(row["score"]), f"{where}: score")


def _label(row: dict[str, Any], where: str) -> bool:
    value = str(row.get("label", "")).strip().lower()
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    raise InvalidRequest(f"{where}: label: {value!r:.40} is none of 1, 0, true, false, yes, no")


def _objects(text: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    rows = []
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{name}, line {at}"
        value = parse_json(line, where)
        if not isinstance(value, dict):
            raise InvalidRequest(f"{where}: expected an object with score, label and question")
        _known(list(value), where)
        rows.append((where, value))
    return rows


def _table(text: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    first = next((line for line in text.splitlines() if line.strip()), "")
    mark = next((each for each in "\t;," if each in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True)
    rows: list[tuple[str, dict[str, Any]]] = []
    header: list[str] | None = None
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            where = f"{name}, line {reader.line_num}"
            if not any(cells):
                continue
            if header is None:
                header = [cell.lower() for cell in cells]
                _known(header, where)
                if not {"score", "label"} <= set(header):
                    raise InvalidRequest(f"{where}: a heading names score, label and question")
            elif len(cells) != len(header):
                raise InvalidRequest(f"{where}: {len(cells)} cells under {len(header)} columns")
            else:
                rows.append((where, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise InvalidRequest(f"{name}, line {reader.line_num}: {error}") from error
    return rows


def _known(names: list[str], where: str) -> None:
    strange = next((one for one in names if one not in _COLUMNS), None)
    if strange is not None:
        raise InvalidRequest(
            f"{where}: unknown column {strange!r:.80}; known: score, label, question"
        )
