"""The scikit-learn door: its own checks, its metadata routing, and the bits of `fedmlh run`."""

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import make_scorer
from sklearn.model_selection import cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedmlh
from command_line import call
from fedmlh import Dataset, FedAvgClassifier, FedMLHClassifier
from fedmlh.serving.predictor import Model

ONCE = {"training": "one-round", "correct": 0}
SMALL = {"rounds": 3, "budget_mib": 0.05, "num_clients": 2, "clients_per_round": 2, "partition": "iid"}
WORDS = ["olive", "oil", "fish", "quota", "milk", "price", "wine", "tax"]
RNG = np.random.default_rng(3)
CHOSEN = [RNG.choice(8, RNG.integers(1, 4), replace=False) for _ in range(240)]
TEXTS = [" ".join([*(WORDS[n] for n in own), f"filler{RNG.integers(9)}"]) for own in CHOSEN]
LISTS = [[WORDS[n].upper() for n in own] for own in CHOSEN]
MATRIX = np.array([[n in own for n in range(8)] for own in CHOSEN], int)
X = TfidfVectorizer().fit_transform(TEXTS)
EURLEX = Path(__file__).parents[2] / "shared" / "data" / "EurLex-EuroVoc-titles-4K"

#: scikit-learn's checks that cannot hold, and why.
EXPECTED = {
    "check_classifiers_multilabel_representation_invariance": "a list of lists holds labels, not rows of 0 and 1",
}
#: Networks multiply in single precision.
OF_NETWORKS = {
    **EXPECTED,
    "check_methods_subset_invariance": "the seventh digit of a score depends on how many points are asked at once",
}


@parametrize_with_checks([FedMLHClassifier()], expected_failed_checks=lambda estimator: EXPECTED)
def test_the_classifier_is_one_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([FedAvgClassifier(settings={"rounds": 20})], expected_failed_checks=lambda _: OF_NETWORKS)
def test_fedavg_is_one_of_scikit_learn(estimator, check):
    check(estimator)


def test_the_model_is_that_of_a_run(tmp_path):
    """With the same settings on the same points, to the bit."""
    data = Dataset.from_arrays(X, MATRIX, test=(X[:1], MATRIX[:1]))
    config = fedmlh.Config.load("recommended").replace(**SMALL, training="rounds", seed=5)
    run = fedmlh.run(config, data, tmp_path / "run")
    fitted = FedMLHClassifier(settings={**SMALL, "training": "rounds"}, random_state=5).fit(X, MATRIX)
    fitted.model_.save(tmp_path / "saved")
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (run.folder / "model", tmp_path / "saved")]
    assert weights[0] == weights[1]


@pytest.mark.skipif(not EURLEX.is_dir(), reason="the EurLex titles are not beside this checkout")
@pytest.mark.parametrize(("classifier", "algorithm"), [(FedMLHClassifier, "fedmlh"), (FedAvgClassifier, "fedavg")])
def test_the_model_of_real_titles_is_that_of_the_command(classifier, algorithm, tmp_path):
    """To the bit, and as good on the test part, labels that only the test part has left out."""
    parts = {}
    for part in ("trn", "tst"):
        with gzip.open(EURLEX / f"{part}.jsonl.gz", "rt") as file:
            parts[part] = [json.loads(line) for line in file]
    (tmp_path / "data").mkdir()
    for part, rows in parts.items():
        (tmp_path / "data" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = sorted({label for row in parts["trn"] for label in row["labels"]})
    (tmp_path / "data" / "labels.txt").write_text("".join(f"{label}\t{label}\n" for label in known))
    settings = {"training": "rounds", "rounds": 2, "budget_mib": 2, "local_epochs": 1}
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    run = tmp_path / "run"
    options = ("--data", tmp_path / "data", "--algorithm", algorithm, "--seed", 4, "--out", run)
    assert call("run", "recommended", *options, *flags) == 0
    titles, labels = ([row[what] for row in parts["trn"]] for what in ("text", "labels"))
    fitted = classifier(settings=settings, random_state=4).fit(titles, labels)
    fitted.model_.save(tmp_path / "saved")
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (run / "model", tmp_path / "saved")]
    assert weights[0] == weights[1]
    measured = json.loads((run / "summary.json").read_text())["precision"]["1"]
    score = fitted.score(*([row[what] for row in parts["tst"]] for what in ("text", "labels")))
    assert score == pytest.approx(measured, abs=1e-9)
    assert score > 0.1  # of 4,000 labels


@pytest.mark.parametrize("labels", [MATRIX, sparse.csr_matrix(MATRIX), LISTS], ids=["matrix", "sparse", "lists"])
def test_what_is_predicted_has_the_form_of_what_was_learned(labels):
    model = FedMLHClassifier(settings=ONCE).fit(X, labels)
    found = model.predict(X[:50])
    if isinstance(labels, list):
        assert all(set(own) <= set(map(str.upper, WORDS)) for own in found)
        right = [set(a) == set(b) for a, b in zip(found, labels, strict=False)]
    else:
        assert type(found) is type(labels)
        dense = [part.toarray() if sparse.issparse(part) else part for part in (found, labels[:50])]
        right = (dense[0] == dense[1]).all(axis=1)
    assert np.mean(right) > 0.8


