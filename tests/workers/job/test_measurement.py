"""What a measurement does when one of its later steps fails, and which documents those use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lacuna.contract.errors import LacunaError, OutOfMemory
from lacuna.contract.profile_requests import PREDICTION_NAMES, SECOND_MOMENT_DOCUMENTS
from workers.faults import DeviceBroken
from workers.influence import influence
from workers.job import predictions as predict
from workers.job.measurement import ProfileTask, measure
from workers.lease import GiveBack, JobCancelled, LeaseLost
from workers.second_moment import moments

Make = Callable[..., ProfileTask]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "memory ran out"),
        (MemoryError(), "memory ran out"),
        (OutOfMemory("`sequence_length`: too long"), "memory ran out"),
        (RuntimeError("shape mismatch"), "RuntimeError"),
        (KeyError("hidden_states"), "KeyError"),
    ],
)
@pytest.mark.parametrize("name", ["second_moment", "residual"])
def test_a_prediction_that_fails_leaves_the_measurement(
    name: str, error: Exception, words: str, subject: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: Any, **_options: Any) -> Any:
        raise error

    if name == "second_moment":
        monkeypatch.setattr(moments.DocumentMoments, "evaluate", fail_after_rehearsal(error))
    else:
        monkeypatch.setitem(predict.BY_NAME, name, fail)
    found = measure(subject(predictions=list(PREDICTION_NAMES)), batch_size=0)
    assert set(found.predictions) == set(PREDICTION_NAMES) - {name}
    (warning,) = found.warnings
    assert warning.startswith(f"no prediction {name}: {words}")
    assert found.sample.influence.norms.shape == (3, 24)
    assert found.forces


def fail_after_rehearsal(error: Exception) -> Callable[..., Any]:
    def evaluate(*_args: Any) -> Any:
        raise error

    return evaluate


@pytest.mark.parametrize("error", [JobCancelled(), LeaseLost(), GiveBack(), DeviceBroken("gone")])
def test_what_ends_the_job_or_the_process_goes_through(
    error: Exception, subject: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments.DocumentMoments, "evaluate", fail_after_rehearsal(error))
    with pytest.raises(type(error)):
        measure(subject(predictions=["second_moment"]), batch_size=0)


def test_the_second_moment_takes_documents_from_all_over(
    subject: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    real = moments.DocumentMoments.read

    def listen(self: Any, document: torch.Tensor, bins: int | None) -> None:
        read.append(document.numpy().tobytes())
        real(self, document, bins)

    monkeypatch.setattr(moments.DocumentMoments, "read", listen)
    given = subject(count=33, length=8, predictions=["second_moment"], documents={"count": 33})
    found = measure(given, batch_size=0)
    used = SECOND_MOMENT_DOCUMENTS
    expected = [round(i * 32 / (used - 1)) for i in range(used)]
    assert read[1:] == [given.documents.ids[i].numpy().tobytes() for i in expected]
    assert found.second_moment is not None
    rows, curves = found.second_moment
    assert rows.tolist() == expected
    assert curves.shape == (used, 8)
    assert found.warnings == []


def test_documents_are_read_until_the_masses_are_known(subject: Make) -> None:
    asked = {"count": "auto", "most": 96}
    given = subject(count=96, length=8, predictions=[], documents=asked)
    found = measure(given, batch_size=0)
    sample = found.sample
    count = len(sample.documents.ids)
    assert count in (48, 64, 80, 96)
    assert torch.equal(sample.documents.ids, given.documents.ids[:count])
    assert sample.influence.norms.shape == (count, 8)
    assert found.mixing is not None
    assert len(found.mixing.per_document) == count
    assert found.attention is not None
    assert found.attention.documents == count
    fixed = subject(count=count, length=8, predictions=[], documents={"count": count})
    once = measure(fixed, batch_size=0)
    assert once.sample.sampled.reason == "fixed"
    np.testing.assert_allclose(
        once.sample.influence.norms, sample.influence.norms, rtol=1e-4, atol=1e-9
    )


def test_parts_draw_the_probes_that_a_whole_measurement_draws(subject: Make) -> None:
    asked = {"weights": "random", "predictions": [], "length": 8}
    parts = measure(subject(count=40, **asked), batch_size=0).sample.influence
    whole = measure(subject(count=40, documents={"count": 40}, **asked), batch_size=0)
    np.testing.assert_allclose(parts.norms, whole.sample.influence.norms, rtol=1e-4)
    assert parts.standard_error is not None
    assert parts.standard_error.shape == (40, 8)


def test_evenly_spaced_indices() -> None:
    for count in range(1, 70):
        for wanted in (1, 2, 16):
            chosen = moments._spaced(count, wanted)
            assert len(set(chosen.tolist())) == min(count, wanted)
            assert chosen[0] == 0
            if wanted > 1:
                assert chosen[-1] == count - 1
                assert np.ptp(np.diff(chosen)) <= 1 if count > 1 else True


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("recall", {"recall": {}}),
        ("target", {"objective": "target_logprob", "target": " Paris"}),
    ],
)
def test_without_a_tokenizer_nothing_is_measured_in_vain(
    field: str, fields: dict[str, Any], subject: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(influence, "measure", lambda *_, **__: pytest.fail("it was measured"))
    with pytest.raises(LacunaError, match="tokenizer") as refusal:
        measure(subject(**fields), batch_size=0)
    assert refusal.value.field == field
