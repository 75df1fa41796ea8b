"""Tables of the costs of rounds at the paper's full sizes: 7 (seconds of a local round) and 8 (all others)."""

from collections.abc import Iterator

from fedmlh.reproduction.evidence import Evidence
from fedmlh.reproduction.methods import METHODS, PAPER
from fedmlh.reproduction.paper import preset_config, shape_bytes
from fedmlh.reproduction.tables.table import MIB, NONE, SIDES, Table, ratio, side_by_side


def make_seconds(evidence: Evidence) -> Table:
    """Return Table 7: the seconds of a local round."""
    rows = []
    for source in evidence.timed:
        ours, printed = {}, {}
        for method in PAPER:
            found = evidence.one("time", source, method)
            ours[method] = [found["seconds_local"]] if found else []
            printed[method] = source.shape.printed[method].seconds
        rows.append(
            (
                source.shape.title,
                *side_by_side(ours, printed, 2),
                *(ratio(ours["fedavg"], ours["fedmlh"]), f"{source.shape.ratios['seconds']:.2f}×"),
            )
        )
    return Table(
        "table7",
        "Table 7. Seconds of a local round of one client",
        ("set", *SIDES, "FedAvg ÷ FedMLH · ours", "FedAvg ÷ FedMLH · paper"),
        tuple(rows),
        (
            "Five epochs at batch 100 over a tenth of the training points, including decoding the broadcast and "
            "encoding the update; synthetic data of exactly the paper's N, d and p. On a CPU a client trains with one "
            "thread. The paper measured on a P100, other hardware than ours: compare the ratios.",
            *_left_out(evidence),
        ),
        groups=0,
    )


def make_costs(evidence: Evidence) -> Table:
    """Return Table 8, which the paper does not have: what a round of its four shapes costs at full size."""
    rows = []
    for source in evidence.timed:
        for method in PAPER:
            config = preset_config(source.preset, method)
            found = evidence.one("time", source, method)
            size = shape_bytes(source.shape, method)
            both = [found["bytes_up_round"] / MIB, found["bytes_down_round"] / MIB] if found else []
            gpu = found["gpu_memory_bytes"] if found else None
            rows.append(
                (
                    source.shape.title,
                    METHODS[method],
                    f"{size // 4:,}",
                    f"{size / MIB:,.2f}",
                    f"{config.clients_per_round * size / MIB:,.1f}",
                    *([f"{value:,.1f}" for value in both] or [NONE, NONE]),
                    f"{found['seconds_round']:.2f}" if found else NONE,
                    f"{found['peak_memory_bytes'] / MIB:,.0f}" if found else NONE,
                    NONE if gpu is None else f"{gpu / MIB:,.0f}",
                )
            )
    return Table(
        "table8",
        "Table 8. What a round costs at the paper's full sizes",
        (
            *("set", "", "parameters", "model, MiB", "formula: S × model, MiB", "sent by clients, MiB"),
            *("sent by the server, MiB", "seconds per round", "peak memory, MiB", "GPU memory, MiB"),
        ),
        tuple(rows),
        (
            "Not in the paper. A round of 4 clients on synthetic data of exactly the paper's N, d and p: its bytes, "
            "memory and time; accuracy is not measured. Peak memory holds the server and all ten clients.",
            *_left_out(evidence),
        ),
    )


def _left_out(evidence: Evidence) -> Iterator[str]:
    for job in evidence.jobs:
        if job.kind == "time" and job.key in evidence.results.missing:
            yield f"{job.source.shape.title}, {METHODS[job.method]}: {evidence.results.missing[job.key]}."
