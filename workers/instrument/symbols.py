"""Tensors of one forward pass as sums: the algebra behind the search for the residual stream.

Every tensor is written as ``sum_k c_k * atom_k``. Additions and multiplications by a number are
linear; the result of any other operation is a new atom. Each atom remembers, as bit masks, the
atoms and the attention cores it was computed from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
