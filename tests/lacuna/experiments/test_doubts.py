from __future__ import annotations

import pytest

from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.experiments.doubts import doubts


def request(count: int, missing: int) -> ExperimentRequest:
    questions = [
        {
            "question": "q",
            "answers": ["zzz" if at < missing else "ara"],
            "chunks": [{"id": name, "text": f"Ara {name}", "score": 1.0} for name in "ab"],
        }
        for at in range(count)
    ]
    return ExperimentRequest.model_validate({"model": "gpt2", "questions": questions})


@pytest.mark.parametrize(
    ("count", "missing", "words"),
    [
        (100, 0, []),
        (11, 0, ["11 questions are too few: no verdict is given below 12"]),
        (1, 0, ["1 question is too few"]),
        (12, 0, ["12 questions are few: use at least 100"]),
        (100, 1, ["1 of 100 questions (1%) has no chunk with an accepted answer"]),
        (12, 12, ["12 questions are few", "12 of 12 questions (100%) have no chunk"]),
    ],
)
def test_doubts(count: int, missing: int, words: list[str]) -> None:
    found = doubts(request(count, missing))
    assert len(found) == len(words)
    for said, start in zip(found, words, strict=True):
        assert said.startswith(start)
