"""Settings of the data, and of its division over clients."""

from typing import Literal

from fedmlh.config.section import option, section

#: Points, features or labels of the built-in set: more than the largest public one has.
MAX_SYNTHETIC = 10**7


@section("dataset", "Where the data points come from.", own=True, common="always")
class Dataset:
    """The folder of the data."""

    data: str = option(
        "",
        "Folder of the data set; if it is empty, the built-in synthetic set is used.",
        simulation_only=True,
    )
    data_format: str = option(
        "auto",
        "Format of the files in that folder: npz, xmc, svmlight, text or a reader of your own; auto recognises it "
        "by the files.",
        part="reader",
        also=("auto",),
    )


@section("text", "How raw text becomes features.", agreed="one-round", common="always")
class Text:
    """Features of text; prepared features stay as they are."""

    text_features: Literal["hashing", "tfidf"] = option(
        "hashing",
        "How words are counted: hashing looks at each text by itself; tfidf weights words by all training text, and "
        "is for simulations only.",
        simulation_only=True,
    )
    text_dim: int = option(
        2**18,
        "Number of features into which words are hashed; with more of them, fewer words share a feature.",
        at_least=1,
        at_most=2**30,
        implied=True,  # by the number of features
    )


@section("synthetic", "The built-in data set, which is made if no data folder is named.", common="always")
class Synthetic:
    """Sizes of the built-in set."""

    synthetic_points: int = option(5000, "Number of training points.", at_least=10, at_most=MAX_SYNTHETIC)
    synthetic_features: int = option(5000, "Number of features (d).", at_least=10, at_most=MAX_SYNTHETIC)
    synthetic_labels: int = option(2000, "Number of labels (p).", at_least=10, at_most=MAX_SYNTHETIC)


@section("clients", "Who the clients are, and how many of them take part in a round.")
class Clients:
    """The clients of a simulation, and the sampling of clients."""

    partition: str = option(
        "paper-code",
        "Rule that gives training points to clients: paper-code (each client has one frequent label), paper-text (all "
        "points of a frequent label are at one client), iid (at random), dirichlet (each client has its own mix of "
        "labels), folder (by site folder), or one of your own; auto takes folder if the data has site folders, else "
        "dirichlet.",
        part="partition",
        also=("auto",),
        open="auto",
        common="unless swept",
    )
    dirichlet_alpha: float = option(
        0.3,
        "With partition dirichlet, how similar the clients' mixes of labels are: small values give each label to few "
        "clients, large values spread it evenly (α).",
        at_least=1e-3,
        at_most=1e6,
        needs={"partition": "dirichlet"},
        common="unless swept",
    )
    pooled: bool = option(
        False,
        "Whether one client gets all points, for a central run to compare with; it needs clients_per_round 1.",
        simulation_only=True,
    )
    num_clients: int = option(
        10,
        "Number of clients (K); 0 means one per site folder, or 10 if the data has no site folders.",
        at_least=0,
        at_most=10**6,
        open=0,
        common="unless swept",
    )
    clients_per_round: int = option(
        4,
        "Number of clients that the server samples in each round (S); 0 means all site folders up to 10, or 4 if the "
        "data has no site folders.",
        at_least=0,
        at_most=10**6,
        open=0,
    )
    quorum: int = option(
        1,
        "Number of updates that a round needs; with fewer, the round is repeated with newly sampled clients.",
        at_least=1,
        at_most=10**6,
        for_others=True,
    )
