"""Tables of theory: predictions of the lemmas and theorems beside observations on the sets' own labels."""

from fedmlh.reproduction.evidence import Evidence, name_of
from fedmlh.reproduction.tables.table import NONE, Table


def make_lemma1(evidence: Evidence) -> Table:
    """Return the table of Lemma 1: positives of a label's bucket, over B."""
    rows = []
    for source in evidence.sources:
        for row in evidence.hashed(source, "lemma1"):
            rows.append(
                (
                    name_of(source),
                    f"{row['B']:,}",
                    f"{row['label']:,.2f}",
                    f"{row['bound']:,.2f}",
                    f"{row['exact']:,.2f}",
                    f"{row['observed']:,.2f} ± {row['spread']:.2f}",
                    f"{100 * (row['observed'] / row['exact'] - 1):+.2f} %",
                    f"{100 * row['labels_above']:.0f} %",
                    f"{100 * row['bound_above_exact']:+.2f} %",
                )
            )
    return Table(
        "lemma1",
        "Lemma 1. Positives of a label's bucket, mean over labels",
        (
            *("set", "B", "positives of the label itself", "paper's bound", "exact expectation", "observed"),
            *("observed against exact", "labels whose bound is above exact", "worst excess of the bound"),
        ),
        tuple(rows),
        (
            "Observed: mean and spread over hash functions. If points carry several labels, the printed lower bound "
            "may lie above the exact expectation: the last columns show for which share of labels, and by how much at "
            "most.",
        ),
    )


def make_lemma2(evidence: Evidence) -> Table:
    """Return the table of Lemma 2: pairs of labels that collide in all tables, over R and B."""
    rows, notes = [], []
    for source in evidence.sources:
        found = evidence.one("hash", source)
        if found is None:
            continue
        for row in found["lemma2"]:
            rows.append(
                (
                    name_of(source),
                    str(row["R"]),
                    f"{row['B']:,}",
                    _count(row["expected_pairs"]),
                    _count(row["observed_pairs"]),
                    f"{min(1.0, row['expected_pairs']):.4f}",
                    f"{row['probability']:.4f}",
                    f"{row['observed_share']:.2f}",
                )
            )
        paper = found["paper"]
        notes.append(
            f"{source.name}: with R = {paper['R']}, δ = {paper['delta']} Lemma 2 asks for B ≥ {paper['smallest_B']:,}; "
            f"the set-up has {paper['B']:,}."
        )
    return Table(
        "lemma2",
        "Lemma 2. Pairs of labels that no table tells apart",
        (
            *("set", "R", "B", "pairs · expected", "pairs · observed", "chance of any · Lemma 2's δ"),
            *("chance of any · exact", "chance of any · observed"),
        ),
        tuple(rows),
        tuple(notes),
    )


def make_theorem1(evidence: Evidence) -> Table:
    """Return the table of Theorem 1: errors of a class's estimated centre and spread, over its positives."""
    found = evidence.one("embed", evidence.sources[0])
    rows = []
    for name, title in (("mean", "centre of the class"), ("covariance", "spread of the class")):
        if found is None:
            continue
        for count, observed, bound in zip(
            found["positives"], found[name]["observed"], found[name]["bound"], strict=True
        ):
            rows.append((title, str(count), f"{bound:.5f}", f"{observed:.5f}", f"{observed / bound:.2f}", NONE))
        rows.append((title, "fitted over all n₁", NONE, NONE, NONE, f"n₁^{found[name]['rate']:.3f}"))
    return Table(
        "theorem1",
        "Theorem 1. Mean square error of what is learned about a class from n₁ positives",
        ("", "n₁", "least possible (unbiased)", "observed", "observed ÷ least", "rate (theorem: n₁^−1)"),
        tuple(rows),
        ("Sample mean and covariance of simulated normal embeddings, over independent trials.",),
    )


def make_theorem2(evidence: Evidence) -> Table:
    """Return the table of Theorem 2: divergence between clients before and after hashing, over B."""
    rows = []
    for source in evidence.sources:
        for row in evidence.hashed(source, "theorem2"):
            rows.append(
                (
                    name_of(source),
                    f"{row['B']:,}",
                    f"{row['labels']:.4f}",
                    f"{row['sums']:.4f} ± {row['sums_spread']:.4f}",
                    f"{100 * row['sums_below_labels']:.0f} %",
                    f"{row['unions']:.4f} ± {row['unions_spread']:.4f}",
                    f"{100 * row['unions_below_labels']:.0f} %",
                )
            )
    return Table(
        "theorem2",
        "Theorem 2. Divergence between clients (KL, nats) before and after hashing",
        (
            *(
                "set",
                "B",
                "labels, before hashing",
                "buckets, counts summed · KL",
                "buckets, counts summed · not above",
            ),
            *("buckets, unions · KL", "buckets, unions · not above"),
        ),
        tuple(rows),
        (
            "Neighbouring clients of the paper's partition; one positive is added to each label of each client before "
            "hashing, because the divergence would be infinite without it. The theorem is about summed counts. Models "
            "are trained on unions, which count a point once per bucket, so those are shown separately. “Not above”: "
            "share of client pairs and hash functions for which hashing did not increase the divergence.",
        ),
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
