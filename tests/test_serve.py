"""Models over HTTP: what they answer is what the predictor says, and every answer is as the description has it."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_models import BASE, D, P, calibrate, make_bundle
from fedmlh.config import Config
from fedmlh.data.text import TextFeatures
from fedmlh.errors import UserError
from fedmlh.serving.predictor import Model
from fedmlh.web import ask
from fedmlh.web.annif import find_score
from fedmlh.web.problem import Problem
from fedmlh.web.project import Question, answer_all, make_rows
from fedmlh.web.service import name_projects
from served import DESCRIPTION, Client, serve

WORDS = "olive oil fish quotas prices trees imports of the sea market".split()
texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
HASHED = TextFeatures.hashing(50)


def make_text_model(seed: int = 5, config: Config = BASE, *, calibrated: bool = True) -> Model:
    bundle = make_bundle(config, seed, d=50, text=HASHED, beside=config.training == "one-round")
    return Model(calibrate(bundle) if calibrated else bundle)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save a model of texts with probabilities, one without, and one of features."""
    place = tmp_path_factory.mktemp("models")
    one_round = BASE.replace(training="one-round", correct=0)
    models = {
        "texts": make_text_model(),
        "raw": make_text_model(6, calibrated=False),
        "linear": make_text_model(7, one_round, calibrated=False),
        "numbers": Model(calibrate(make_bundle(BASE, 3))),
    }
    for name, model in models.items():
        model.save(place / name)
    return {name: place / name for name in models}


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]):
    with serve(folders) as client:
        yield client


