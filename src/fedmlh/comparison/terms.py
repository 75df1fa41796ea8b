"""The meaning of the figures in tables, a sentence each."""

#: By the name in summary.json.
MEANINGS = {
    "precision": "share of the first k labels that are right, mean over test points",
    "ndcg": "like P@k, but a right label counts more the earlier it stands",
    "psp": "propensity-scored P@k, in which a right label counts more the rarer it is in training",
    "recall": "share of a point's labels that are among the first k, mean over test points",
    "infrequent": "labels that fewer than {threshold:g} % of the training points carry",
    "recall_macro": "share of a label's test points that have it among the first k, mean over labels",
    "recall_by_count": "labels of n training points; their recall is the share of their test occurrences that is found",
    "f1": "harmonic mean of precision and recall of the labels that are proposed; micro: all labels together; macro: "
    "mean over the labels of the test part; per document: mean over test points",
    "average_rank": "mean rank of the label at the test points that carry it; ranks beyond 100 count as 101",
    "confused_with": "the wrong label that is proposed most often at the test points that carry this label",
    "best_round": "the selected round; bytes sent until best are all encoded messages up to it (1 MiB is 2^20 bytes)",
    "precision_paper": "right labels among the first k, divided by k or by the point's labels if these are fewer",
    "paper_volume_bytes": "best round × clients per round × model size; one way, without headers",
    "intervals": "over seeds, they show what other seeds may give; over test points, what other test points may give",
}


def explain(name: str, threshold: float) -> str:
    """Return what a figure means; frequent labels have at least this share of the training points."""
    return MEANINGS[name].format(threshold=100 * threshold)
