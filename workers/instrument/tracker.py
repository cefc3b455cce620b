"""Tensors of one forward pass as sums: the algebra behind the search for the residual stream.

Every tensor is written as ``sum_k c_k * atom_k``. Additions and multiplications by a number are
linear; the result of any other operation is a new atom. Each atom remembers, as bit masks, the
atoms and the attention cores it was computed from.

Finds every residual addition fed by softmax attention, in one tiny forward pass.

No module or class names are consulted. A dispatch mode sees each tensor operation; an attention
core is an OPERATION (a softmax over a queries-by-keys matrix, or fused scaled-dot-product
attention). The residual addition of a core is the first sum that holds both something computed
from the core (the update) and something the update was itself computed from (the stream).
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
    """The result of an operation that is not linear in our sense."""

    ancestors: int
    cores: int


class Symbols:
    """The atoms met so far."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []

    def new(self, inputs: Iterable[Terms], cores: int = 0) -> Terms:
        """A fresh atom computed from ``inputs``, and from the attention cores in ``cores``."""
        ancestors = 0
        for terms in inputs:
            for atom in terms:
                ancestors |= (1 << atom) | self.atoms[atom].ancestors
                cores |= self.atoms[atom].cores
        self.atoms.append(Atom(ancestors, cores))
        return {len(self.atoms) - 1: 1.0}

    def cores(self, terms: Terms) -> int:
        """Attention cores that any part of the sum depends on."""
        found = 0
        for atom in terms:
            found |= self.atoms[atom].cores
        return found

    def ancestors(self, terms: Iterable[int]) -> int:
        """Atoms that any of ``terms`` was computed from."""
        found = 0
        for atom in terms:
            found |= self.atoms[atom].ancestors
        return found

    def depends(self, atom: int, core: int) -> bool:
        """Whether the atom was computed from that attention core."""
        return bool(self.atoms[atom].cores >> core & 1)


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
    """The number r with ``wanted == r * found``, or None when there is none."""
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

    Up to two more keys than queries are allowed: learned sinks stand in extra columns. The first
    query sees itself alone, which tells attention from a router that happens to have as many
    experts as there are positions.
    """
    if name.startswith(_FUSED):
        query, key = args[0], args[1]
        return bool(query.dim() == 4 and query.shape[-2] == queries == key.shape[-2])
    if name not in _SOFTMAX or out.dim() < 3 or out.shape[-2] != queries:
        return False
    keys = out.shape[-1]
    return queries <= keys <= queries + 2 and not bool(out[..., 0, 1:queries].any())


@dataclass(frozen=True)
class Place:
    """A module boundary at which a tensor was seen."""

    path: str
    side: Literal["input", "output"]
    key: int | str | None
    call: int


@dataclass
class Branch:
    """What became of one attention core's output."""

    core: int
    path: str
    """Innermost module that ran the core."""
    update: Terms = field(default_factory=dict)
    stream: Terms = field(default_factory=dict)
    total: Terms = field(default_factory=dict)
    sums_before: int = -1
    """How many stream-shaped sums had been formed when update and stream met; -1: never."""

    @property
    def met(self) -> bool:
        """Whether the update was ever added to the stream that it came from."""
        return self.sums_before >= 0


class ResidualTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the tensors of a forward pass over ``batch`` x ``length`` tokens of width ``width``.

    Afterwards: ``branches``, one per attention core in order of execution; ``sums``, every sum of
    stream shape in order; ``seen``, the module boundaries with the sum found at each.
    """

    def __init__(self, batch: int, length: int, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch, self.length, self.width = batch, length, width
        self.symbols = Symbols()
        self.branches: list[Branch] = []
        self.sums: list[Terms] = []
        self.seen: list[tuple[Terms, Place]] = []
        self.calls: Counter[str] = Counter()
        self._terms: dict[int, Terms] = {}
        self._alive: list[Tensor] = []  # an id may only be looked up while its tensor lives
        self._stack: list[tuple[str, int]] = []
        # Gathered expert weights would fill the memory of a large model; no activation is so wide.
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
            branch = Branch(len(self.branches), self._stack[-1][0] if self._stack else "")
            self.branches.append(branch)
            terms = self.symbols.new([t for t in known if t], cores=1 << branch.core)
        else:
            operands = list(zip(tensors, known, strict=True))
            terms = self._linear(base, args, kwargs, operands, outputs)
        if terms is None:
            terms = self.symbols.new([t for t in known if t])
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
        computed = self.symbols.ancestors(self._terms.get(id(value), {}))
        return float(value) if value.numel() == 1 and not computed else None

    def _added(self, terms: Terms) -> None:
        self.sums.append(terms)
        cores = self.symbols.cores(terms)
        for branch in self.branches:
            if branch.met or not cores >> branch.core & 1:
                continue
            update = {a: c for a, c in terms.items() if self.symbols.depends(a, branch.core)}
            before = self.symbols.ancestors(update)
            stream = {a: c for a, c in terms.items() if a not in update and before >> a & 1}
            if stream:
                branch.update, branch.stream, branch.total = update, stream, terms
                branch.sums_before = len(self.sums)

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
                self._note(value, Place(path, "input", index, call))
            for key, value in kwargs.items():
                self._note(value, Place(path, "input", key, call))

        return hook

    def _after(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        path, call = self._stack.pop()
        if isinstance(output, Tensor):
            self._note(output, Place(path, "output", None, call))
        elif isinstance(output, (tuple, list)):
            for index, value in enumerate(output):
                self._note(value, Place(path, "output", index, call))

    def _note(self, value: Any, place: Place) -> None:
        if isinstance(value, Tensor) and self._is_stream(value):
            terms = self._terms.get(id(value))
            if terms:
                self.seen.append((terms, place))
                self._alive.append(value)


@torch.no_grad()
def track(model: nn.Module, ids: Tensor, width: int) -> ResidualTracker:
    """Run ``ids`` (batch x length) through ``model`` under a tracker and return it."""
    tracker = ResidualTracker(ids.shape[0], ids.shape[1], width)
    with tracker.hooked(model), tracker:
        model(input_ids=ids, use_cache=False)
    return tracker
