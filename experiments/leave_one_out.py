"""What the rules for networks would cost a data set on which they were not fitted.

    python experiments/leave_one_out.py explored.jsonl DATA_FOLDER...

The runs of networks.py changed one choice at a time, with 16 MiB of model, on every set. Between two values of a choice
the mean of P@k on validation is interpolated, and effects of choices add up. So the numbers of the rules (sizing.Rule)
can be fitted to any sets. Of the values in a list, those within 0.15 points of the best in the mean are level, since
every figure is one run; the fit takes the one in the middle of them. For every set, the rules fitted on the other sets
are compared with the rules fitted on all sets and with those of the product.
"""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from networks import HASHED
from script import Rows, mean_of, table

import fedmlh
from fedmlh.sizing import RULE, Rule, Shape, parameters_within

BUDGET = 16 << 20
#: Numbers that are fitted together, and the values that are tried.
CHOICES: list[dict[str, tuple[float, ...]]] = [
    {
        "roots": (6, 8, 10, 12, 16, 24),
        "slope": (0.2, 0.4, 0.6, 0.8, 1.0),
        "dense": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32),
    },
    {"inputs": (2.8, 3.5, 4.5, 5.5, 7, 9, 11)},
    {"least_tables": (4, 6, 8, 12, 16)},
]
#: Percentage points of P@k that may be chance.
LEVEL = 0.15


@dataclass(frozen=True)
class Explored:
    """One set: its shape, and the mean of P@k on validation by the value of each choice."""

    name: str
    shape: Shape
    curves: dict[str, list[tuple[float, float]]]

    @classmethod
    def of(cls, folder: str, runs: Iterable[dict[str, Any]]) -> "Explored":
        """Collect the runs that differ from the usual candidate in one choice."""
        shape = Shape.of(fedmlh.load(folder).train)
        points: dict[str, dict[float, float]] = {}
        usual = asdict(HASHED)
        for run in runs:
            candidate = dict(run["candidate"])
            if candidate["features"] == 0:  # as they are, which is also what a set with few of them gets
                candidate["features"] = max(HASHED.features, shape.features)
            changed = [name for name, value in candidate.items() if value != usual[name]]
            if run["data"] != Path(folder).name or len(changed) > 1:
                continue
            score = mean_of(run["validation"]["precision"])
            for name in changed or ["tau", "root", "features", "tables"]:
                if isinstance(usual[name], int | float):
                    points.setdefault(name, {})[float(candidate[name])] = score
        usual_score = points["tau"][HASHED.tau]
        for name in points:
            points[name].setdefault(float(usual[name]), usual_score)
        return cls(Path(folder).name, shape, {name: sorted(found.items()) for name, found in points.items()})

    def gain(self, name: str, value: float) -> float:
        """Return the gain of a choice compared with the usual one."""
        places, scores = zip(*self.curves[name], strict=True)
        scale: Callable[[Any], Any] = np.asarray if name == "tau" else np.log
        usual = float(getattr(HASHED, name))
        here, there = np.interp(scale([value, usual]), scale(places), scores)
        return float(here - there)

    def score(self, rule: Rule) -> float:
        """Return roughly the score that these rules would give."""
        return dict(self.curves["tau"])[HASHED.tau] + sum(
            self.gain(name, value) for name, value in choose(rule, self.shape).items()
        )


def choose(rule: Rule, shape: Shape) -> dict[str, float]:
    """Return the choices of a rule in the words of a candidate."""
    tables = rule.tables(BUDGET)
    numbers = parameters_within(BUDGET, HASHED.tables)
    outputs = rule.buckets(shape, numbers)
    features = min(shape.features, rule.inputs * math.sqrt(numbers))
    return {
        "tables": tables,
        "root": outputs / math.sqrt(shape.labels),
        "features": min(features, HASHED.features) if shape.features <= HASHED.features else features,
        "tau": rule.tau((shape.positives or 1) / outputs, alone=False),
    }


def fit(sets: list[Explored], margin: float = LEVEL) -> Rule:
    """Return the rule that is best in the mean over these sets."""
    rule = RULE
    for together in CHOICES:
        places = np.array(list(product(*(range(len(values)) for values in together.values()))))
        rules = [
            replace(rule, **{name: values[at] for (name, values), at in zip(together.items(), place, strict=True)})
            for place in places
        ]
        scores = np.array([fmean(data.score(one) for data in sets) for one in rules])
        level = np.flatnonzero(scores >= scores.max() - margin)
        away = np.square(places[level] - places[level].mean(axis=0)).sum(axis=1)
        rule = rules[level[away.argmin()]]
    return rule


def main() -> None:
    """Print a row per set."""
    runs = Rows(Path(sys.argv[1])).rows
    sets = [Explored.of(folder, runs) for folder in sys.argv[2:]]
    overall = fit(sets)
    names = [name for together in CHOICES for name in together]
    print(f"fitted on all: {', '.join(f'{name} {getattr(overall, name):g}' for name in names)}\n")
    rows, losses, behind = [], [], []
    for data in sets:
        rule = fit([other for other in sets if other is not data])
        losses.append(data.score(rule) - data.score(overall))
        behind.append(data.score(RULE) - data.score(overall))
        numbers = ", ".join(f"{getattr(rule, name):g}" for name in names)
        rows.append([data.name, f"{data.score(overall):.1f}", f"{losses[-1]:+.2f}", f"{behind[-1]:+.2f}", numbers])
    rows.append(["mean", "", f"{fmean(losses):+.2f}", f"{fmean(behind):+.2f}", ""])
    heads = ["", "fitted on all", "fitted on the others", "the product's", ", ".join(names)]
    print(table(heads, rows))
    print("\nmargin, mean loss, largest loss")
    for margin in (0.0, 0.05, 0.1, 0.15, 0.2, 0.3):
        every = fit(sets, margin)
        costs = [
            data.score(fit([other for other in sets if other is not data], margin)) - data.score(every) for data in sets
        ]
        print(f"{margin:g}: {fmean(costs):+.2f}, {min(costs):+.2f}")


if __name__ == "__main__":
    main()
