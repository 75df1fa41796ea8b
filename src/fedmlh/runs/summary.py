"""The figures of a finished run, under the names that scripts rely on."""

from collections.abc import Mapping
from math import isfinite
from statistics import median
from typing import Any

from fedmlh.evaluation.costs import paper_volume_bytes, peak_memory_bytes
from fedmlh.evaluation.evaluate import Examined
from fedmlh.evaluation.proposals import AVERAGES
from fedmlh.federated.task import Task
from fedmlh.runs.checkpoint import Progress


def summarize(task: Task, progress: Progress, test: Examined) -> dict[str, Any]:
    """Return costs and metrics; metrics are fractions of 1 on the test part at the selected round."""
    config, history, best = task.config, progress.history, progress.best_round
    model_bytes = 4 * task.stack.num_parameters
    return {
        "name": config.name,
        "algorithm": config.method,
        "seed": config.seed,
        "selection": config.selection,
        "num_parameters": task.stack.num_parameters,
        "model_bytes": model_bytes,
        "best_round": best,
        "rounds": progress.server.round,
        **test.values,
        **test.by_label,
        "proposals": test.proposals.summarize(),
        **({"validation": judged(history[best - 1])} if config.selection == "validation" else {}),
        "bytes_up": sum(record["bytes_up"] for record in history),
        "bytes_down": sum(record["bytes_down"] for record in history),
        "bytes_up_to_best": sum(record["bytes_up"] for record in history[:best]),
        "bytes_down_to_best": sum(record["bytes_down"] for record in history[:best]),
        "paper_volume_bytes": paper_volume_bytes(best, config.clients_per_round, model_bytes),
        # The median: the first round also loads and compiles.
        "seconds_per_round": median(record["seconds_training"] for record in history),
        "seconds_evaluation_per_round": median(record["seconds_evaluation"] for record in history),
        "peak_memory_bytes": peak_memory_bytes(),
    }


#: The metrics in a table of runs; every summary has them.
SHOWN_METRICS = ("precision", "precision_paper", "precision_infrequent", "ndcg", "psp")
#: Metrics that only summaries have, since sites do not exchange them.
BY_LABEL = ("recall_macro", "recall_by_count")
_TEXTS = ("name", "algorithm", "selection")
_NUMBERS = "best_round model_bytes bytes_up_to_best bytes_down_to_best paper_volume_bytes seconds_per_round".split()


def checked_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary from a file; raise KeyError, TypeError or ValueError if a table of runs cannot show it."""
    if not all(isinstance(summary[name], str) for name in _TEXTS):
        raise TypeError("a name that is not text")
    ks = summary["precision"].keys()
    values = [summary[name] for name in _NUMBERS] + [summary[metric][k] for metric in SHOWN_METRICS for k in ks]
    # Folders of older versions do not have these.
    values += [value for metric in BY_LABEL for value in summary.get(metric, {}).values()]
    if "proposals" in summary:
        values += [summary["proposals"][name] for name in AVERAGES.values()]
        if not isinstance(summary["proposals"]["rule"], str):
            raise TypeError("a rule that is not text")
    for client in summary.get("clients", []):
        values += [client["client"], client["examples"], client["held_out"]]
        values += [client[part][k] for part in ("precision", "precision_alone") if part in client for k in ks]
    if not ks or not all(is_number(value) for value in values):
        raise ValueError("a figure is not a number")
    return summary


def judged(record: Mapping[str, Any]) -> Any:
    """Return the metrics by which the round was judged: on validation, or on test with the paper's selection."""
    return record["validation"] if "validation" in record else record["test"]


def checked_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a line of metrics.jsonl; raise KeyError, TypeError or ValueError if curves cannot show it."""
    values = [record["round"], record["bytes_up"], record["bytes_down"], *judged(record)["precision"].values()]
    if not all(is_number(value) for value in values):
        raise ValueError("a figure is not a number")
    return record


def read_own(figures: Mapping[str, Any], metric: str, k: str) -> float | None:
    """Return the value of a user's metric in a summary or in a client's row; None if it was not measured."""
    values = figures.get(metric)
    value = values.get(k) if isinstance(values, dict) else None
    return float(value) if isinstance(value, int | float) and is_number(value) else None


def is_number(value: object) -> bool:
    """Say whether a value from a file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
