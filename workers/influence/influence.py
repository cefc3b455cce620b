"""Measured influence: how much each prompt token moves what the model says after the last one.

g(j) = | d s / d e_j |_2, e_j the input embedding of token j, for a scalar s read at the last
position. The objectives:

    argmax_probability  s = probability of the most likely next token
                        (Herasimchyk et al., arXiv 2602.16837)
    jacobian            s = <v, h>, h the final normalised hidden state (the LM head's input),
                        v ~ N(0, I): E g^2 is the squared Frobenius norm of dh/de_j, so probes are
                        averaged as root mean square (Chowdhury, arXiv 2603.10123)
    target_logprob      s = log-probability of a given continuation

Each batch takes one forward and one backward pass. Documents in a batch do not reach each other, so
the result does not depend on the batch size (up to rounding). Recorders gather their statistics in
the same pass. `workers.influence.curves` is what a profile says of the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lacuna.contract.errors import InvalidRequest, ModelUnsupported, NotFinite
from lacuna.contract.profile_requests import Objective
from workers.documents import DocumentSet, check_vocabulary
from workers.influence import batching
from workers.influence.batching import Recorder
from workers.instrument import model_pass
from workers.instrument.model_pass import (
    Check,
    deterministic_grad,
    interruptible,
    no_check,
    throttled,
)
from workers.models.loaded import LoadedModel, check_length

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class InfluenceResult:
    """Influence of every token of every document.

    Attributes:
        norms: g, [K, n], not normalised. For `jacobian` the root mean square over probes.
        scores: s of each document, [K]; for `jacobian` the norm of h.
        standard_error: of `norms` over probes, [K, n]; None unless `jacobian` has several.
        batch_size: documents per batch at the end.
        seconds: wall time of all passes.
    """

    norms: F64
    scores: F64
    standard_error: F64 | None
    batch_size: int
    seconds: float

    def followed_by(self, more: InfluenceResult) -> InfluenceResult:
        """These documents, then those of another measurement."""
        errors = None
        if self.standard_error is not None and more.standard_error is not None:
            errors = np.concatenate([self.standard_error, more.standard_error])
        return InfluenceResult(
            norms=np.concatenate([self.norms, more.norms]),
            scores=np.concatenate([self.scores, more.scores]),
            standard_error=errors,
            batch_size=more.batch_size,
            seconds=self.seconds + more.seconds,
        )


@dataclass(frozen=True)
class _Batch:
    norms: Tensor
    scores: Tensor
    standard_error: Tensor | None = None


def measure(
    loaded: LoadedModel,
    documents: DocumentSet,
    *,
    objective: Objective = "argmax_probability",
    probes: int = 4,
    seed: int = 0,
    target_ids: Sequence[int] | None = None,
    batch_size: int = 0,
    recorders: Sequence[Recorder] = (),
    first_index: int = 0,
    on_batch: Callable[[int, int], None] | None = None,
    check: Check = no_check,
) -> InfluenceResult:
    """Measure the influence of each token of each document.

    Args:
        loaded: the model.
        documents: K documents of n tokens.
        objective: see the module.
        probes: random cotangents per document, for `jacobian`.
        seed: of the probes; those of a document depend on it and on the document's index only.
        target_ids: the continuation's tokens, for `target_logprob`.
        batch_size: documents at once; 0 chooses.
        recorders: record in the same passes. With a continuation of several tokens they get forward
            passes of their own, over the documents alone.
        first_index: index of the first document, where others were measured before it.
        on_batch: called with (documents done, documents in all) after each batch; what it raises
            ends the measurement.
        check: called several times a second, also within a pass; what it raises ends the
            measurement, and leaves the model as it was.

    Raises:
        NotFinite: a gradient is NaN or infinite, or zero everywhere; names the dtype.
        OutOfMemory: one document does not fit; names the largest length that does.
        InvalidRequest: the continuation has tokens that the model lacks.
        TooLong: document and continuation are longer than the model can take.
        ModelUnsupported: the model has no LM head to read the hidden state from (`jacobian`).
    """
    start = time.perf_counter()
    ids = documents.ids
    one_pass = _objective(loaded, ids.shape[1], objective, probes, seed, target_ids)
    done: list[_Batch] = []
    keep = 1

    def one_batch(first: int, batch: Tensor) -> None:
        for recorder in recorders:
            recorder.start_batch(batch)
        found = one_pass(first_index + first, batch)
        for recorder in recorders:
            recorder.end_batch()
        _check_finite(loaded, found)
        done.append(found)
        if on_batch is not None:
            on_batch(first + len(batch), len(ids))

    def restart() -> None:
        done.clear()
        for recorder in recorders:
            recorder.reset()

    with interruptible(loaded.model, throttled(check)):
        if objective == "target_logprob" and target_ids is not None and len(target_ids) > 1:
            _record_alone(loaded, ids, batch_size, recorders)
            recorders, keep = (), len(target_ids)
        plan = batching.plan_batches(loaded, ids, batch_size, keep=keep, recorders=recorders)
        size = batching.run_batches(
            loaded, ids, plan, one_batch, recorders=recorders, restart=restart
        )
    errors = [batch.standard_error for batch in done if batch.standard_error is not None]
    return InfluenceResult(
        norms=_joined([batch.norms for batch in done]),
        scores=_joined([batch.scores for batch in done]),
        standard_error=_joined(errors) if errors else None,
        batch_size=size,
        seconds=time.perf_counter() - start,
    )


def _record_alone(
    loaded: LoadedModel, ids: Tensor, batch_size: int, recorders: Sequence[Recorder]
) -> None:
    """Forward passes for the recorders only: a continuation must not count as a document."""
    if not recorders:
        return

    def one_batch(_first: int, batch: Tensor) -> None:
        for recorder in recorders:
            recorder.start_batch(batch)
        with (
            torch.no_grad(),
            model_pass.pass_hooks(loaded.model, keep=1, gradients=False) as trace,
        ):
            model_pass.last_logits(loaded.model, batch, trace, keep=1)
        for recorder in recorders:
            recorder.end_batch()

    def restart() -> None:
        for recorder in recorders:
            recorder.reset()

    plan = batching.plan_batches(loaded, ids, batch_size, gradients=False, recorders=recorders)
    batching.run_batches(loaded, ids, plan, one_batch, recorders=recorders, restart=restart)


def _objective(
    loaded: LoadedModel,
    length: int,
    objective: Objective,
    probes: int,
    seed: int,
    target_ids: Sequence[int] | None,
) -> Callable[[int, Tensor], _Batch]:
    if objective == "jacobian":
        return lambda first, ids: _jacobian(loaded, first, ids, probes, seed)
    if objective == "target_logprob":
        target = list(target_ids or ())
        assert target, "`target_logprob` needs `target_ids`"
        check_vocabulary(torch.tensor(target), loaded, "target", InvalidRequest, scored=True)
        check_length(loaded.id, loaded.text_config, length + len(target) - 1)
        return lambda _first, ids: _target_logprob(loaded, ids, target)
    return lambda _first, ids: _argmax_probability(loaded, ids)


def _argmax_probability(loaded: LoadedModel, ids: Tensor) -> _Batch:
    with torch.enable_grad(), model_pass.pass_hooks(loaded.model, keep=1, gradients=True) as trace:
        logits = model_pass.last_logits(loaded.model, ids, trace, keep=1)
        wanted = logits.detach().argmax(dim=-1)
        found = _log_probability(logits, wanted, trace, of_probability=True)
        return _Batch(found.norms, found.scores.exp())


def _target_logprob(loaded: LoadedModel, ids: Tensor, target: list[int]) -> _Batch:
    keep, length = len(target), ids.shape[1]
    wanted = torch.tensor(target, device=ids.device).expand(len(ids), -1)
    whole = torch.cat([ids, wanted[:, :-1]], dim=1)
    with (
        torch.enable_grad(),
        model_pass.pass_hooks(loaded.model, keep=keep, gradients=True) as trace,
    ):
        logits = model_pass.last_logits(loaded.model, whole, trace, keep=keep)
        found = _log_probability(logits, wanted, trace)
        return _Batch(found.norms[:, :length], found.scores)


_LEAST_EXPONENT = -900
"""2 to it is far from the end of float64, and no weight next to that of another document."""


def _log_probability(
    logits: Tensor, wanted: Tensor, trace: model_pass.PassTrace, *, of_probability: bool = False
) -> _Batch:
    """Gradient norms of the sum of log p(wanted), float64 [B, n], and the sums, [B].

    d log p_t / dz is 1 - p_t at t and -p_j elsewhere. Both are 0 in float32 where p_t rounds to 1,
    so 1 - p_t is summed over the others, in float64. What passes through the model is scaled by a
    power of two, which changes no digit, to about 1 in each document.

    Args:
        logits: [B, k, V].
        wanted: ids t, [B, k].
        trace: of the pass that gave the logits.
        of_probability: take the gradient of p itself, p d log p; k is 1.
    """
    at = wanted.to(logits.device)[..., None]
    with torch.no_grad():
        logp = logits.double().log_softmax(dim=-1)
        chosen = logp.gather(-1, at)
        logp.scatter_(-1, at, -torch.inf)
        logp.scatter_(-1, at, logp.logsumexp(dim=-1, keepdim=True))
        if of_probability:
            logp.add_(chosen)
        exponent = (logp.gather(-1, at).amax(dim=1, keepdim=True) / math.log(2)).floor()
        cotangent = logp.sub_(exponent * math.log(2)).exp_().neg_()
        cotangent.scatter_(-1, at, -cotangent.gather(-1, at))
        cotangent = cotangent.to(logits.dtype)
    norms = _norms(_gradient((logits * cotangent).sum(dim=(1, 2)), trace))
    back = _host(exponent)[:, :, 0].clamp_min(_LEAST_EXPONENT).exp2()
    return _Batch(norms * back, _host(chosen.sum(dim=(1, 2))))


def _jacobian(loaded: LoadedModel, first: int, ids: Tensor, probes: int, seed: int) -> _Batch:
    squares = []
    with torch.enable_grad(), model_pass.pass_hooks(loaded.model, keep=1, gradients=True) as trace:
        model_pass.last_logits(loaded.model, ids, trace, keep=1)
        if trace.hidden is None:
            raise ModelUnsupported(
                f"`objective`: {loaded.id} has no LM head whose input could be read; "
                "`argmax_probability` needs none",
                field="objective",
            )
        hidden = model_pass.at_least_float32(trace.hidden[:, -1])
        for probe in range(probes):
            scores = (hidden * _cotangents(hidden, first, probe, seed)).sum(dim=-1)
            gradient = _gradient(scores, trace, again=probe < probes - 1)
            squares.append(_norms(gradient) ** 2)
    stacked = torch.stack(squares)
    norms = stacked.mean(dim=0).sqrt()
    error = None
    if probes > 1:  # of the mean square, carried through the root
        spread = stacked.std(dim=0) / probes**0.5
        error = spread / (2 * norms).clamp_min(torch.finfo(norms.dtype).tiny)
    return _Batch(norms, _host(hidden.norm(dim=-1)), error)


def _cotangents(hidden: Tensor, first: int, probe: int, seed: int) -> Tensor:
    """v of each document in the batch, the same in every batch and on every device."""
    rows = [
        np.random.default_rng((seed, first + row, probe)).standard_normal(hidden.shape[-1])
        for row in range(len(hidden))
    ]
    return torch.from_numpy(np.stack(rows)).to(hidden)


def _gradient(scores: Tensor, trace: model_pass.PassTrace, *, again: bool = False) -> Tensor:
    assert trace.leaf is not None, "the model did not read its input embeddings"
    (gradient,) = deterministic_grad(scores.sum(), [trace.leaf], again=again)
    return gradient


def _norms(gradient: Tensor) -> Tensor:
    """Euclidean norm per token, float64 on the host."""
    return _host(model_pass.at_least_float32(gradient).norm(dim=-1))


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().double().cpu()


def _check_finite(loaded: LoadedModel, found: _Batch) -> None:
    kind = str(loaded.dtype).removeprefix("torch.")
    hint = "" if kind == "float32" else "; ask for `dtype: float32`"
    if not bool(torch.isfinite(found.norms).all() and torch.isfinite(found.scores).all()):
        raise NotFinite(f"gradients of {loaded.id} are NaN or infinite in {kind}{hint}")
    if not bool((found.norms.sum(dim=-1) > 0).all()):
        raise NotFinite(f"all gradients of a document vanish in {kind} for {loaded.id}{hint}")


def _joined(parts: Sequence[Tensor]) -> F64:
    return np.asarray(torch.cat(list(parts)).numpy(), dtype=np.float64)
