"""The config of a run: one frozen record of checked settings, filled from presets and TOML files."""

import contextlib
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedmlh.config.codecs import list_families, parse_codec
from fedmlh.config.names import NAMES, flatten
from fedmlh.config.settings import SETTINGS, Settings
from fedmlh.config.text import write_toml
from fedmlh.config.values import check_value, show
from fedmlh.errors import UserError
from fedmlh.parts import find, find_foreign
from fedmlh.untrusted import MOST_TOML, read_text

#: The most that log N − 1 can be, for 2^62 training points.
_MAX_LOG_POINTS = 42


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A complete, re-runnable description of a run. Names follow the paper."""

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, check_value(setting, getattr(self, name)))
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
            raise UserError(
                f"quorum is {self.quorum}, more than the {self.clients_per_round} clients that a round samples"
            )
        if self.selection == "validation" and self.validation_fraction == 0 and self.training == "rounds":
            raise UserError("selection 'validation' needs a validation_fraction above 0")
        if self.local_baseline and self.selection == "paper":
            raise UserError(
                "local_baseline needs held-out points, and selection 'paper' holds none out: drop one of them"
            )
        given = self.sizes == "given" and self.training == "rounds"  # sizes of networks
        if self.learning_rate == 0 and (given or self.optimizer == "sgd"):
            raise UserError(
                "learning_rate is 0, which means one that suits the sizes: that needs sizes 'auto' and optimizer "
                "'adam', so set a learning_rate above 0"
            )
        if self.learning_rate_decay < 1e-3 and (given or self.learning_rate_decay != 0):
            raise UserError(
                f"learning_rate_decay is {self.learning_rate_decay:g}: it must be at least 0.001, or, "
                f"with sizes 'auto' only, 0, which means one that suits the data"
            )
        if self.loss_tau < 0 and (given or self.loss_tau != -1):
            raise UserError(
                f"loss_tau is {self.loss_tau:g}: it must be at least 0, or, with sizes 'auto' only, -1, which "
                f"means one that suits the data"
            )
        if self.budget_mib and given:
            raise UserError("budget_mib has no effect on given sizes: set sizes=auto as well")
        if self.label_key == "name":
            self._check_keyed()
        for name in ("update_codec", "broadcast_codec"):
            try:
                family = parse_codec(getattr(self, name)).family
            except ValueError as error:
                raise UserError(f"{name} is {show(getattr(self, name))}: {error}") from None
        if family.leaves_more:
            fit = list_families(lambda family: not family.leaves_more)
            raise UserError(
                f"broadcast_codec is '{self.broadcast_codec}', which leaves out more than it sends, so that "
                f"what clients hold would drift away from the model: use it for updates only, and {fit} here"
            )
        if self.server_tau == 0 and self.server_optimizer not in ("average", "momentum"):
            raise UserError(
                f"server_optimizer '{self.server_optimizer}' divides by a number that may be 0: set server_tau above 0"
            )
        find("premises", "drift")(self)
        if self.training == "one-round":
            self._check_one_round()
        if not self.top_k:
            raise UserError("top_k is empty: name at least one k, e.g. top_k=1,3,5")
        object.__setattr__(self, "top_k", tuple(sorted(set(self.top_k))))
        # Metrics sum such weights, k of them per point, as 64-bit integers.
        heaviest = 1 + _MAX_LOG_POINTS * ((self.propensity_b + 1) / self.propensity_b) ** self.propensity_a
        if heaviest * max(self.top_k) >= 2**22:
            raise UserError(
                f"propensity_a {self.propensity_a:g} with propensity_b {self.propensity_b:g} gives a label that no "
                f"point has {heaviest:.3g} times the weight of others: use a smaller propensity_a or a larger "
                f"propensity_b"
            )
        for name, tables in (("label_seeds", self.num_tables), ("feature_seeds", self.num_feature_maps)):
            seeds = getattr(self, name)
            if isinstance(seeds, str):
                if seeds not in ("drawn", "paper"):
                    raise UserError(f"{name} is {show(seeds)}: say drawn, paper, or a list of numbers")
            elif len(seeds) < tables or any(not 0 <= seed < 2**32 for seed in seeds):
                raise UserError(f"{name} needs at least {tables} numbers from 0 to 2^32 - 1, got {show(list(seeds))}")

    def _check_keyed(self) -> None:
        """Refuse label maps that need one list of labels: only a hash of the key works without one."""
        if self.label_map == "balanced":
            raise UserError(
                "label_map 'balanced' spreads one list of labels over the buckets, so label_key must be 'id'"
            )
        if self.label_map == "identity":
            what = "FedAvg" if self.is_fedavg else "label_map 'identity'"
            raise UserError(f"{what} has an output for each label of one list, so label_key must be 'id'")

    def _check_one_round(self) -> None:
        if -1 < self.count_power < 0:
            raise UserError(
                f"count_power is {self.count_power:g}: it must be from 0 to 1, or -1, which means one that is chosen"
            )
        if self.selection == "paper":
            raise UserError("training 'one-round' chooses λ on validation: use selection 'validation'")
        if self.correct and self.validation_fraction == 0:
            raise UserError(
                "correct needs validation points, which show whether it helps: set a validation_fraction above 0"
            )
        if self.shared_fraction > 0:
            raise UserError("training 'one-round' shares no points: set shared_fraction=0")

    @property
    def method(self) -> str:
        """Return what is trained, in one word: fedmlh, fedavg or one-round; auto if the data decides."""
        if self.training != "rounds":
            return self.training
        return "fedavg" if self.is_fedavg else "fedmlh"

    @property
    def is_fedavg(self) -> bool:
        """Say whether there is one network with one output per label; trained in rounds, this is FedAvg."""
        return self.label_map == "identity" and self.num_tables == 1

    @property
    def most_rounds(self) -> int:
        """Return how many rounds a run has at most."""
        return self.rounds if self.training == "rounds" else 1 + self.correct

    @property
    def num_feature_maps(self) -> int:
        """Return how many feature maps the tables use: none, one for all, or R."""
        if self.training == "one-round":
            return 1  # of the features that share slots
        if self.feature_map == "none":
            return 0
        return self.num_tables if self.feature_map == "per-table" else 1

    def replace(self, **changes: Any) -> "Config":
        """Return the same set-up with some settings changed; unknown names are refused."""
        changed = Config.from_mapping({**self.as_dict(), **flatten(changes, "settings")}, "settings")
        if changes.get("algorithm") == "fedmlh" and changed.is_fedavg and changed.training != "one-round":
            raise UserError(
                "settings: algorithm 'fedmlh' hashes labels into tables, but this set-up is FedAvg, which has none: "
                "set label_map and num_tables instead, e.g. label_map=murmur3 and num_tables=4"
            )
        return changed

    def as_dict(self) -> dict[str, Any]:
        """Return the values of all settings by their names."""
        return {name: getattr(self, name) for name in SETTINGS}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str) -> "Config":
        """Return a config from names and values; errors name `source` as the place where they stood."""
        values = flatten(values, source)
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None

    @classmethod
    def load(cls, where: str | Path) -> "Config":
        """Return the preset of that name, or the config in that TOML file."""
        if str(where) in presets():
            text = (resources.files(__package__) / "presets" / f"{where}.toml").read_text("utf-8")
        else:
            path = Path(where)
            if not path.is_file():
                near = difflib.get_close_matches(str(where)[:80], presets(), n=1, cutoff=0.6)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise UserError(f"'{where}' is neither a preset ({', '.join(presets())}) nor a TOML file{hint}")
            try:
                text = read_text(path.resolve(), MOST_TOML)
            except OSError as error:
                raise UserError(f"{where} cannot be read: {error.strerror}") from None
        return cls.from_toml(text, str(where))

    @classmethod
    def from_toml(cls, text: str, source: str) -> "Config":
        """Return the config that a TOML text describes; settings that it does not name have their defaults."""
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
        """Return the parts that are not fedmlh's own: setting, name, origin and hash of each."""
        found = []
        for setting, kind in _KINDS.items():
            value = getattr(self, setting)
            for name in value if isinstance(value, tuple) else [value]:
                part = find_foreign(kind, name)
                if part is not None:
                    found.append({"setting": setting, "name": name, "origin": part.origin, "sha256": part.sha256})
        return found

    def to_toml(self) -> str:
        """Return every setting with its explanation; loading the text gives an equal config."""
        return write_toml(self.as_dict(), self.foreign)


