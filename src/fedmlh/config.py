"""All that a run can be told, in one frozen, validated record; presets and TOML files fill it."""

import contextlib
import dataclasses
import difflib
import json
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from fedmlh.display import is_printable
from fedmlh.errors import UserError
from fedmlh.parts import check, find, find_foreign, list_names
from fedmlh.untrusted import MOST_TOML, read_text

#: Points, features or labels of the built-in set: more than the largest public one has.
MAX_SYNTHETIC = 10**7
#: Largest number of hash functions, and so of seeds in a list.
_MAX_TABLES = 1024
#: The most that log N − 1 can be, for 2^62 training points.
_MAX_LOG_POINTS = 42


def option(
    default: Any,
    why: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    count: int = _MAX_TABLES,
    part: str = "",
    also: tuple[str, ...] = (),
) -> Any:
    """Return a field: the line that explains it, its range, how many numbers a list may have, or the kind of part.

    `also`: words that may stand in place of a part's name.
    """
    limits = {"at_least": at_least, "at_most": at_most, "count": count}
    return field(default=default, metadata={"help": why, "part": part, "also": also, **limits})


class CodecName(NamedTuple):
    """What the name of a codec says."""

    kind: str
    share: Fraction  # of the values (topk), of the bytes (sketch), of the root mean square (grid); 1 for all others
    deflated: bool


_CODEC = re.compile(r"(?:(fp32|fp16|int8|int4|int2)|(topk|sketch|grid)-(\d{1,3}(?:\.\d{1,3})?)%)(\+zlib)?", re.ASCII)
#: The range of N in a codec's name. A grid of 200 % could leave out all that it was given.
_SHARES = {"grid": (Fraction(25), Fraction(199))}


