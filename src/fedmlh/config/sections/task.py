"""Settings on which the clients' work depends: with different values, sites would train different models."""

from typing import Literal

from fedmlh.config.section import MAX_TABLES, option, section


@section("task", "How the model is trained, and how labels become its outputs.", agreed="always")
class Learning:
    """The way of training, and the hashing of labels."""

    training: Literal["rounds", "one-round", "auto"] = option(
        "rounds",
        "How the model is trained: rounds (networks, averaged after each round), one-round (a linear model, computed "
        "from sums that each client sends once), or auto (what suits the data).",
        open="auto",
        implied=True,  # by the method
    )
    label_map: str = option(
        "murmur3",
        "How a label finds its bucket in each table: by the hash family murmur3 or universal, by balanced (a seeded "
        "permutation that fills all buckets evenly), or by identity (one output per label; with one table this is "
        "FedAvg).",
        part="label map",
        sized="changed",
    )
    label_key: Literal["id", "name"] = option(
        "id",
        "What is hashed of a label: id (its number, so all sites need the same list of labels) or name (its key in the "
        "catalogue, so sites may know different labels).",
    )
    num_tables: int = option(
        4,
        "Number of tables, each with its own hash function and network (R); more of them tell more labels apart, "
        "and the model costs more bytes.",
        at_least=1,
        at_most=MAX_TABLES,
        sized="chosen",
        idle_with={"label_map": "identity", "training": "one-round"},
    )
    num_buckets: int = option(
        250,
        "Number of buckets per table, into which labels are hashed (B); with more of them fewer labels share a bucket, "
        "and the model costs more bytes.",
        at_least=1,
        at_most=2**24,
        sized="chosen",
        idle_with={"label_map": "identity"},
    )


@section("networks", "What goes into the networks, their shape and their loss.", agreed="rounds", training="rounds")
class Networks:
    """The networks, as all clients have to train them."""

    feature_map: Literal["none", "shared", "per-table"] = option(
        "shared",
        "How features are hashed before they enter a network: none (not at all), shared (the same way for all tables) "
        "or per-table (another way for each table).",
        sized="changed",
    )
    feature_dim: int = option(
        300,
        "Number of hashed features, which are the inputs of each network; with more of them fewer features share an "
        "input, and the model costs more bytes.",
        at_least=1,
        at_most=2**30,
        sized="chosen",
    )
    feature_signed: bool = option(
        False,
        "Whether a feature is multiplied by a hashed sign, so that features that share an input cancel on average.",
    )
    normalize: bool = option(False, "Whether the features of each point, once hashed, are scaled to length 1.")
    hidden_sizes: tuple[int, ...] = option(
        (150, 150),
        "Widths of the hidden layers, from the first to the last; an empty list means a linear model.",
        at_least=1,
        at_most=2**20,
        count=32,
        sized="chosen",
    )
    loss: str = option(
        "bce",
        "Loss over the buckets: bce (each bucket by itself), softmax (a point's buckets share a total of 1), "
        "balanced-bce, balanced-softmax (these count frequent buckets of a client less), or one of your own.",
        part="loss",
    )
    loss_tau: float = option(
        1.0,
        "With a balanced loss, how much less a client's frequent buckets count (τ): 0 means no less, larger values "
        "mean much less, and 0 to 1.5 is usual; -1, with sizes auto, means a value that suits the data.",
        at_least=-1,
        at_most=1e6,
        open=-1.0,
    )
    output_bias: Literal["random", "rare"] = option(
        "random",
        "How the biases of the output layer start: random (near 0), or rare (each bucket starts at odds of 1 to B, so "
        "that bce need not first learn that most buckets are empty).",
    )


@section("local", "How a client trains in a round.", agreed="rounds", training="rounds")
class Local:
    """Local training."""

    local_epochs: int = option(
        5, "Number of times that a client goes through its points in a round (E).", at_least=1, at_most=10**4
    )
    batch_size: int = option(
        100, "Number of points per local step; smaller batches mean more steps.", at_least=1, at_most=10**6
    )
    optimizer: Literal["adam", "sgd"] = option(
        "adam", "Optimizer of local training, adam or sgd; it starts fresh for each client in each round."
    )
    learning_rate: float = option(
        1e-3,
        "Learning rate of local training in the first round; 0, with sizes auto and optimizer adam, means one that "
        "suits the width of the networks; 0.0003 to 0.1 is usual with adam, far more with sgd (docs/objectives.md).",
        at_least=0,
        at_most=1e9,
        open=0.0,
    )
    learning_rate_decay: float = option(
        1.0,
        "Factor by which the learning rate is multiplied after each round; 1 keeps it, and 0, with sizes auto, means "
        "one that suits the number of local steps.",
        at_least=0,
        at_most=1,
        open=0.0,
    )
    prox_mu: float = option(
        0.0,
        "Strength with which FedProx pulls a client's model back to the global one (μ); 0 means no pull, and usual "
        "values with adam are at most 0.001 with a softmax loss, at most 0.00001 with bce.",
        at_least=0,
        at_most=1e6,
        for_others=True,
    )
    correction: str = option(
        "none",
        "Remedy for clients whose models drift apart; docs/objectives.md says what each remedy needs and sends.",
        part="drift",
        for_others=True,
    )
    shared_fraction: float = option(
        0.0,
        "Share of the training points (not of those held out) that EVERY client sees and trains on; 0 means none.",
        at_least=0,
        at_most=0.9,
        simulation_only=True,
    )


@section(
    "messages", "How updates and models are encoded, and how updates are weighted.", agreed="rounds", training="rounds"
)
class Messages:
    """Messages between clients and server in a round."""

    weighting: Literal["uniform", "examples"] = option(
        "uniform",
        "Weight of a client in the average of a round: uniform (all count the same) or examples (by the number of "
        "training points).",
    )
    update_codec: str = option(
        "fp32",
        "How a client's update is encoded, as family, family-N% or either with +zlib: fp32 loses nothing, other "
        "families send fewer bytes; docs/codecs.md lists them.",
        for_others=True,
    )
    broadcast_codec: str = option(
        "fp32",
        "How the global model is encoded: fp32 loses nothing, and fp16 little; coarser families send the change "
        "since the model that a client holds; docs/codecs.md lists them.",
        for_others=True,
    )


@section("sums", "What a client sends in one round.", agreed="one-round", training="one-round")
class Sums:
    """The sums over a client's points."""

    point_bits: int = option(
        5,
        "Number of binary digits to which points are rounded (b); with more of them, sums are more exact and larger.",
        at_least=4,
        at_most=12,
    )
    feature_slots: int = option(
        0,
        "Largest number of slots for features (rare features share slots); with more slots the model is larger and "
        "better, and 0 means as many as the limits on pairs and weights allow, up to 32,768.",
        at_least=0,
        at_most=2**17,
    )
    min_site_points: int = option(
        100,
        "Number of training points that a real site needs; a site with fewer sends no sums, because they would reveal "
        "too much of each point.",
        at_least=1,
        at_most=10**9,
    )
