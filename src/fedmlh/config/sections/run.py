"""Settings of one run: its name and seeds, its sizes, how long it lasts and where it computes."""

from typing import Literal

from fedmlh.config.section import option, section


@section("setup", "The name and the seeds of a run.")
class Setup:
    """Name and seeds; the server sends the seeds along, so sites need not agree on them beforehand."""

    name: str = option("custom", "Name of this config in tables and folder names.", compared=False)
    seed: int = option(
        0,
        "Number from which every random choice follows: the same seed repeats a run, another seed gives another "
        "partition, initial model and sampling.",
        at_least=0,
        at_most=2**63 - 1,
        compared=False,
        common="always",
    )
    label_seeds: str | tuple[int, ...] = option(
        "drawn",
        "Seeds of the hash functions of labels, one per table: drawn (from seed), paper (0, 1, 2, …) or a list of "
        "numbers.",
        idle_with={"label_map": "identity"},
    )
    feature_seeds: str | tuple[int, ...] = option(
        "drawn",
        "Seeds of the hash functions of features, one per feature map: drawn (from seed), paper (101, 102, …) or a "
        "list of numbers.",
    )


@section("budget", "Whether sizes follow from the data; once chosen, a run keeps its sizes.", free=True)
class Budget:
    """Sizes that follow from the data."""

    sizes: Literal["given", "auto"] = option(
        "given",
        "Where num_tables, num_buckets, feature_dim and hidden_sizes come from: given (their own values), or auto "
        "(they follow from the data and budget_mib).",
        simulation_only=True,
    )
    budget_mib: float = option(
        0.0,
        "With sizes auto, size of the largest model to send, in MiB; 0 means 4 to 48 MiB by features and labels, and "
        "networks that correct trains get a quarter of that.",
        at_least=0,
        at_most=2**20,
        idle_with={"sizes": "given", "training": "rounds"},
    )


@section("afterwards", "What may follow the closed form of one round.", free=True, training="one-round")
class Afterwards:
    """What can be added to a linear model; the model itself stays as it is."""

    correct: int = option(
        0,
        "Number of rounds in which networks are trained beside the linear model; their scores are added where that "
        "helps on validation, and 0 means no such rounds.",
        at_least=0,
        at_most=10**6,
    )
    keep_sums: bool = option(
        True,
        "Whether what clients sent is kept, so that clients can be added and taken out later (fedmlh one-round add, "
        "remove).",
    )


@section("run", "How long a run lasts, where it computes, and what else it measures.", free=True)
class Run:
    """Settings that a run may change when it is resumed."""

    rounds: int = option(70, "Number of rounds at most (T).", at_least=1, at_most=10**6, training="rounds")
    patience: int = option(
        0,
        "Number of rounds without a better one after which a run stops; 0 means that it never stops early.",
        at_least=0,
        at_most=10**6,
        training="rounds",
    )
    max_attempts: int = option(
        3, "Number of attempts at one round after which a run gives up.", at_least=1, at_most=10**4
    )
    deadline: float = option(
        600.0,
        "Seconds that one attempt at a round lasts with real sites; a site that has not answered by then is left out.",
        at_least=1,
        at_most=86400,
    )
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto",
        "Where networks are trained: cpu, cuda (a GPU), or auto (a GPU if there is one).",
        common="unless swept",
    )
    gpu_precision: Literal["tf32", "fp32"] = option(
        "tf32", "Precision of matrix products on a GPU: tf32 is faster and rounds their inputs, fp32 does not."
    )
    test_every_round: bool = option(
        False, "Whether test metrics are also written for every round; no choice depends on them."
    )
    local_baseline: bool = option(
        False, "Whether each client is also trained alone, to show what it gains by taking part."
    )