def parse_codec(name: str) -> CodecName:
    """The parts of a codec's name, or a ValueError that says what it may be."""
    found = _CODEC.fullmatch(name)
    if found is not None:
        kind, percent, deflated = found[1] or found[2], Fraction(found[3] or 100), found[4] is not None
        least, most = _SHARES.get(kind, (Fraction(1, 1000), Fraction(100)))
        if least <= percent <= most and not (deflated and kind == "grid"):
            return CodecName(kind, percent / 100, deflated)
    raise ValueError(
        "say fp32, fp16, int8, int4, int2, topk-N% or sketch-N% with N up to 100, and +zlib after it to compress, or "
        "grid-N% with N from 25 to 199"
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """A complete, re-runnable description of a run. Names follow the paper."""

    name: str = option("custom", "what this set-up is called in tables and folder names")
    algorithm: Literal["fedmlh", "fedavg"] = option("fedmlh", "fedavg: one network with an output for every label")
    training: Literal["rounds", "one-round", "auto"] = option(
        "rounds",
        "rounds: networks, averaged every round; one-round: a linear model from sums that clients send once; auto: "
        "what suits the data",
    )
    seed: int = option(0, "every random choice of the run follows from it", at_least=0, at_most=2**63 - 1)
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto takes a GPU where there is one")
    gpu_precision: Literal["tf32", "fp32"] = option("tf32", "matrix products on a GPU; tf32 rounds their inputs")

    data: str = option("", "data folder; empty: the built-in synthetic set of the sizes below")
    data_format: Literal["auto", "npz", "xmc", "svmlight", "text"] = option("auto", "how to read the folder")
    text_features: Literal["hashing", "tfidf"] = option(
        "hashing", "raw text: hashing is stateless; tfidf is fitted on all training text (not for real sites)"
    )
    text_dim: int = option(2**18, "raw text: width of the stateless hashing", at_least=1, at_most=2**30)
    synthetic_points: int = option(5000, "built-in set: training points", at_least=10, at_most=MAX_SYNTHETIC)
    synthetic_features: int = option(5000, "built-in set: features d", at_least=10, at_most=MAX_SYNTHETIC)
    synthetic_labels: int = option(2000, "built-in set: labels p", at_least=10, at_most=MAX_SYNTHETIC)

    partition: str = option(
        "paper-code",
        "how training points reach clients; auto: by site folder where the data has them, else dirichlet",
        part="partition",
        also=("auto",),
    )
    dirichlet_alpha: float = option(0.3, "partition dirichlet: smaller is more skewed", at_least=1e-3, at_most=1e6)
    pooled: bool = option(
        False, "one client gets all that the partition dealt out: the central run to compare with (clients_per_round 1)"
    )
    frequent_threshold: float = option(
        0.01,
        "a label is frequent if at least this share of training points carries it",
        at_least=0,
        at_most=1,
    )
    num_clients: int = option(10, "K; 0: one per site folder, or else 10", at_least=0, at_most=10**6)
    clients_per_round: int = option(4, "S; 0: all sites up to 10, or else 4", at_least=0, at_most=10**6)
    rounds: int = option(70, "T, synchronization rounds at most", at_least=1, at_most=10**6)
    local_epochs: int = option(5, "E", at_least=1, at_most=10**4)
    batch_size: int = option(100, "points a local step", at_least=1, at_most=10**6)
    quorum: int = option(
        1, "updates a round needs; with fewer it is repeated with fresh sampling", at_least=1, at_most=10**6
    )
    max_attempts: int = option(3, "attempts at one round before the run gives up", at_least=1, at_most=10**4)
    deadline: float = option(
        600.0, "real sites: seconds for an attempt; who has not answered by then is left out", at_least=1, at_most=86400
    )
    weighting: Literal["uniform", "examples"] = option("uniform", "weight of a client in the average")
    shared_fraction: float = option(
        0.0,
        "share of the training points, less the held-out ones, that EVERYONE gets to see and trains on; 0: none",
        at_least=0,
        at_most=0.9,
    )
    max_share: float = option(
        0.0,
        "weighting examples: the largest share of one client in a round's average; 0: twice that of an average client",
        at_least=0,
        at_most=1,
    )
    aggregation: str = option("mean", "how the updates of a round become one change", part="aggregation")
    clip: Literal["auto", "off"] = option(
        "auto", "auto: an update much longer than others were is scaled down to a bound, which follows from the run"
    )
    server_optimizer: str = option("average", "what the server makes of the average change", part="server optimizer")
    server_learning_rate: float = option(
        1.0, "the server's step; adam, yogi and adagrad want less", at_least=0, at_most=1e6
    )
    server_momentum: float = option(0.9, "momentum, and β1 of the adaptive ones", at_least=0, at_most=1)
    server_beta2: float = option(0.99, "β2 of adam and yogi", at_least=0, at_most=1)
    server_tau: float = option(
        1e-3, "added to the denominator: of the adaptive ones, and of fedexp's step", at_least=0, at_most=1e6
    )
    model_average: float = option(
        0.0,
        "what is evaluated and exported: 0 the last global model, else a mean that fades by this a round",
        at_least=0,
        at_most=0.999,
    )
    update_codec: str = option(
        "fp32",
        "how a client's update is encoded: fp32, fp16, int8, int4, int2, topk-N%, sketch-N%; +zlib compresses; grid-N%",
    )
    broadcast_codec: str = option(
        "fp32",
        "how the global model is encoded: fp32, fp16; int8, int4, topk-N%, grid-N%: as changes; +zlib compresses",
    )

    sizes: Literal["given", "auto"] = option(
        "given", "auto: num_tables, num_buckets, feature_dim and hidden_sizes follow from the data and budget_mib"
    )
    budget_mib: float = option(
        0.0,
        "sizes auto, and networks of correct: the largest model to send; 0: by features and labels, 4 to 48 MiB",
        at_least=0,
        at_most=2**20,
    )
    label_map: str = option(
        "murmur3", "hash family of the labels; balanced: a seeded permutation, dealt out evenly", part="label map"
    )
    label_key: Literal["id", "name"] = option("id", "what is hashed: the label's number or its catalogue key")
    label_seeds: str | tuple[int, ...] = option("drawn", "drawn (from seed), paper (table r uses r), or a list")
    num_tables: int = option(4, "R", at_least=1, at_most=_MAX_TABLES)
    num_buckets: int = option(250, "B", at_least=1, at_most=2**24)
    feature_map: Literal["none", "shared", "per-table"] = option(
        "shared", "feature hashing: none, one map for all tables, or one a table"
    )
    feature_dim: int = option(300, "width of the hashed features", at_least=1, at_most=2**30)
    feature_signed: bool = option(False, "multiply a feature by a hashed sign, so that collisions cancel")
    feature_seeds: str | tuple[int, ...] = option("drawn", "drawn (from seed), paper (101), or a list")
    normalize: bool = option(False, "scale each point's (hashed) features to length 1")

    point_bits: int = option(5, "one-round: points are rounded to multiples of 2^-b", at_least=4, at_most=12)
    feature_slots: int = option(
        0,
        "one-round: most slots for features, rare ones share; 0: as many as their pairs and weights leave room for",
        at_least=0,
        at_most=2**17,
    )
    ridge: float = option(
        0.0, "one-round: λ of the ridge; 0: chosen on validation, or else on held-out sums", at_least=0, at_most=1e9
    )
    count_power: float = option(
        -1.0,
        "one-round: scores are divided by the label's count to this power, for the sake of rare labels; -1: chosen on "
        "validation, or else 0.05",
        at_least=-1,
        at_most=1,
    )
    correct: int = option(
        0,
        "one-round: rounds in which networks are trained beside the linear model; their scores are added where that "
        "helps on validation",
        at_least=0,
        at_most=10**6,
    )
    model_mib: float = option(64.0, "one-round: the largest model to keep", at_least=0.01, at_most=2**20)
    keep_sums: bool = option(
        True,
        "one-round: keep what clients sent, so that clients can be added and taken out later (one-round add|remove)",
    )
    min_site_points: int = option(
        100,
        "one-round, real sites: a site with fewer training points sends no sums, which would show too much of each",
        at_least=1,
        at_most=10**9,
    )

    hidden_sizes: tuple[int, ...] = option(
        (150, 150), "widths of the hidden layers", at_least=1, at_most=2**20, count=32
    )
    loss: str = option(
        "bce",
        "over buckets; softmax: targets normalised to sum 1; balanced: less for buckets a client sees often",
        part="loss",
    )
    output_bias: Literal["random", "rare"] = option(
        "random", "how the output layer starts; rare: each bucket at odds of 1 to B, so that bce need not learn that"
    )
    loss_tau: float = option(
        1.0,
        "of a balanced loss: how much frequent buckets are weighed down; 0: not at all; -1 with sizes auto: by data",
        at_least=-1,
        at_most=1e6,
    )
    optimizer: Literal["adam", "sgd"] = option("adam", "fresh for every client and round")
    learning_rate: float = option(
        1e-3, "of the local optimizer; 0 with sizes auto: by the sizes", at_least=0, at_most=1e9
    )
    learning_rate_decay: float = option(
        1.0,
        "what the learning rate is multiplied by after each round; 0 with sizes auto: by the steps in a round",
        at_least=0,
        at_most=1,
    )
    prox_mu: float = option(
        0.0, "FedProx: μ of the pull towards the global model in local training", at_least=0, at_most=1e6
    )
    correction: str = option(
        "none", f"remedy for clients that drift apart in local training: {', '.join(list_names('drift'))}", part="drift"
    )
    decoding: Literal["log-probs", "logits", "probs"] = option(
        "log-probs", "what is averaged over tables: log-likelihood (paper's text), logit (its code) or probability"
    )

    validation_fraction: float = option(
        0.1,
        "share of the training points held out, before partitioning; 0, for one-round only: clients hold points out",
        at_least=0,
        at_most=0.9,
    )
    selection: Literal["validation", "paper"] = option(
        "validation", "paper: the best round on TEST, nothing held out; for reproduction only"
    )
    patience: int = option(0, "stop after so many rounds without a better one; 0: never", at_least=0, at_most=10**6)
    test_every_round: bool = option(False, "also write test metrics for every round (they select nothing)")
    local_baseline: bool = option(False, "also train each client alone, to show what joining is worth to it")
    top_k: tuple[int, ...] = option((1, 3, 5), "the k of the metrics", at_least=1, at_most=1000, count=100)
    metrics: tuple[str, ...] = option(
        (), "metrics of your own that are measured as well, by name", part="metric", count=100
    )
    propensity_a: float = option(0.55, "A of the propensity model", at_least=0, at_most=10)
    propensity_b: float = option(1.5, "B of the propensity model", at_least=1e-3, at_most=1e6)

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            object.__setattr__(self, entry.name, _checked(entry, getattr(self, entry.name)))
        if self.clients_per_round > self.num_clients > 0:
            raise UserError(
                f"clients_per_round is {self.clients_per_round}, but there are only "
                f"{self.num_clients} clients (num_clients)"
            )
        if self.pooled and self.clients_per_round > 1:
            raise UserError(
                f"pooled leaves one client, but clients_per_round is {self.clients_per_round}: set clients_per_round=1"
            )
        if self.quorum > self.clients_per_round > 0:
            raise UserError(f"quorum is {self.quorum}, more than the {self.clients_per_round} clients of a round")
        if self.selection == "validation" and self.validation_fraction == 0 and self.training == "rounds":
            raise UserError("selection 'validation' needs a validation_fraction above 0")
        if self.local_baseline and self.selection == "paper":
            raise UserError(
                "local_baseline needs held-out points, and selection 'paper' holds none out: drop one of them"
            )
        given = self.sizes == "given" and self.training == "rounds"  # sizes of networks
        if self.learning_rate == 0 and (given or self.optimizer == "sgd"):
            raise UserError(
                "learning_rate is 0, which stands for one that suits the sizes, with sizes 'auto' and optimizer 'adam' "
                "only: set a learning_rate above 0"
            )
        if self.learning_rate_decay < 1e-3 and (given or self.learning_rate_decay != 0):
            raise UserError(
                f"learning_rate_decay is {self.learning_rate_decay:g}: it must be at least 0.001, or 0, which stands "
                f"for one that suits the data, with sizes 'auto' only"
            )
        if self.loss_tau < 0 and (given or self.loss_tau != -1):
            raise UserError(
                f"loss_tau is {self.loss_tau:g}: it must be at least 0, or -1, which stands for one that suits the "
                f"data, with sizes 'auto' only"
            )
        if self.budget_mib and given:
            raise UserError("budget_mib has no effect on given sizes: set sizes=auto as well")
        if self.label_key == "name":
            self._check_keyed()
        for name in ("update_codec", "broadcast_codec"):
            try:
                kind = parse_codec(getattr(self, name)).kind
            except ValueError as error:
                raise UserError(f"{name} is {_show(getattr(self, name))}: {error}") from None
        if kind in ("int2", "sketch"):
            raise UserError(
                f"broadcast_codec is '{self.broadcast_codec}', which leaves out more than it sends, so that "
                f"what clients hold would drift away from the model: use it for updates only"
            )
        if self.server_tau == 0 and self.server_optimizer not in ("average", "momentum"):
            raise UserError(
                f"server_optimizer '{self.server_optimizer}' divides by what may be 0: set server_tau above 0"
            )
        self._check_drift()
        if self.training == "one-round":
            self._check_one_round()
        if not self.top_k:
            raise UserError("top_k is empty: name at least one k, e.g. top_k=1,3,5")
        object.__setattr__(self, "top_k", tuple(sorted(set(self.top_k))))
        # Metrics sum such weights, k of them a point, as 64-bit integers.
        heaviest = 1 + _MAX_LOG_POINTS * ((self.propensity_b + 1) / self.propensity_b) ** self.propensity_a
        if heaviest * max(self.top_k) >= 2**22:
            raise UserError(
                f"propensity_a {self.propensity_a:g} with propensity_b {self.propensity_b:g} weighs a label that no "
                f"point has {heaviest:.3g} times as much as others: use a smaller propensity_a or a larger propensity_b"
            )
        for name, tables in (("label_seeds", self.num_tables), ("feature_seeds", self.num_feature_maps)):
            seeds = getattr(self, name)
            if isinstance(seeds, str):
                if seeds not in ("drawn", "paper"):
                    raise UserError(f"{name} is {_show(seeds)}: say drawn, paper, or a list of numbers")
            elif len(seeds) < tables or any(not 0 <= seed < 2**32 for seed in seeds):
                raise UserError(f"{name} needs at least {tables} numbers from 0 to 2^32 - 1, got {_show(list(seeds))}")

    def _check_keyed(self) -> None:
        """Only a hash of the key gives a label the same bucket at sites that know different labels."""
        if self.label_map == "balanced":
            raise UserError("label_map 'balanced' deals out one list of labels, so label_key must be 'id'")
        if self.label_map == "identity" or self.algorithm == "fedavg":
            what = "algorithm 'fedavg'" if self.algorithm == "fedavg" else "label_map 'identity'"
            raise UserError(f"{what} has an output for each label of one list, so label_key must be 'id'")

    def _check_one_round(self) -> None:
        if -1 < self.count_power < 0:
            raise UserError(f"count_power is {self.count_power:g}: it must be -1, which has it chosen, or from 0 to 1")
        if self.selection == "paper":
            raise UserError("training 'one-round' chooses λ on validation: use selection 'validation'")
        if self.correct and self.validation_fraction == 0:
            raise UserError("correct needs points on which the server sees whether it helps: set validation_fraction")
        if self.shared_fraction > 0:
            raise UserError("training 'one-round' shares no points: set shared_fraction=0")

    def _check_drift(self) -> None:
        """Have remedies for drift check their premises."""
        find("premises", "drift")(self)

    @property
    def method(self) -> str:
        """What is trained, in a word: fedmlh, fedavg or one-round; auto if the data decides."""
        return self.algorithm if self.training == "rounds" else self.training

    @property
    def most_rounds(self) -> int:
        """How many rounds a run has at most."""
        return self.rounds if self.training == "rounds" else 1 + self.correct

    @property
    def num_feature_maps(self) -> int:
        """How many feature maps the tables use: none, one for all, or R."""
        if self.training == "one-round":
            return 1  # of the features that share slots
        if self.feature_map == "none":
            return 0
        per_table = self.feature_map == "per-table" and self.algorithm == "fedmlh"
        return self.num_tables if per_table else 1

    def replace(self, **changes: Any) -> "Config":
        """The same set-up with some fields changed; unknown names are refused."""
        return Config.from_mapping({**_as_dict(self), **changes}, "settings")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str) -> "Config":
        """A config from names and values; `source` says in an error where they stood."""
        known = [entry.name for entry in dataclasses.fields(cls)]
        for name, default in _RETIRED.items():
            if values.get(name, default) != default:
                raise UserError(f"{source}: {name} is no longer a setting: remove it (clip says what there is now)")
        values = {name: value for name, value in values.items() if name not in _RETIRED}
        if values.get("algorithm") == "one-round":  # as files of earlier versions have it
            values |= {"algorithm": "fedmlh", "training": "one-round"}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.6)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise UserError(f"{source}: there is no setting '{name:.80}'{hint}")
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None

    @classmethod
    def load(cls, where: str | Path) -> "Config":
        """The preset of that name, or the config in that TOML file."""
        if str(where) in presets():
            text = (resources.files("fedmlh") / "presets" / f"{where}.toml").read_text("utf-8")
        else:
            path = Path(where)
            if not path.is_file():
                raise UserError(f"'{where}' is neither a preset ({', '.join(presets())}) nor a TOML file")
            try:
                text = read_text(path.resolve(), MOST_TOML)
            except OSError as error:
                raise UserError(f"{where} cannot be read: {error.strerror}") from None
        return cls.from_toml(text, str(where))

    @classmethod
    def from_toml(cls, text: str, source: str) -> "Config":
        """A config from the text of a TOML file; fields it does not name keep their defaults."""
        if len(text) > MOST_TOML:
            raise UserError(f"{source} is longer than {MOST_TOML:,} characters, which no config is")
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
            raise UserError(f"{source} is not valid TOML: {error}") from None
        _check_parts(values.pop("parts", []), source)
        return cls.from_mapping(values, source)

    @property
    def foreign(self) -> list[dict[str, str]]:
        """The parts that are not fedmlh's own: setting, name, origin and hash of each."""
        found = []
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            for name in (value if isinstance(value, tuple) else [value]) if entry.metadata["part"] else []:
                part = find_foreign(entry.metadata["part"], name)
                if part is not None:
                    found.append({"setting": entry.name, "name": name, "origin": part.origin, "sha256": part.sha256})
        return found

    def to_toml(self) -> str:
        """Every field with its explanation; loading the text gives an equal config."""
        lines = []
        for entry in dataclasses.fields(self):
            # JSON's numbers, booleans, arrays and, without control characters, strings are valid TOML.
            value = json.dumps(getattr(self, entry.name), ensure_ascii=False)
            lines += [f"# {entry.metadata['help']}", f"{entry.name} = {value}"]
        for part in self.foreign:
            lines += ["", "# not one of fedmlh's own: --parts loads the file", "[[parts]]"]
            lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in part.items()]
        return "\n".join(lines) + "\n"


