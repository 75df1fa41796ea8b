"""What the figures in tables mean, a sentence each."""

#: By the name in summary.json.
MEANINGS = {
    "precision": "share of the first k labels that are right, mean over test points",
    "ndcg": "like P@k, but a right label counts more the earlier it stands",
    "psp": "P@k by propensity: a right label counts more the rarer it is",
    "recall": "share of a point's labels that are among the first k, mean over test points",
    "infrequent": "labels that fewer than {threshold:g} % of the training points carry",
    "recall_macro": "of a label's test points, the share with it among the first k; mean over labels",
    "recall_by_count": "labels that n training points carry; of all their occurrences, the share found",
    "best_round": "the selected round; MiB sent: encoded messages of all rounds up to it",
    "precision_paper": "right labels among the first k, divided by k or by the point's labels if these are fewer",
    "paper_volume_bytes": "best round × clients per round × model size; one way, without headers",
    "intervals": "over seeds: what other seeds may give; over test points: what other test points may give",
}


def explain(name: str, threshold: float) -> str:
    """Return what a figure means; labels are frequent from that share of the training points on."""
    return MEANINGS[name].format(threshold=100 * threshold)
