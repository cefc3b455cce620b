"""Finds every residual addition that softmax attention feeds, in one small forward pass.

A dispatch mode sees each tensor operation; names of modules and classes play no part. An attention
core is an OPERATION: a softmax over a matrix of queries by keys, or fused scaled-dot-product
attention.

The algebra. Every tensor is a sum ``sum_k c_k * atom_k``. Adding tensors, and multiplying by a
number, changes the coefficients; the result of any other operation is a new atom. An atom
remembers, as bit masks, the atoms and the attention cores that it was computed from.

    x   = embedding            {x: 1}
    h   = norm(x)              {h: 1}                  h comes from x
    a   = project(softmax..)   {a: 1}                  a comes from core 0, h, x
    x'  = x + 0.25 * a         {x: 1, a: 0.25}         holds a, and x that a comes from

The residual addition of a core is the first sum that holds both: atoms computed from the core (the
update, here 0.25 a), and atoms that the update itself was computed from (the stream, here x). An
addition inside the branch, such as a bias, holds no such pair: the update was not computed from a
bias. Nothing is lost when a model scales its branches, adds in place, or adds the residual inside
the attention module, as BLOOM does. A stream that was multiplied by a learned vector is a new atom,
which the update was not computed from; such an addition is not recognised, and the model is
reported, with a reason, as one without a mixing coefficient.

`track` runs the pass; `workers.instrument.branches` turns the result into hooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Terms = dict[int, float]
"""Coefficient of each atom in a sum."""


@dataclass(frozen=True, slots=True)
class Atom:
    """The result of an operation that is neither a sum nor a multiple.

    Attributes:
        ancestors: bit k is set when it was computed from atom k.
        cores: bit c is set when it was computed from attention core c.
    """

    ancestors: int
    cores: int


class Atoms(list[Atom]):
    """The atoms met so far; an atom's number is its index."""

    def new(self, inputs: Iterable[Terms], cores: int = 0) -> Terms:
        """A new atom computed from ``inputs`` and from the attention cores in ``cores``."""
        ancestors = 0
        for terms in inputs:
            for atom in terms:
                ancestors |= (1 << atom) | self[atom].ancestors
                cores |= self[atom].cores
        self.append(Atom(ancestors, cores))
        return {len(self) - 1: 1.0}

    def cores(self, terms: Terms) -> int:
        """Attention cores that any part of the sum was computed from, as a bit mask."""
        found = 0
        for atom in terms:
            found |= self[atom].cores
        return found

    def ancestors(self, terms: Iterable[int]) -> int:
        """Atoms that any of ``terms`` was computed from, as a bit mask."""
        found = 0
        for atom in terms:
            found |= self[atom].ancestors
        return found

    def depends(self, atom: int, core: int) -> bool:
        """Whether the atom was computed from that attention core."""
        return bool(self[atom].cores >> core & 1)


def add(left: Terms, right: Terms, factor: float = 1.0) -> Terms:
    """``left + factor * right``."""
    total = dict(left)
    for atom, coefficient in right.items():
        total[atom] = total.get(atom, 0.0) + factor * coefficient
    return total


def scale(terms: Terms, factor: float) -> Terms:
    """``factor * terms``."""
    return {atom: factor * coefficient for atom, coefficient in terms.items()}


def ratio(wanted: Terms, found: Terms) -> float | None:
    """The number r with ``wanted == r * found``; None when there is no such number.

    The residual sum needs ``wanted``; a hook finds ``found``, and multiplies it by r.
    """
    if set(wanted) != set(found) or not wanted or 0.0 in found.values():
        return None
    factors = [wanted[atom] / found[atom] for atom in wanted]
    spread = max(factors) - min(factors)
    return factors[0] if spread <= 1e-9 * max(1.0, abs(factors[0])) else None


