"""The figures of a finished run, under the names that scripts rely on."""

from statistics import fmean
from typing import Any

from fedmlh.evaluation.costs import paper_volume_bytes, peak_memory_bytes
from fedmlh.evaluation.evaluate import Values
from fedmlh.federated.task import Task
from fedmlh.runs.checkpoint import Progress


def summarize(task: Task, progress: Progress, test: Values) -> dict[str, Any]:
    """Costs and metrics; metrics are fractions of 1 on the test part at the selected round."""
    config, history, best = task.config, progress.history, progress.best_round
    model_bytes = 4 * task.stack.num_parameters
    judged = history[best - 1]
    return {
        "name": config.name,
        "algorithm": config.algorithm,
        "seed": config.seed,
        "selection": config.selection,
        "num_parameters": task.stack.num_parameters,
        "model_bytes": model_bytes,
        "best_round": best,
        "rounds": progress.server.round,
        **test,
        **({"validation": judged["validation"]} if "validation" in judged else {}),
        "bytes_up": sum(record["bytes_up"] for record in history),
        "bytes_down": sum(record["bytes_down"] for record in history),
        "bytes_up_to_best": sum(record["bytes_up"] for record in history[:best]),
        "bytes_down_to_best": sum(record["bytes_down"] for record in history[:best]),
        "paper_volume_bytes": paper_volume_bytes(best, config.clients_per_round, model_bytes),
        "seconds_per_round": fmean(record["seconds_training"] for record in history),
        "seconds_evaluation_per_round": fmean(record["seconds_evaluation"] for record in history),
        "peak_memory_bytes": peak_memory_bytes(),
    }