def test_probabilities_follow_scores_and_mean_something():
    model = FedMLHClassifier(settings=ONCE).fit(X[:180], MATRIX[:180])
    chances, tops = model.predict_proba(X[180:]), model.predict_top(X[180:], 8)
    assert chances.shape == (60, 8)
    assert ((chances >= 0) & (chances <= 1)).all()
    for row, top in zip(chances, tops, strict=True):
        assert [entry["score"] for entry in top] == sorted((entry["score"] for entry in top), reverse=True)
        np.testing.assert_allclose([entry["probability"] for entry in top], [row[entry["label"]] for entry in top])
    # Among labels of about one probability, about that share is right.
    sure, true = chances > 0.8, MATRIX[180:] == 1
    assert sure.sum() > 30
    assert true[sure].mean() > 0.75
    assert true[chances < 0.2].mean() < 0.25
    for labels in (LISTS, MATRIX):
        json.dumps(FedMLHClassifier(settings=ONCE).fit(X, labels).predict_top(X[:2], 3))


def test_texts_go_in_as_they_are():
    model = FedMLHClassifier(settings=ONCE).fit(TEXTS, LISTS)
    assert model.predict_top(["price of olive oil"], 3)[0][0]["label"] in ("PRICE", "OLIVE", "OIL")
    assert model.score(TEXTS, LISTS) > 0.9
    for rows in (X, X.toarray(), X.toarray().tolist()):
        with pytest.raises(ValueError, match="this model was fitted on texts: give a list of texts"):
            model.predict(rows)


def test_sites_become_clients_by_metadata_routing():
    sites = np.array(["north", "south", "west"])[np.arange(240) % 3]
    with sklearn.config_context(enable_metadata_routing=True):
        model = FedMLHClassifier(settings={**SMALL, "num_clients": 0, "clients_per_round": 0, "partition": "auto"})
        pipeline = make_pipeline(TfidfVectorizer(), model.set_fit_request(sites=True))
        scores = cross_val_score(pipeline, TEXTS, MATRIX, cv=2, params={"sites": sites}, error_score="raise")
        found = cross_validate(
            pipeline, TEXTS, MATRIX, cv=2, params={"sites": sites}, return_estimator=True, error_score="raise"
        )
    assert scores.mean() > 0.5
    for one in found["estimator"]:
        # One client per site, and all of them in every round.
        assert one[-1].run_.summary["clients"]
        assert {row["site"] for row in one[-1].run_.summary["clients"]} == {"north", "south", "west"}


def test_a_fitted_classifier_survives_pickling_and_a_clone_is_a_new_one():
    model = FedMLHClassifier(settings=ONCE).fit(X, MATRIX)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 (made here)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    fresh = clone(model).set_params(random_state=7)
    assert not hasattr(fresh, "model_")
    assert fresh.settings == model.settings


def test_too_many_probabilities_name_the_way_out(monkeypatch):
    monkeypatch.setattr("fedmlh.estimators._MOST_PROBABILITIES", 100)
    model = FedMLHClassifier(settings=ONCE).fit(X, MATRIX)
    with pytest.raises(ValueError, match="predict_top"):
        model.predict_proba(X)


def test_mistakes_are_value_errors_in_the_words_of_python():
    for settings, sentence in (({"roundz": 3}, "did you mean 'rounds'"), ({"rounds": 0}, "rounds is 0")):
        with pytest.raises(ValueError, match=sentence):
            FedMLHClassifier(settings=settings).fit(X, MATRIX)
    with pytest.raises(ValueError, match="240 points but labels for 3"):
        FedMLHClassifier().fit(X, LISTS[:3])


def test_fedavg_trains_one_network_with_an_output_per_label():
    model = FedAvgClassifier(settings=SMALL).fit(X, MATRIX)
    task = model.model_.bundle.task
    assert (task.config.method, task.num_tables, task.num_outputs) == ("fedavg", 1, 8)
    assert make_scorer(lambda y, p: (y == p).mean())(model, X, MATRIX) > 0.7


def test_probabilities_are_those_of_the_model_that_the_run_wrote(tmp_path):
    model = FedMLHClassifier(settings={**SMALL, **ONCE}, out=str(tmp_path / "run")).fit(X, MATRIX)
    expected = [[label["probability"] for label in labels] for labels in Model.load(tmp_path / "run").predict(X, 3)]
    assert [[label["probability"] for label in labels] for labels in model.predict_top(X, 3)] == expected
    assert 0.5 < np.max(expected) <= 1
