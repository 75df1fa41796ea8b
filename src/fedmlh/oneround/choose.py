"""λ and the power of counts, chosen on points that the sums do not contain.

The scores of n points are Xᵀ (G + λI)⁻¹ C. Solved from the left they cost n columns, not one per label.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.ranking import Decoder, best_labels
from fedmlh.oneround.products import multiply
from fedmlh.oneround.solve import Solver, System
from fedmlh.oneround.sums import Sums

#: In ascending order; points have length 1, so that λ means the same for all data.
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_FIRST = 1.0
POWERS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
#: The most slots with which λ is climbed to.
MOST_CLIMBED = 1 << 14
#: The most scores in memory at once.
_BATCH_NUMBERS = 1 << 25

#: From the labels [n, k] that were ranked for the points to a score; more is better.
Judge = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Problem:
    """Sums of many points as a linear problem, which predicts each output from slots."""

    sums: Sums
    bits: int
    cross: csr_matrix  # float64 [1 + s, R·B]: Σ x yᵀ in buckets, of points of length 1
    counts: np.ndarray  # [R·B] how often each output occurs, at least 1

    @classmethod
    def of(cls, sums: Sums, bits: int, spread: csr_matrix | None) -> "Problem":
        """Put labels into buckets, unless they are there already or each label has its own."""
        cross = sums.cross if spread is None else sums.cross @ spread
        counts = np.asarray(cross[0].toarray()[0]) >> bits
        return cls(sums, bits, csr_matrix(cross.astype(np.float64) / 2.0**bits), np.maximum(counts, 1))

    def look_at(self, slots: int) -> "Problem":
        """Return the problem of the same points if they had the first slots only: the most frequent features."""
        sums, kept = self.sums, slice(0, slots + 1)
        head = Sums(sums.points, csr_matrix(sums.gram[kept, kept]), csr_matrix(sums.cross[kept]))
        return replace(self, sums=head, cross=csr_matrix(self.cross[kept]))

    def system(self, ridge: float) -> System:
        """Return G + λI."""
        return System.of(self.sums, self.bits, ridge)

    def weigh(self, power: float) -> np.ndarray:
        """Return what the scores of each output are multiplied by.  # [R·B]"""
        return np.asarray(self.counts.astype(np.float64) ** -power, np.float32)


@dataclass(frozen=True)
class Choice:
    """The λ and the power that were chosen, and their score."""

    ridge: float
    power: float
    score: float
    labels: np.ndarray  # [n, k] for the points that decided
    scores: Tensor  # [R, n, B], of the same points

    @classmethod
    def given(cls, ridge: float, power: float) -> "Choice":
        """Return values that are set and need no choice."""
        return cls(ridge, power, 0.0, np.zeros((0, 0), np.int64), torch.zeros(0, 0, 0))


@dataclass(frozen=True)
class Chooser:
    """Points by which λ and the power are judged."""

    problem: Problem
    X: csr_matrix  # float64 [n, 1 + s]
    excluded: csr_matrix | None
    decoder: Decoder
    k: int
    judge: Judge
    device: torch.device

    def choose(self, ridges: tuple[float, ...] = RIDGES, powers: tuple[float, ...] = POWERS) -> Choice:
        """Climb to the best λ; every power is tried with each λ.

        Of many slots, the first ones choose λ: with all of them, each step of the climb would take minutes.
        """
        if len(ridges) > 1 and self.problem.sums.num_slots > MOST_CLIMBED:
            ridges = (self.look_at(MOST_CLIMBED).choose(ridges, powers).ridge,)
        best: list[Choice] = []

        def score(ridge: float) -> float:
            tried = self.try_ridge(ridge, powers)
            if not best or tried.score > best[0].score:  # as `climb` decides; one choice holds many scores
                best[:] = [tried]
            return tried.score

        climb(ridges, score)
        return best[0]

    def look_at(self, slots: int) -> "Chooser":
        """Return what judges solutions for the first slots, by the same points."""
        return replace(self, problem=self.problem.look_at(slots), X=csr_matrix(self.X[:, : slots + 1]))

    def try_ridge(self, ridge: float, powers: tuple[float, ...]) -> Choice:
        """Return the best power for one λ."""
        solver = Solver(self.problem.system(ridge), self.X.shape[0], self.device, exact=False)
        ranked: dict[float, list[np.ndarray]] = {power: [] for power in powers}
        weighed = torch.empty(self.X.shape[0], self.problem.cross.shape[1])
        for rows, scores in self.score(solver):
            weighed[rows] = scores
            excluded = None if self.excluded is None else self.excluded[rows]
            for power in powers:
                found = fold(scores * torch.from_numpy(self.problem.weigh(power)), self.decoder)
                ranked[power].append(best_labels(self.decoder, found, self.k, excluded)[0])
        best_of = {power: np.concatenate(parts) for power, parts in ranked.items()}
        judged = {power: self.judge(labels) for power, labels in best_of.items()}
        best = max(judged, key=lambda power: judged[power])
        weighed *= torch.from_numpy(self.problem.weigh(best))
        return Choice(ridge, best, judged[best], best_of[best], fold(weighed, self.decoder))

    def score(self, solver: Solver) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows, and the scores of their points for each output.  # [n, R·B]"""
        outward = csr_matrix(self.problem.cross.T.astype(np.float32))
        for rows in split_rows(self.X.shape[0], self.problem.cross.shape[1]):
            solved = solver(torch.from_numpy(self.X[rows].toarray().T.copy()))
            yield rows, torch.from_numpy(multiply(outward, solved.float().cpu().numpy())).T.contiguous()


def climb(ridges: tuple[float, ...], score: Callable[[float], float]) -> float:
    """Return the best λ found by climbing: start at λ = 1, and move while a neighbour is better."""
    place = ridges.index(_FIRST) if _FIRST in ridges else 0
    found = {place: score(ridges[place])}
    while True:
        best = max(found, key=lambda place: found[place])
        for neighbour in (best + 1, best - 1):
            if 0 <= neighbour < len(ridges) and neighbour not in found:
                found[neighbour] = score(ridges[neighbour])
                break
        else:
            return ridges[best]


def split_rows(num_points: int, num_outputs: int) -> Iterator[slice]:
    """Yield the rows of points, a few at a time, so that their scores fit into memory."""
    size = max(1, min(512, _BATCH_NUMBERS // num_outputs))
    for begin in range(0, num_points, size):
        yield slice(begin, min(begin + size, num_points))


def fold(scores: Tensor, decoder: Decoder) -> Tensor:
    """Return outputs table by table, given those of all tables side by side.  # [n, R·B] -> [R, n, B]"""
    tables = decoder.buckets.shape[0]
    return scores.reshape(len(scores), tables, -1).transpose(0, 1)
