"""Settings mean what their sections say: on what sites agree, what a resumed run may change, and how they are named."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedmlh import parts
from fedmlh.cli.sweeps import make_methods
from fedmlh.config import SECTIONS, SETTINGS, Config, explain_settings, parse_setting, presets
from fedmlh.data.dataset import Labels
from fedmlh.errors import UserError
from fedmlh.federated.aggregate import Average
from fedmlh.federated.task import Task
from fedmlh.runs.folder import RunFolder
from fedmlh.sites.agreement import Agreement
from other_values import TOGETHER, change

ROOT = Path(__file__).parent.parent
ROUNDS = Config(num_clients=6, clients_per_round=3, num_buckets=20, hidden_sizes=(8,))
ONCE = ROUNDS.replace(training="one-round")
#: Of networks beside a linear model, which are told apart by themselves: the closed form does not depend on these.
BESIDE = {"learning_rate", "learning_rate_decay", "loss_tau"}
#: In one round these have no second value.
ONE_VALUE = {"selection", "shared_fraction"}
#: What the first config of a comparison decides for all.
SHARED = set(
    "data data_format text_features text_dim synthetic_points synthetic_features synthetic_labels partition "
    "dirichlet_alpha num_clients validation_fraction seed top_k metrics frequent_threshold propensity_a propensity_b "
    "device".split()
)
BOTH = [pytest.param(base, name, id=f"{base.training}-{name}") for base in (ROUNDS, ONCE) for name in SETTINGS]


class Nothing:
    """A metric that adds up over sites."""

    def __init__(self, ks, num_labels):
        self.ks = ks

    def add(self, labels, Y):
        """Count nothing."""

    def values(self):
        return dict.fromkeys(self.ks, 0.0)

    def sums(self):
        return {"nothing": [0]}

    def add_sums(self, sums):
        """Count nothing."""


@pytest.fixture(autouse=True)
def _other_parts():
    """Add a part of each kind that has one or none, for a test."""
    added = [("aggregation", "another mean", Average), ("metric", "another metric", Nothing)]
    for kind, name, part in added:
        parts.register(kind, name, part)
    yield
    for kind, name, _ in added:
        del parts._parts[kind, name], parts._foreign[kind, name]


def other(base: Config, name: str) -> Config:
    changed = change(base, name)
    if changed is None:
        assert base is ONCE
        assert name in ONE_VALUE
        pytest.skip("it has one value")
    return changed


def make_task(config: Config) -> Task:
    """Return a task over as many features as text becomes in one round."""
    return Task(config, config.text_dim if config.training == "one-round" else 400, 50)


def agree(config: Config) -> dict[str, object]:
    """Return what real sites agree on; who they are, and in which files they have parts, is no setting."""
    sites = tuple(f"site-{number}" for number in range(config.num_clients))
    terms = Agreement(
        "host:1", sites, config, make_task(config).num_features, Labels.numbered(50), None, None, b""
    ).terms
    return {name: value for name, value in terms.items() if name not in ("sites", "parts")}


@pytest.mark.parametrize(("base", "name"), BOTH)
def test_sites_agree_on_a_setting_where_its_section_says_so(base, name):
    changed, section = other(base, name), SETTINGS[name].section
    agreed = section.agreed in ("always", base.training)
    assert section.is_agreed(base.training) == agreed
    assert (make_task(changed).fingerprint != make_task(base).fingerprint) == agreed
    simulated = [each for each in (name, *TOGETHER.get(name, {})) if SETTINGS[each].simulation_only]
    if simulated:
        with pytest.raises(UserError, match=f"^{simulated[0]} is .*: real sites train with"):
            agree(changed)
    else:
        assert (agree(changed) != agree(base)) == agreed


@pytest.mark.parametrize(("base", "name"), BOTH)
def test_a_resumed_run_may_change_a_setting_where_its_section_says_so(base, name, tmp_path):
    changed, folder = other(base, name), RunFolder(tmp_path)
    folder.open(base)
    folder.checkpoints.mkdir()
    if SETTINGS[name].section.free or (base is ONCE and name in BESIDE):
        folder.check(changed, resume=True)
    else:
        with pytest.raises(UserError, match=rf"holds a run with {name} = .*same settings"):
            folder.check(changed, resume=True)


def test_agreements_of_before_hold():
    """Stopped runs and enrolled sites depend on these names: with others, or fewer, they would be refused."""
    assert {name for name, setting in SETTINGS.items() if setting.section.free} == set(
        "rounds patience device gpu_precision max_attempts deadline test_every_round local_baseline correct keep_sums "
        "sizes budget_mib".split()
    )
    assert sorted(make_task(ROUNDS).agreed) == sorted(
        "algorithm local_epochs batch_size weighting update_codec broadcast_codec label_map label_key num_tables "
        "num_buckets feature_map feature_dim feature_signed normalize hidden_sizes loss output_bias loss_tau optimizer "
        "learning_rate learning_rate_decay prox_mu correction shared_fraction".split()
    )
    assert sorted(make_task(ONCE).agreed) == sorted(
        "algorithm label_map label_key num_tables num_buckets text_features point_bits feature_slots "
        "validation_fraction min_site_points".split()
    )


def test_every_setting_belongs_to_one_section_and_says_what_it_is():
    assert list(SETTINGS) == list(ROUNDS.as_dict())
    assert not SECTIONS.keys() & {*SETTINGS, "algorithm", "parts"}  # a file may have both a setting and a section
    for text in (*(each.help for each in SETTINGS.values()), *(each.title for each in SECTIONS.values())):
        assert text[0].isupper()
        assert text.endswith(".")
        assert ". " not in text  # one sentence
    shown = explain_settings()
    for section in SECTIONS.values():
        assert f"[{section.name}] {section.title}\n" in shown
    assert all(f"\n  {name} = " in shown for name in SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_methods_of_a_comparison_share_data_measures_and_partition(name, tmp_path):
    for file, config in (("first", ROUNDS), ("second", other(ROUNDS, name))):
        (tmp_path / f"{file}.toml").write_text(config.to_toml())
    files = [str(tmp_path / f"{file}.toml") for file in ("first", "second")]
    first, second = make_methods(files, {}, lambda file, more: Config.load(file).replace(**more))
    assert (getattr(first.config, name) == getattr(second.config, name)) == (name in SHARED)


@pytest.mark.parametrize("name", SETTINGS)
def test_all_names_of_a_setting_mean_the_same(name):
    changed = other(ROUNDS, name)
    value, section = getattr(changed, name), SETTINGS[name].section.name
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
    short = name.removeprefix(f"{section}_")
    said = (name, name.replace("_", "-"), f"{section}.{name}", f"{section}.{short}")
    assert len({parse_setting(f"{each}={text}") for each in said if not isinstance(value, tuple)}) <= 1
    together = TOGETHER.get(name, {})
    for each in said:
        key, parsed = parse_setting(f"{each}={text}")
        assert key == name
        assert ROUNDS.replace(**{key: parsed}, **together) == changed
    for each in (f"{section}.{name}", f"{section}.{short}"):
        assert ROUNDS.replace(**{each: value}, **together) == changed
    for key in (name, short):
        inner = {section: {key: value, **together}}
        assert Config.from_mapping(inner, "file") == Config(**{name: value}, **together)


@pytest.mark.parametrize("name", SETTINGS)
def test_configs_survive_their_own_text_in_sections_and_without(name):
    changed = other(ROUNDS, name)
    text = changed.to_toml()
    assert Config.from_toml(text, "file") == changed
    assert {name for name in tomllib.loads(text) if name != "parts"} == SECTIONS.keys()
    flat = "\n".join(line for line in text.splitlines() if not line.startswith("[") or line == "[[parts]]")
    assert {name for name in tomllib.loads(flat) if name != "parts"} == SETTINGS.keys()
    assert Config.from_toml(flat, "file") == changed


def test_files_of_before_load():
    folders = (ROOT / "tests" / "golden" / "folders", ROOT / "experiments" / "results")
    files = [path for folder in folders for path in folder.rglob("*.toml")]
    assert len(files) > 10
    for path in files:
        values, config = tomllib.loads(path.read_text()), Config.load(path)
        assert "algorithm" in values
        assert config.method == (
            values["training"] if values.get("training", "rounds") != "rounds" else values["algorithm"]
        )
        for name, value in values.items():
            if name in SETTINGS and not (values["algorithm"] == "fedavg" and name in ("label_map", "num_tables")):
                found = getattr(config, name)
                assert (list(found) if isinstance(found, tuple) else found) == value, (path, name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "server_momentum = 0.5\n[server]\nmomentum = 0.5",
            "server_momentum is set twice, as server_momentum and as ser",
        ),
        (
            "[server]\nmomentum = 0.5\nserver_momentum = 0.5",
            "server_momentum is set twice, as server.momentum and as ser",
        ),
        ("[server]\nmomentun = 0.5", r"there is no setting 'server.momentun'; did you mean 'server.momentum'\?"),
        ("[server]\nrounds = 5", "there is no setting 'server.rounds'"),
        ("[sever]\nmomentum = 0.5", r"there is no section 'sever'; did you mean 'server'\?"),
        ("server = 5", "there is no setting 'server': it is a section, so name one of its settings"),
        ("momentum = 0.5", r"there is no setting 'momentum'; did you mean 'server.momentum'\?"),
        ("algoritm = 'fedavg'", r"there is no setting 'algoritm'; did you mean 'algorithm'\?"),
        ("[rounds]\nx = 1", "rounds is {'x': 1}: it must be a whole number"),
        ("[server]\nmomentum = 2", "server_momentum is 2: it must be from 0 to 1"),
        ("max_update_rms = 5.0", "max_update_rms is no longer a setting"),
    ],
)
def test_a_name_that_means_nothing_or_a_second_value_is_refused(text, sentence):
    with pytest.raises(UserError, match=f"^file: {sentence}"):
        Config.from_toml(text, "file")


@pytest.mark.parametrize("name", presets())
def test_algorithm_is_another_word_for_labels_and_tables(name):
    preset = Config.load(name).replace(training="rounds")
    assert preset.method == "fedmlh"
    assert preset.replace(algorithm="fedmlh") == preset
    fedavg = preset.replace(algorithm="fedavg")
    assert fedavg.method == "fedavg"
    assert fedavg.num_feature_maps <= 1
    assert fedavg == preset.replace(label_map="identity", num_tables=1)
    assert fedavg == fedavg.replace(algorithm="fedavg")
    assert preset.replace(label_map="identity", num_tables=3).method == "fedmlh"  # an ensemble
    with pytest.raises(UserError, match=r"but this set-up is FedAvg, .*: set label_map and num_tables instead"):
        fedavg.replace(algorithm="fedmlh")
    assert fedavg.replace(algorithm="fedmlh", label_map="murmur3", num_tables=8) == preset.replace(num_tables=8)


def test_algorithm_in_files_and_mappings():
    for said in ({"algorithm": "fedavg"}, {"algorithm": "fedavg", "label_map": "murmur3", "num_tables": 4}):
        assert Config.from_mapping(said, "file") == Config(label_map="identity", num_tables=1)
    assert Config.from_toml('algorithm = "fedavg"\n[task]\nnum_tables = 4', "file").method == "fedavg"
    assert Config.from_toml('algorithm = "one-round"', "file") == Config(training="one-round")
    # As the config of a run of before may be: a file says what there is, and not what should become of it.
    assert Config.from_mapping({"algorithm": "fedmlh", "label_map": "identity", "num_tables": 1}, "file").is_fedavg
    with pytest.raises(UserError, match=r"^file: algorithm is 'fedprox': choose one of fedmlh, fedavg"):
        Config.from_mapping({"algorithm": "fedprox"}, "file")


def test_with_sizes_from_the_data_fedavg_stays_fedavg_and_an_ensemble_an_ensemble():
    from fedmlh.sizing import Shape, choose_sizes, list_open

    preset, shape = Config.load("recommended").replace(training="rounds"), Shape(3000, 500, 5000, 4.0)
    fedavg, ensemble = preset.replace(algorithm="fedavg"), preset.replace(label_map="identity")
    assert {"label_map", "num_tables"} <= list_open(ensemble)
    assert not {"label_map", "num_tables"} & list_open(fedavg)
    assert choose_sizes(fedavg, shape)[0].method == "fedavg"
    sized, _ = choose_sizes(ensemble, shape)
    assert (sized.method, sized.label_map) == ("fedmlh", "identity")
    assert sized.num_tables > 1


@pytest.mark.parametrize(
    ("name", "given", "plain"),
    [
        ("rounds", np.int64(3), 3),
        ("rounds", np.uint8(3), 3),
        ("learning_rate", np.float32(0.25), 0.25),
        ("learning_rate", np.int32(2), 2.0),
        ("normalize", np.bool_(True), True),
        ("hidden_sizes", np.array([64]), (64,)),
        ("hidden_sizes", np.int64(64), (64,)),
        ("hidden_sizes", [np.int64(64), 32], (64, 32)),
        ("top_k", np.array([5, 1]), (1, 5)),
        ("loss", np.str_("softmax"), "softmax"),
    ],
)
def test_values_of_numpy_are_stored_as_plain_ones(name, given, plain):
    config = Config(num_clients=10).replace(**{name: given})
    found = getattr(config, name)
    assert found == plain
    assert {type(part) for part in (found if isinstance(found, tuple) else (found,))} == {
        type(part) for part in (plain if isinstance(plain, tuple) else (plain,))
    }
    assert Config.from_toml(config.to_toml(), "here") == config


@pytest.mark.parametrize("given", [np.float64(3), np.bool_(True), np.array([1, 2]), np.array([[1]])])
def test_values_of_numpy_are_refused_as_plain_ones_are(given):
    with pytest.raises(UserError, match=r"rounds is .*: it must be a whole number"):
        Config(rounds=given)
