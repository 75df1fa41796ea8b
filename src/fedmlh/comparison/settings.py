"""In which settings runs differ, as far as these have an effect."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from fedmlh.config import Config

#: What stands for a setting that has no effect.
IDLE = "–"
#: Settings that say what a run is called and drawn from, not how it is done.
_APART = ("name", "seed")
_TABLES = "num_tables num_buckets label_map label_key label_seeds".split()
_SIZES = ("num_tables", "num_buckets")
_ONE_ROUND = "point_bits feature_slots ridge count_power correct model_mib keep_sums min_site_points".split()
#: Of networks beside a linear model, what follows from the data and from `correct`.
_CHOSEN_BESIDE = ("rounds", "feature_dim", "hidden_sizes")
_NETWORKS = (
    "rounds local_epochs batch_size weighting shared_fraction max_share clip server_optimizer server_learning_rate "
    "server_momentum server_beta2 server_tau model_average update_codec broadcast_codec feature_map feature_dim "
    "feature_signed normalize hidden_sizes loss output_bias loss_tau optimizer learning_rate learning_rate_decay "
    "prox_mu correction decoding patience"
).split()


def list_differing(configs: Sequence[Config], names: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield each setting (of those named, or of all) in which set-ups differ, with its value in each as it is shown."""
    idle = [_find_idle(config) for config in configs]
    for entry in fields(Config):
        if entry.name in _APART or (names and entry.name not in names):
            continue
        used = {
            getattr(config, entry.name)
            for config, without in zip(configs, idle, strict=True)
            if entry.name not in without
        }
        # What only some methods have is worth a line if it was set, or says how large the tables are.
        alone = any(entry.name in without for without in idle) and (used - {entry.default} or entry.name in _SIZES)
        if len(used) > 1 or (used and alone):
            yield (
                entry.name,
                [
                    IDLE if entry.name in without else show_value(getattr(config, entry.name))
                    for config, without in zip(configs, idle, strict=True)
                ],
            )


def show_value(value: Any) -> str:
    """Return a setting's value as tables and names show it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def _find_idle(config: Config) -> set[str]:
    """Return the settings that have no effect on a run."""
    once, idle = config.training == "one-round", set[str]()
    idle.update(_ONE_ROUND if not once else _CHOSEN_BESIDE if config.correct else _NETWORKS)
    if config.algorithm == "fedavg":
        idle.update(_TABLES)
    elif config.label_map == "identity":
        idle |= {"num_buckets", "label_seeds"} | ({"num_tables"} if once else set())
    if config.partition != "dirichlet":
        idle.add("dirichlet_alpha")
    return idle
