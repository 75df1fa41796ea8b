"""Tables that need only the data and the sizes: 1 (statistics), 2 (R and B) and 5 (model memory)."""

from collections.abc import Iterator, Mapping, Sequence

from fedmlh.config import Config
from fedmlh.reproduction.evidence import Evidence, is_comparable, name_of
from fedmlh.reproduction.methods import METHODS, PAPER, find_search, make_config
from fedmlh.reproduction.paper import SHAPES, UNITS, Shape, model_bytes, shape_bytes
from fedmlh.reproduction.sources import Source
from fedmlh.reproduction.tables.table import (
    NONE,
    OTHERS,
    SIDES,
    Row,
    Table,
    difference,
    other_methods,
    ratio,
    side_by_side,
)


def make_statistics(evidence: Evidence) -> Table:
    """Return Table 1: statistics of the data."""
    rows = []
    for source, dataset in evidence.sized:
        shape = source.shape
        ours = {
            "N, training points": (len(dataset.train), shape.N),
            "d, features": (dataset.num_features, shape.d),
            "d̃, hashed features": (source.config.feature_dim, shape.feature_dim),
            "p, labels": (dataset.num_labels, shape.p),
        }
        for name, (own, printed) in ours.items():
            rows.append((name_of(source), name, f"{own:,}", f"{printed:,}", difference([own], printed, 0)))
        rows.append((name_of(source), "test points", f"{len(dataset.test):,}", NONE, NONE))
        found = evidence.one("describe", source)
        if found:
            statistics = found["statistics"]
            rows.append(
                (name_of(source), "labels per point", f"{statistics['train']['labels_per_point']:.2f}", NONE, NONE)
            )
            rare = statistics["share_of_positives_of_labels_under"]
            for under in ("1.00%", "0.01%"):
                label = f"positives of labels that under {under.replace('.00', '').replace('%', ' %')} of points carry"
                rows.append((name_of(source), label, f"{100 * rare[under]:.1f} %", NONE, NONE))
            for partition, about in found["partitions"].items():
                label = f"points that reach a client, partition {partition}"
                rows.append((name_of(source), label, f"{100 * about['reached']:.1f} %", NONE, NONE))
    return Table(
        "table1",
        "Table 1. Data statistics",
        ("set", "", "ours", "paper", "difference"),
        tuple(rows),
        ("The paper says about 70 % of the positives of amazontitles are of labels under 0.01 % of the points.",),
    )


def make_sizes(evidence: Evidence) -> Table:
    """Return Table 2: hash tables and buckets."""
    rows = []
    for source, dataset in evidence.sized:
        own = source.config
        others = [make_config(method, source, dataset) for method in ("recommended", "tuned")]

        def hidden(config: Config) -> str:
            return " × ".join(str(width) for width in config.hidden_sizes)

        def hashed(config: Config, value: int) -> str:
            return NONE if config.is_fedavg else f"{value:,}"

        for name, ours, printed in (("R", own.num_tables, source.shape.R), ("B", own.num_buckets, source.shape.B)):
            field_name = "num_tables" if name == "R" else "num_buckets"
            cells = (f"{ours:,}", f"{printed:,}", difference([ours], printed, 0))
            rows.append(
                (name_of(source), name, *cells, *(hashed(other, getattr(other, field_name)) for other in others))
            )
        rows.append(
            (
                *(name_of(source), "d̃", f"{own.feature_dim:,}", f"{source.shape.feature_dim:,}"),
                difference([own.feature_dim], source.shape.feature_dim, 0),
                *(f"{other.feature_dim:,}" for other in others),
            )
        )
        rows.append((name_of(source), "hidden layers", hidden(own), NONE, NONE, *map(hidden, others)))
    return Table(
        "table2",
        "Table 2. Hash tables R and buckets B",
        ("set", "", "FedMLH · ours", "FedMLH · paper", "FedMLH · difference", *OTHERS),
        tuple(rows),
        (
            "“recommended” and tuned FedAvg may send no more than the paper's FedMLH model: their sizes follow from "
            "the data and that budget. The paper does not print its hidden widths; they follow from its model sizes "
            "(Table 5).",
            *_describe_searches(evidence.sources),
        ),
    )


def _describe_searches(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        search = find_search(source)
        own = "its own search" if search["set"] == source.name else f"the search on {search['set']}"
        yield f"Tuned FedAvg on {source.name}: settings from {own} ({search['tried']})."


def make_memory(evidence: Evidence) -> Table:
    """Return Table 5: the memory of a model."""
    rows = []
    group = "The paper's four shapes"
    for shape in SHAPES.values():
        unit = UNITS[shape.unit]
        ours = {method: [shape_bytes(shape, method) / unit] for method in PAPER}
        rows.append((group, f"{shape.title}, {shape.unit}", *_memory_cells(ours, shape, True)))
    for source, dataset in evidence.sized:
        unit = UNITS[source.shape.unit]
        ours = {}
        for method in METHODS:
            config = make_config(method, source, dataset)
            ours[method] = [model_bytes(config, dataset.num_features, dataset.num_labels) / unit]
        label = f"{name_of(source)}, {source.shape.unit}"
        rows.append(("The sets of this report", label, *_memory_cells(ours, source.shape, is_comparable(source))))
    return Table(
        "table5",
        "Table 5. Model memory of a client (float32)",
        ("", "set", *SIDES, "FedAvg ÷ FedMLH · ours", "FedAvg ÷ FedMLH · paper", *OTHERS),
        tuple(rows),
        (
            "FedAvg's model grows with the labels: on a stand-in it differs from the paper's as the number of labels "
            "does.",
        ),
    )


def _memory_cells(ours: Mapping[str, Sequence[float]], shape: Shape, comparable: bool) -> Row:
    printed = {method: shape.printed[method].memory for method in PAPER}
    paper_ratio = f"{shape.ratios['memory']:.2f}×" if comparable else NONE
    return (
        *side_by_side(ours, printed if comparable else {}, 2),
        *(ratio(ours["fedavg"], ours["fedmlh"]), paper_ratio),
        *other_methods(ours, 2),
    )
