"""The report in sentences: where FedMLH is ahead and by how much, and what agrees with the paper."""

from collections.abc import Iterator
from statistics import fmean

from fedmlh.reproduction.evidence import Evidence, name_of
from fedmlh.reproduction.methods import METHODS, PAPER
from fedmlh.reproduction.paper import SHAPES, UNITS, shape_bytes, shape_volume
from fedmlh.reproduction.plan import SELECTIONS
from fedmlh.reproduction.sources import Source
from fedmlh.reproduction.tables.outcomes import SELECTION_NAMES
from fedmlh.reproduction.tables.table import signed

_KS = ("1", "3", "5")


def tell_findings(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence or two per finding."""
    cells = [(shape, method) for shape in SHAPES.values() for method in PAPER]
    memory = sum(round(shape_bytes(s, m) / UNITS[s.unit], 2) == s.printed[m].memory for s, m in cells)
    volume = sum(round(shape_volume(s, m) / UNITS[s.unit], 1) == s.printed[m].volume for s, m in cells)
    yield (
        f"Model memory equals the paper's in {memory} of {len(cells)} cells; its communication volume follows from its "
        f"own rounds in {volume} of {len(cells)}."
    )
    for source in evidence.trained:
        for selection in SELECTIONS:
            yield f"{name_of(source)}, {SELECTION_NAMES[selection]}: {_compare(evidence, source, selection)}"
        yield f"{source.name}, {_contestants(evidence, source)}"


def _compare(evidence: Evidence, source: Source, selection: str) -> str:
    pairs = evidence.pairs(source, ("fedmlh", "fedavg"), selection)
    if not pairs:
        return "some runs are missing."
    gaps = {
        (metric, k): [100 * (a["summary"][metric][k] - b["summary"][metric][k]) for a, b in pairs]
        for metric in ("precision", "precision_infrequent")
        for k in _KS
    }
    whole = [gaps["precision", k] for k in _KS]
    verdict = {3: "FedMLH is ahead at every k", 0: "FedMLH is behind at every k"}.get(
        sum(fmean(gap) > 0 for gap in whole), "FedMLH is ahead at some k and behind at others"
    )
    volume, rounds = (
        fmean(b["summary"][name] for _, b in pairs) / fmean(a["summary"][name] for a, _ in pairs)
        for name in ("paper_volume_bytes", "best_round")
    )
    return (
        f"{verdict}, by {' / '.join(signed(gap, 1) for gap in whole)} percentage points of P@1/3/5; of these "
        f"{' / '.join(signed(gaps['precision_infrequent', k], 1) for k in _KS)} on infrequent labels. Until its best "
        f"round FedAvg sends {volume:.2f} times as much in {rounds:.2f} times as many rounds."
    )


def _contestants(evidence: Evidence, source: Source) -> str:
    parts = []
    for method, title in METHODS.items():
        runs = evidence.runs(source, method, "validation")
        if runs:
            values = " / ".join(f"{100 * fmean(run['summary']['precision'][k] for run in runs):.1f}" for k in _KS)
            parts.append(f"{title} {values}")
    return f"P@1/3/5 at the round chosen on validation: {'; '.join(parts)}."
