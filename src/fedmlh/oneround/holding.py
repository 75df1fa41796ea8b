"""λ from sums over held-out points, if the server has no points: the squared error on them adds up as well.

For weights W, outputs y and points x of the held-out part, Σ ‖y − Wᵀx‖² = tr(Wᵀ G W) − 2 tr(Wᵀ C) + Σ ‖y‖², and the
last term is the same for every λ.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.oneround.choose import MOST_CLIMBED, RIDGES, Problem, climb
from fedmlh.oneround.solve import NotPositive, Solver
from fedmlh.oneround.sums import Sums

#: One of this many points is held out.
SHARE = 10
#: λ and the power of counts if nothing can choose them; squared errors never choose the power.
RIDGE, POWER = 1.0, 0.05
#: The fewest held-out points that choose λ.
LEAST = 20
#: Outputs whose errors are added up, evenly spread from the most frequent to the rarest.
_MOST_OUTPUTS = 256


def asks_for_held_out(config: Config) -> bool:
    """Say whether λ is chosen from held-out sums: if the server holds no points out, and λ is not set."""
    return config.training == "one-round" and config.validation_fraction == 0 and config.ridge == 0


def is_held_out(X: csr_matrix) -> np.ndarray:
    """Say for each point whether it is held out.  # [n, d] -> bool [n]

    This follows from the point alone. So it does not depend on which client has the point, and a server cannot ask for
    the sums over one part of a site's points after the other.
    """
    cells = X.indices.astype(np.uint64) << np.uint64(32) | X.data.astype(np.float32).view(np.uint32)
    ahead = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mix(cells))])  # modulo 2^64, as all that follows
    return np.asarray(_mix(ahead[X.indptr[1:]] - ahead[X.indptr[:-1]]) < np.uint64(2**64 // SHARE))


def _mix(numbers: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit numbers as SplitMix64 does."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ numbers >> np.uint64(31))


@dataclass(frozen=True)
class Extent:
    """Bounds from the sums of a client, which the sums over a part of its points cannot exceed."""

    points: int
    squares: csr_matrix  # [1, s]
    counts: csr_matrix  # [1, m]

    @classmethod
    def of(cls, sums: Sums) -> "Extent":
        """Take what bounds the sums over a part of the points."""
        return cls(sums.points, csr_matrix(sums.diagonal), sums.cross[0])

    def covers(self, part: Sums) -> bool:
        """Say whether the sums over a part of the points stay within the bounds."""
        other = Extent.of(part)
        return (
            other.points <= self.points
            and (other.squares > self.squares).nnz == 0
            and (other.counts > self.counts).nnz == 0
        )


def choose_ridge(fit: Problem, held_out: Problem, device: torch.device) -> float:
    """Return the λ with which the solution of one problem has the least squared error on the points of another."""
    if fit.sums.num_slots > MOST_CLIMBED:
        fit, held_out = (problem.look_at(MOST_CLIMBED) for problem in (fit, held_out))
    columns = pick_outputs(fit.counts)
    right, outward = (problem.cross[:, columns].toarray() for problem in (fit, held_out))

    def score(ridge: float) -> float:
        solver = Solver(fit.system(ridge), len(columns), device, exact=False)
        solution = solver(torch.from_numpy(right)).cpu().numpy()
        error = measure_error(held_out, solution, outward)
        if not np.isfinite(error):
            raise NotPositive("a solution that is not finite")
        return -error

    return climb(RIDGES, score)


def measure_error(held_out: Problem, solution: np.ndarray, outward: np.ndarray) -> float:
    """Return the squared error of a solution on held-out points, without the term that it does not change.

    # [1 + s, k], and of the same outputs Σ x yᵀ of the held-out points [1 + s, k]
    """
    return float(np.sum(solution * (held_out.system(0.0).matrix @ solution)) - 2 * np.sum(solution * outward))


def pick_outputs(counts: np.ndarray) -> np.ndarray:
    """Return some outputs, evenly spread in the order of how often they occur.  # [m]"""
    order = np.argsort(-counts, kind="stable")
    places = np.linspace(0, len(order) - 1, min(len(order), _MOST_OUTPUTS))
    return np.asarray(order[np.unique(places.astype(np.int64))])