#: The kind of part that each setting names, if it names one.
_KINDS = {name: setting.part for name, setting in SETTINGS.items() if setting.part}


def presets() -> list[str]:
    """Return the names of the configs that fedmlh brings along."""
    folder = resources.files(__package__) / "presets"
    return sorted(entry.name[: -len(".toml")] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def parse_setting(text: str) -> tuple[str, Any]:
    """Return name and value of a text `name=value`; the value as TOML reads it, else as plain text."""
    name, equals, raw = text.partition("=")
    if not equals or not name:
        raise UserError(f"'{text:.80}' sets nothing: write name=value, e.g. num_tables=8 (--set num_tables=8)")
    raw = raw.strip()
    try:
        (value,) = tomllib.loads(f"value = {raw}").values()
    except (ValueError, RecursionError):
        value = raw
    if isinstance(value, str) and "," in value:
        with contextlib.suppress(ValueError):
            value = [int(part) for part in value.split(",")]
    name = name.strip().replace("-", "_")
    return NAMES.get(name, name), value  # an unknown name is refused with the others


def _check_parts(recorded: Any, source: str) -> None:
    """Refuse a config whose own parts are not loaded, or have changed since it was written."""
    keys = ("setting", "name", "origin", "sha256")
    for part in recorded if isinstance(recorded, list) else [None]:
        texts = [part.get(key) for key in keys] if isinstance(part, dict) else []
        if not texts or not all(isinstance(text, str) for text in texts) or texts[0] not in _KINDS:
            raise UserError(f"{source}: the table [[parts]] is not one that fedmlh has written")
        setting, name, origin, sha256 = (f"{text:.80}" for text in texts)
        kind = _KINDS[setting]
        found = find_foreign(kind, name)
        if found is None:
            raise UserError(
                f"{source}: the {kind} '{name}' comes from {origin}: load that file first (fedmlh.load_parts, --parts)"
            )
        if found.sha256 != sha256:
            raise UserError(
                f"{source}: the {kind} '{name}' of {found.origin} is not the one of {origin} that was used before "
                f"(SHA-256 {found.sha256[:12]}…, not {sha256[:12]}…): load the file of that time "
                f"(fedmlh.load_parts, --parts)"
            )