def assert_alike(found: list, expected: list) -> None:
    """Compare labels and reasons; numbers up to rounding, which depends on how many points are asked together."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_alike(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_alike(mine, theirs)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    else:
        assert found == expected


# Our own interface.


def test_projects_are_described(client: Client, folders: dict[str, Path]) -> None:
    projects = {project["id"]: project for project in client.get("/api/projects").json["projects"]}
    assert list(projects) == list(folders)
    for name, project in projects.items():
        assert client.get(f"/api/projects/{name}").json == project
        assert (project["labels"], project["points"]) == (P, "features" if name == "numbers" else "texts")
    assert [project["has_probabilities"] for project in projects.values()] == [True, False, False, True]


@settings(deadline=None, max_examples=30)
@given(st.lists(texts, max_size=5), st.integers(1, P + 5), st.sampled_from([0.0, 0.3, 1.0]))
def test_texts_are_answered_as_by_the_predictor(client, folders, asked, top, threshold) -> None:
    reply = client.predict("texts", texts=asked, top=top, threshold=threshold)
    assert_alike(reply.json["results"], Model.load(folders["texts"]).predict(asked, top, threshold))


def test_features_are_answered_as_by_the_predictor(client, folders) -> None:
    rng = np.random.default_rng(1)
    dense = rng.normal(size=(7, D)) * (rng.random((7, D)) < 0.2)
    points = [{"columns": np.flatnonzero(row).tolist(), "values": row[row != 0].tolist()} for row in dense]
    reply = client.predict("numbers", features=points, top=4)
    assert_alike(reply.json["results"], Model.load(folders["numbers"]).predict(dense, 4))


def test_reasons_are_those_of_the_predictor(client, folders) -> None:
    asked = ["olive oil prices", "fish of the sea"]
    for name in ("texts", "linear"):
        reply = client.predict(name, texts=asked, top=3, why=True)
        assert_alike(reply.json["results"], [list(labels) for labels in Model.load(folders[name]).explain(asked, 3)])


def test_labels_are_listed(client, folders) -> None:
    labels = Model.load(folders["texts"]).bundle.labels
    found = []
    for begin in range(0, P + 8, 8):
        reply = client.get(f"/api/projects/texts/labels?offset={begin}&limit=8").json
        assert reply["size"] == P
        found += reply["labels"]
    assert [(label["key"], label["name"]) for label in found] == list(zip(labels.keys, labels.names, strict=True))


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_questions_that_wait_are_answered_as_if_alone(data) -> None:
    """Also beside questions that are wrong."""
    model = make_text_model()
    of_texts = st.builds(Question, st.lists(texts, max_size=4), st.integers(1, P + 3), st.sampled_from([0.0, 0.4]))
    point = st.lists(st.integers(0, 49), max_size=4).map(lambda columns: (columns, [1.0] * len(columns)))
    of_numbers = st.builds(Question, st.lists(point, max_size=3), st.integers(1, P))
    explained = st.builds(Question, st.lists(texts, max_size=2), st.integers(1, 4), st.just(0.0), st.just(True))
    wrong = st.sampled_from(
        [Question([([50], [1.0])], 3), Question(["sea " * 3 + " ".join(map(str, range(10, 700)))], 3, 0, True)]
    )
    questions = data.draw(st.lists(of_texts | of_numbers | explained | wrong, max_size=6))
    for question, answer in zip(questions, answer_all(model, questions), strict=True):
        (alone,) = answer_all(model, [question])
        if isinstance(alone, Exception):
            assert isinstance(answer, UserError)
            assert str(answer) == str(alone)
        else:
            assert_alike(answer.labels, alone.labels)
            assert answer.model is model


def test_requests_that_wait_are_answered_together(client: Client) -> None:
    """A hundred clients at once: each gets its own answer, in fewer passes over the model than there are requests."""
    asked = [" ".join(WORDS[n % 7 : n % 7 + 1 + n % 4]) for n in range(100)]
    expected = [client.predict("texts", texts=[text]).json for text in asked]

    def count(name: str) -> int:
        lines = client.get("/metrics").body.decode().splitlines()
        return int(next(line for line in lines if line.startswith(f'{name}{{project="texts"')).split()[-1])

    points, passes = count("fedmlh_points_total"), count("fedmlh_batches_total")

    def ask_apart(text: str) -> object:
        return client.apart.predict("texts", texts=[text]).json

    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(ask_apart, asked))
    for mine, theirs in zip(found, expected, strict=True):
        assert_alike(mine["results"], theirs["results"])
    assert count("fedmlh_points_total") == points + 100
    assert passes < count("fedmlh_batches_total") <= passes + 100


WRONG = {
    "no JSON": b"{",
    "deep JSON": b'{"texts":' + b"[" * 100_000,
    "many brackets": b'{"texts":[' + b"[]," * 200_001 + b"[]]}",
    "half a character": b'{"texts":["\\ud800"]}',
    "other bytes": b'{"texts":["\xff"]}',
    "an endless number": b'{"top":' + b"9" * 5000 + b"}",
    "no number": b'{"texts":[],"threshold":NaN}',
    "a list": [],
    "nothing": {},
    "both": {"texts": [], "features": []},
    "an unknown field": {"texts": [], "limit": 3},
    "a text alone": {"texts": "olive"},
    "a number as text": {"texts": [3]},
    "too many": {"texts": ["olive"] * 33},
    "no labels": {"texts": ["olive"], "top": 0},
    "too many labels": {"texts": ["olive"], "top": 1001},
    "half a label": {"texts": ["olive"], "top": 1.5},
    "true labels": {"texts": ["olive"], "top": True},
    "a large threshold": {"texts": ["olive"], "threshold": 2},
    "a text as why": {"texts": ["olive"], "why": "yes"},
    "too many explained": {"texts": ["olive"], "why": True, "top": 21},
    "too long to explain": {"texts": [" ".join(f"word{n}" for n in range(501))], "why": True},
    "too many words to explain": {"texts": ["sea fish " * 900, "fish sea " * 200], "why": True},
    "too large words to explain": {"texts": [" ".join(f"{n}{'o' * 2000}" for n in range(21))], "why": True},
    "features as a number": {"features": [3]},
    "features without values": {"features": [{"columns": [1]}]},
    "fewer values": {"features": [{"columns": [1], "values": []}]},
    "a negative column": {"features": [{"columns": [-1], "values": [1]}]},
    "a column beyond": {"features": [{"columns": [50], "values": [1]}]},
    "a large column": {"features": [{"columns": [2**40], "values": [1]}]},
    "a large value": {"features": [{"columns": [1], "values": [1e39]}]},
    "a text as value": {"features": [{"columns": [1], "values": ["1"]}]},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_question_gets_a_sentence(client: Client, what: str) -> None:
    said = WRONG[what]
    body = said if isinstance(said, bytes) else json.dumps(said)
    reply = client.ask("POST", "/api/projects/texts/predict", body, {"Content-Type": "application/json"})
    assert reply.status == (413 if what == "many brackets" else 400)
    assert 10 < len(reply.detail) < 300
    assert "\n" not in reply.detail


def test_scores_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    Model(make_bundle(BASE.replace(normalize=False), 3)).save(tmp_path / "numbers")
    with serve({"numbers": tmp_path / "numbers"}) as client:
        large = {"columns": list(range(D)), "values": [3e38] * D}
        assert client.predict("numbers", features=[large]).status == 400
        assert client.predict("numbers", features=[large], why=True).status == 400
        pair = {"columns": [0, 0, 1], "values": [3e38, -3e38, 1]}
        assert client.predict("numbers", features=[pair], why=True).status == 200
        assert client.predict("numbers", features=[{"columns": [1], "values": [1]}]).status == 200


def test_a_threshold_needs_probabilities(client: Client) -> None:
    assert "no probabilities" in client.predict("raw", texts=["olive"], threshold=0.1).detail


# Annif's interface.


def test_annif_is_told_of_projects_and_vocabularies(client: Client, folders) -> None:
    assert set(client.get("/v1/").json) == {"title", "version"}
    projects = client.get("/v1/projects").json["projects"]
    assert [project["project_id"] for project in projects] == list(folders)
    for project in projects:
        assert client.get(f"/v1/projects/{project['project_id']}").json == project
        assert ("no probabilities" in project["name"]) == (project["project_id"] in ("raw", "linear"))
    assert client.get("/v1/vocabs").json["vocabs"] == [project["vocab"] for project in projects]


@pytest.mark.parametrize("name", ["texts", "raw", "linear"])
def test_suggestions_are_the_best_labels(client: Client, folders, name: str) -> None:
    model, text = Model.load(folders[name]), "olive oil prices"
    (expected,) = model.predict([text], 7)
    found = client.suggest(name, text=text, limit=7).json["results"]
    assert [(label["uri"], label["label"]) for label in found] == [(label["key"], label["name"]) for label in expected]
    scores = [label["score"] for label in found]
    assert all(0 < score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)
    if name == "texts":
        assert scores == pytest.approx([label["probability"] for label in expected], rel=1e-4)
    some = client.suggest(name, text=text, limit=7, threshold=scores[3]).json["results"]
    assert some == [label for label in found if label["score"] >= scores[3]]


def test_batches_are_suggested_as_single_texts(client: Client) -> None:
    documents = [{"text": "olive oil", "document_id": "a"}, {"text": "fish"}, {"text": "", "document_id": None}]
    found = client.post("/v1/projects/texts/suggest-batch?limit=3&threshold=0.2", {"documents": documents}).json
    assert [some["document_id"] for some in found] == ["a", None, None]
    for document, some in zip(documents, found, strict=True):
        alone = client.suggest("texts", text=document["text"], limit=3, threshold=0.2).json
        assert_alike(some["results"], alone["results"])


def test_limits_of_annif_s_clients(client: Client) -> None:
    assert len(client.suggest("texts", text="olive").json["results"]) == 10
    assert client.suggest("texts", text="olive", limit=0).json["results"] == []
    assert len(client.suggest("texts", text="olive", limit=100_000).json["results"]) == P
    assert client.post("/v1/projects/texts/suggest-batch", {"documents": [{"text": ""}] * 33}).status == 400
    for field, value in (("limit", "-1"), ("limit", "x"), ("threshold", "1.1"), ("threshold", "nan"), ("limit", "1e3")):
        assert field in client.suggest("texts", text="olive", **{field: value}).detail
    assert "text" in client.suggest("texts", limit=3).detail


def test_what_is_off_says_so(client: Client) -> None:
    assert client.post("/v1/projects/texts/learn", [{"text": "a", "subjects": [{"uri": "b"}]}]).status == 403
    assert client.post("/v1/detect-language", {"text": "a", "languages": ["en"]}).status == 501
    assert client.get("/v1/projects/none").status == 404
    assert client.suggest("none", text="olive").status == 404


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e30, 1e30), min_size=2, max_size=9),
    st.sampled_from(["log-probs", "probs", "logits"]),
)
def test_scores_without_probabilities_keep_their_order(scores: list[float], decoding: str) -> None:
    model = make_text_model(config=BASE.replace(decoding=decoding), calibrated=False)
    if decoding == "log-probs":
        scores = [-abs(score) for score in scores]
    if decoding == "probs":
        scores = [abs(math.atan(score)) / 2 for score in scores]
    found = [find_score(model, {"score": score, "probability": None}) for score in sorted(scores)]
    assert found == sorted(found)
    assert 0 < found[0] <= found[-1] <= 1


def test_a_client_of_annif_s_works_unchanged(client: Client, folders) -> None:
    """annif-client, as it is, with every method but learning and language detection."""
    module = pytest.importorskip("annif_client", reason="annif-client is not installed")
    requests = pytest.importorskip("requests")
    annif = module.AnnifClient(f"http://127.0.0.1:{client.port}/v1/")
    assert set(annif.api_info) == {"title", "version"}
    assert [project["project_id"] for project in annif.projects] == list(folders)
    assert annif.get_project("texts")["is_trained"]
    with pytest.raises(ValueError, match="no such project"):
        annif.get_project("none")
    found = annif.suggest("texts", "olive oil prices", limit=4)
    assert found == annif.analyze("texts", "olive oil prices", limit=4)
    assert [label["uri"] for label in found] == [
        label["key"] for label in Model.load(folders["texts"]).predict(["olive oil prices"], 4)[0]
    ]
    assert all(label["score"] >= 0.5 for label in annif.suggest("texts", "olive", threshold=0.5))
    batch = annif.suggest_batch(
        "texts", [{"text": "olive oil prices", "document_id": "one"}, {"text": "fish"}], limit=4
    )
    assert_alike(batch[0], {"document_id": "one", "results": found})
    for call in (lambda: annif.learn("texts", []), lambda: annif.detect_language("a", ["en"])):
        with pytest.raises(requests.HTTPError):
            call()


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    st.integers(3, 9),
)
def test_forms_are_read_as_the_library_reads_them(fields: dict[str, str], piece: int) -> None:
    body = urlencode(fields).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ask, "_PIECE", piece)
        assert ask.parse_form(body) == dict(parse_qsl(body.decode(), keep_blank_values=True)) == fields


@given(st.binary(max_size=60).map(lambda drawn: bytes(b"%4a&=+"[n % 6] for n in drawn)), st.integers(3, 9))
def test_odd_forms_are_read_as_the_library_reads_them(body: bytes, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ask, "_PIECE", piece)
        expected: object
        try:
            expected = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
        except UnicodeDecodeError:
            expected = Problem
        try:
            found: object = ask.parse_form(body)
        except Problem:
            found = Problem
        assert found == expected


# Of all.


def test_every_operation_is_described_and_every_description_is_served(client: Client) -> None:
    assert client.get("/openapi.json").json == DESCRIPTION
    for path, operations in DESCRIPTION["paths"].items():
        for method in ("get", "post", "put", "delete"):
            reply = client.ask(method.upper(), path.replace("{project_id}", "texts"))
            assert (reply.status == 405) == (method not in operations), (method, path)


def test_folders_are_named_or_name_themselves(tmp_path: Path) -> None:
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "a=b").mkdir()
    (tmp_path / "with space").mkdir()
    run = tmp_path / "run"
    assert name_projects([str(run)]) == (("run", run),)
    assert name_projects([str(run / "model")]) == (("run", run / "model"),)
    assert name_projects([f"one={run}", f"two={run}"]) == (("one", run), ("two", run))
    for wrong in ([str(run), str(run)], [str(tmp_path / "with space")], [str(tmp_path / "a=b")]):
        with pytest.raises(UserError, match="="):
            name_projects(wrong)


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), max_size=6), max_size=4))
def test_points_in_json_are_a_sparse_matrix(points) -> None:
    dense = np.zeros((len(points), 10))
    for row, cells in enumerate(points):
        for column, value in cells:
            dense[row, column] += value
    rows = make_rows([([c for c, _ in cells], [float(v) for _, v in cells]) for cells in points], 10)
    found = np.zeros_like(dense)
    found[rows.owners, rows.columns] = rows.values
    assert np.array_equal(found, dense)