_SAME_VALUES = frozenset(
    {"view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "unsqueeze", "expand", "slice"}
    | {"clone", "detach", "_to_copy", "alias", "contiguous", "lift_fresh", "copy", "t_copy"}
)
_SOFTMAX = frozenset({"_softmax", "_safe_softmax", "softmax"})
_FUSED = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")


def is_core(name: str, args: Sequence[Any], out: Any, queries: int) -> bool:
    """Whether an operation that returned ``out`` is causal self-attention of ``queries`` positions.

    Up to two more keys than queries are allowed, because learned sinks take extra columns. The
    first query sees only itself: that distinguishes attention from a router that happens to have as
    many experts as there are positions.
    """
    if name.startswith(_FUSED):
        query, key = args[0], args[1]
        return bool(query.dim() == 4 and query.shape[-2] == queries == key.shape[-2])
    if name not in _SOFTMAX or out.dim() < 3 or out.shape[-2] != queries:
        return False
    keys = out.shape[-1]
    return queries <= keys <= queries + 2 and not bool(out[..., 0, 1:queries].any())


@dataclass(frozen=True)
class Boundary:
    """Where a tensor crossed into or out of a module; fields as in `branches.HookPoint`."""

    path: str
    side: Literal["input", "output"]
    key: int | str | None
    call: int


@dataclass
class CoreTrace:
    """What became of one attention core's output.

    Attributes:
        core: its number, in order of execution.
        path: innermost module that ran it.
        update: the part of the residual sum that was computed from the core.
        stream: the part that the update was computed from.
        total: the whole sum; a parallel MLP or a bias may be a third part.
        met_at: index in `ResidualTracker.sums` of that sum, so the sums behind it are later ones;
            None when update and stream were never added.
    """

    core: int
    path: str
    update: Terms = field(default_factory=dict)
    stream: Terms = field(default_factory=dict)
    total: Terms = field(default_factory=dict)
    met_at: int | None = None


class ResidualTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the tensors of a forward pass over ``batch`` x ``length`` tokens of width ``width``.

    Attributes:
        traces: one per attention core, in order of execution.
        sums: every sum of two tensors of stream shape, in order of execution.
        seen: every tensor of stream shape that crossed a module boundary, as a sum.
        calls: how often each module ran.
        atoms: all atoms.
    """

    def __init__(self, batch: int, length: int, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch, self.length, self.width = batch, length, width
        self.atoms = Atoms()
        self.traces: list[CoreTrace] = []
        self.sums: list[Terms] = []
        self.seen: list[tuple[Terms, Boundary]] = []
        self.calls: Counter[str] = Counter()
        self._terms: dict[int, Terms] = {}  # by id of the tensor
        self._alive: list[Tensor] = []  # Python reuses the id of a freed tensor: keep them all
        self._stack: list[tuple[str, int]] = []  # modules that run now, each with its call
        # Keeping gathered expert weights would fill the memory; no activation is this large.
        self._largest = 256 * batch * length * width

    # --- tensors ------------------------------------------------------------------------------

    def _is_stream(self, tensor: Tensor) -> bool:
        return (
            tensor.is_floating_point()
            and tensor.dim() >= 2
            and tensor.shape[-1] == self.width
            and tensor.numel() == self.batch * self.length * self.width
        )

    def _set(self, tensor: Tensor, terms: Terms) -> None:
        if tensor.numel() <= self._largest:
            self._terms[id(tensor)] = terms
            self._alive.append(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and write its result as a sum."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        base = name.rstrip("_") if not name.startswith("__") else name
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = [self._terms.get(id(tensor)) for tensor in tensors]
        out = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if not outputs:
            return out
        terms: Terms | None
        if is_core(name, args, out, self.length):
            trace = CoreTrace(len(self.traces), self._stack[-1][0] if self._stack else "")
            self.traces.append(trace)
            terms = self.atoms.new([t for t in known if t], cores=1 << trace.core)
        else:
            operands = list(zip(tensors, known, strict=True))
            terms = self._linear(base, args, kwargs, operands, outputs)
        if terms is None:
            terms = self.atoms.new([t for t in known if t])
        for tensor in outputs:
            self._set(tensor, terms)
        return out

    def _linear(
        self,
        base: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operands: list[tuple[Tensor, Terms | None]],
        outputs: list[Tensor],
    ) -> Terms | None:
        """The sum that a linear operation yields; None for every other operation."""
        first = operands[0][1] if operands else None
        if not first:
            return None
        terms = None
        if base in _SAME_VALUES:
            if all(out.numel() == operands[0][0].numel() for out in outputs):
                terms = first
        elif not self._is_stream(outputs[0]):
            pass
        elif base in ("add", "sub") and len(operands) == 2:
            second = operands[1][1]
            if second and all(tensor.shape[-1] == self.width for tensor, _ in operands):
                sign = 1.0 if base == "add" else -1.0
                terms = add(first, second, sign * float(kwargs.get("alpha", 1)))
                self._added(terms)
        elif base in ("mul", "div") and len(args) == 2:
            factor = self._number(args[1])
            if factor is not None and (base == "mul" or factor):
                terms = scale(first, factor if base == "mul" else 1.0 / factor)
        return terms

    def _number(self, value: Any) -> float | None:
        """A constant factor; None for one that depends on the input, or is not a number."""
        if not isinstance(value, Tensor):
            return float(value)
        computed = self.atoms.ancestors(self._terms.get(id(value), {}))
        return float(value) if value.numel() == 1 and not computed else None

    def _added(self, terms: Terms) -> None:
        """Record a sum; it is the residual addition of each core whose two parts meet here first.

        Later sums hold the same parts again, since the stream carries them to the top. So a trace
        is written once, and `met_at` tells where its record starts.
        """
        self.sums.append(terms)
        cores = self.atoms.cores(terms)
        for trace in self.traces:
            if trace.met_at is not None or not cores >> trace.core & 1:
                continue
            update = {a: c for a, c in terms.items() if self.atoms.depends(a, trace.core)}
            before = self.atoms.ancestors(update)
            stream = {a: c for a, c in terms.items() if a not in update and before >> a & 1}
            if stream:
                trace.update, trace.stream, trace.total = update, stream, terms
                trace.met_at = len(self.sums) - 1

    # --- modules ------------------------------------------------------------------------------

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        """Record what crosses every module boundary of ``model``."""
        handles: list[Any] = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._before(path), with_kwargs=True))
            handles.append(module.register_forward_hook(self._after, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, path: str) -> Any:
        def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            call = self.calls[path]
            self.calls[path] += 1
            self._stack.append((path, call))
            for index, value in enumerate(args):
                self._note(value, Boundary(path, "input", index, call))
            for key, value in kwargs.items():
                self._note(value, Boundary(path, "input", key, call))

        return hook

    def _after(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        path, call = self._stack.pop()
        if isinstance(output, Tensor):
            self._note(output, Boundary(path, "output", None, call))
        elif isinstance(output, (tuple, list)):
            for index, value in enumerate(output):
                self._note(value, Boundary(path, "output", index, call))

    def _note(self, value: Any, at: Boundary) -> None:
        if isinstance(value, Tensor) and self._is_stream(value):
            terms = self._terms.get(id(value))
            if terms:
                self.seen.append((terms, at))
                self._alive.append(value)


@torch.no_grad()
def track(model: nn.Module, ids: Tensor, width: int) -> ResidualTracker:
    """Run ``ids`` (batch x length) through ``model`` under a tracker and return it."""
    tracker = ResidualTracker(ids.shape[0], ids.shape[1], width)
    with tracker.hooked(model), tracker:
        model(input_ids=ids, use_cache=False)
    return tracker