#: Settings of earlier versions that have no effect any more, with the value that older files hold for them.
_RETIRED = {"max_update_rms": 10.0}


def presets() -> list[str]:
    """Names of the set-ups that ship with the product."""
    folder = resources.files("fedmlh") / "presets"
    return sorted(entry.name[: -len(".toml")] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def parse_setting(text: str) -> tuple[str, Any]:
    """`field=value` from the command line; the value as TOML would read it, else as plain text."""
    name, equals, raw = text.partition("=")
    if not equals or not name:
        raise UserError(f"--set {text}: say field=value, e.g. --set num_tables=8")
    raw = raw.strip()
    try:
        (value,) = tomllib.loads(f"value = {raw}").values()
    except (ValueError, RecursionError):
        value = raw
    if isinstance(value, str) and "," in value:
        with contextlib.suppress(ValueError):
            value = [int(part) for part in value.split(",")]
    return name.strip().replace("-", "_"), value


def _as_dict(config: Config) -> dict[str, Any]:
    return {entry.name: getattr(config, entry.name) for entry in dataclasses.fields(config)}


def _check_parts(recorded: Any, source: str) -> None:
    """Refuse a config whose foreign parts are not loaded, or are others than those that it was written with."""
    kinds = {entry.name: entry.metadata["part"] for entry in dataclasses.fields(Config) if entry.metadata["part"]}
    keys = ("setting", "name", "origin", "sha256")
    for part in recorded if isinstance(recorded, list) else [None]:
        texts = [part.get(key) for key in keys] if isinstance(part, dict) else []
        if not texts or not all(isinstance(text, str) for text in texts) or texts[0] not in kinds:
            raise UserError(f"{source}: the table [[parts]] is not one that fedmlh has written")
        setting, name, origin, sha256 = (f"{text:.80}" for text in texts)
        kind = kinds[setting]
        found = find_foreign(kind, name)
        if found is None:
            raise UserError(f"{source}: the {kind} '{name}' comes from {origin}: load it with --parts {origin}")
        if found.sha256 != sha256:
            raise UserError(
                f"{source}: the {kind} '{name}' of {found.origin} is not the one of {origin} that was used before "
                f"(SHA-256 {found.sha256[:12]}…, not {sha256[:12]}…): load the file of that time with --parts"
            )


_HINTS: dict[str, Any] = get_type_hints(Config)


def _checked(entry: "dataclasses.Field[Any]", value: Any) -> Any:
    """The value in the field's own type and range, or a sentence that says what it should be."""
    hint, name = _HINTS[entry.name], entry.name
    if entry.metadata["part"]:
        return _named(entry, value)
    if get_origin(hint) is Literal:
        if value not in get_args(hint) or not isinstance(value, str):
            raise UserError(f"{name} is {_show(value)}: choose one of {', '.join(get_args(hint))}")
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise UserError(f"{name} is {_show(value)}: say true or false")
        return value
    if hint is str:
        if not isinstance(value, str) or not is_printable(value):
            raise UserError(f"{name} is {_show(value)}: it must be text without control characters")
        return value
    if get_origin(hint) is types.UnionType and isinstance(value, str):
        return value
    if hint in (int, float):
        return _number(entry, value, whole=hint is int)
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    if not isinstance(value, list | tuple):
        raise UserError(f"{name} is {_show(value)}: it must be a list of whole numbers, e.g. {name}=150,150")
    if len(value) > entry.metadata["count"]:
        raise UserError(f"{name} is a list of {len(value):,} numbers: it may have {entry.metadata['count']:,}")
    return tuple(_number(entry, part, whole=True) for part in value)


def _named(entry: "dataclasses.Field[Any]", value: Any) -> str | tuple[str, ...]:
    """Return the name of a part that there is, or several where the field takes them."""
    if isinstance(value, str) and value in entry.metadata["also"]:
        return value
    kind, also = entry.metadata["part"], entry.metadata["also"]
    try:
        if _HINTS[entry.name] is str:
            return check(kind, value, also)
        names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
        if not isinstance(names, list | tuple):
            raise ValueError(f"say names, e.g. {entry.name}=first,second")
        if len(names) > entry.metadata["count"]:
            raise ValueError(f"these are {len(names):,} names: it may have {entry.metadata['count']:,}")
        return tuple(dict.fromkeys(check(kind, name) for name in names))
    except ValueError as error:
        raise UserError(f"{entry.name} is {_show(value)}: {error}") from None


_LARGEST = 2**53


def _show(value: Any) -> str:
    """A value for a message, cut short; what nests too deep or has too many digits is not shown."""
    try:
        return f"{value!r:.60}"
    except (RecursionError, ValueError):
        return "out of any sense"


def _number(entry: "dataclasses.Field[Any]", value: Any, *, whole: bool) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise UserError(f"{entry.name} is {_show(value)}: it must be a {'whole ' if whole else ''}number")
    low, high = entry.metadata["at_least"], entry.metadata["at_most"]
    low, high = -_LARGEST if low is None else low, _LARGEST if high is None else high
    # Compared before it is converted or shown: a whole number may be too large for a float.
    if not low <= value <= high:
        shown = "far too large" if isinstance(value, int) and abs(value) >= 2**63 else str(value)
        raise UserError(f"{entry.name} is {shown}: it must be from {low:,} to {high:,}")
    return value if whole else float(value)
