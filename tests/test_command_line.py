"""The contract that scripts rely on: commands, run folder, summary, and the way from text to label names."""

import json
import re
import sys
from pathlib import Path

import pytest
from scipy.sparse import csr_array

import fedmlh
from command_line import TINY, call
from fedmlh.config import Config, presets

ROOT = Path(__file__).parent.parent
EURLEX = ROOT.parent / "shared" / "data" / "EurLex-EuroVoc-titles-4K"
SUMMARY_KEYS = set(
    "algorithm num_parameters model_bytes best_round rounds precision precision_paper ndcg psp recall "
    "precision_infrequent bytes_up bytes_down bytes_up_to_best bytes_down_to_best paper_volume_bytes "
    "seconds_per_round peak_memory_bytes seed".split()
)


def strip_times(record: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in record.items() if "seconds" not in key and "memory" not in key}


def test_without_a_terminal_every_round_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "demo", "--rounds", 3, *TINY, "--out", tmp_path / "run") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    assert [line.split(" of ")[0] for line in lines] == ["round 1", "round 2", "round 3"]
    assert all(": P@1/3/5 " in line for line in lines)


def test_a_run_leaves_the_promised_folder(tmp_path: Path) -> None:
    assert call("run", "demo", "--rounds", 3, *TINY, "--out", tmp_path / "run") == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary.keys() >= SUMMARY_KEYS
    assert set(summary["precision"]) == {"1", "3", "5"}
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3]
    assert all("validation" in record and "test" not in record for record in records)
    # Bytes are those of the messages, and the formula is a test. Round 1 broadcasts no model.
    size, sampled = summary["model_bytes"], 4
    assert 0 < summary["bytes_up"] - 3 * sampled * size < 3 * sampled * 500
    assert 0 < summary["bytes_down"] - 2 * sampled * size < 3 * sampled * 500
    assert summary["paper_volume_bytes"] == summary["best_round"] * sampled * size
    assert (tmp_path / "run/report.html").read_text().count("<svg") == 1


def test_the_written_config_runs_again_to_the_same_bits(tmp_path: Path) -> None:
    assert call("run", "demo", "--rounds", 2, "--seed", 5, *TINY, "--out", tmp_path / "a") == 0
    assert call("run", tmp_path / "a/config.toml", "--out", tmp_path / "b") == 0
    one, two = (strip_times(json.loads((tmp_path / run / "summary.json").read_text())) for run in "ab")
    assert one == two
    weights = [(tmp_path / run / "model/weights.safetensors").read_bytes() for run in "ab"]
    assert weights[0] == weights[1]


def test_compare_pairs_the_algorithms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", "demo", "--rounds", 2, "--seeds", 2, *TINY, "--out", tmp_path / "c") == 0
    shown = capsys.readouterr().out
    for row in (
        "P@1",
        "macro recall@5",
        "infrequent",
        "rounds to best",
        "model, MiB",
        "server sent",
        "seconds per round",
    ):
        assert row in shown
    for seed in (0, 1):
        records = []
        for algorithm in ("fedmlh", "fedavg"):
            folder = tmp_path / "c" / f"{algorithm}-seed{seed}"
            records.append([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])
        assert [r["clients"] for r in records[0]] == [r["clients"] for r in records[1]]
    page = (tmp_path / "c/report.html").read_text()
    assert "<svg" in page
    assert "paper&#x27;s @5" not in page + shown


def test_paper_selection_is_labelled_wherever_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "demo", "--rounds", 2, *TINY, "--set", "selection=paper", "--out", tmp_path / "p") == 0
    assert "best round on test" in capsys.readouterr().out
    assert "chosen on the test part" in (tmp_path / "p/report.html").read_text()
    record = json.loads((tmp_path / "p/metrics.jsonl").read_text().splitlines()[0])
    assert "test" in record
    assert "validation" not in record


def test_local_baseline_shows_what_joining_is_worth(tmp_path: Path) -> None:
    assert call("run", "demo", "--rounds", 2, *TINY, "--set", "local_baseline=true", "--out", tmp_path / "l") == 0
    clients = json.loads((tmp_path / "l/summary.json").read_text())["clients"]
    assert len(clients) == 10
    assert all(set(client["precision_alone"]) == {"1", "3", "5"} for client in clients)


def test_eval_repeats_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "demo", "--rounds", 2, *TINY, "--out", tmp_path / "run") == 0
    capsys.readouterr()
    assert call("eval", tmp_path / "run", "--json") == 0
    values = json.loads(capsys.readouterr().out)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert values["psp"] == summary["psp"]
    assert values["precision_infrequent"] == summary["precision_infrequent"]


def write_text_set(folder: Path) -> None:
    topics = {"olive oil": "olive oil press", "sea fish": "cod herring catch", "railway": "train track gauge"}
    folder.mkdir()
    for part, count in (("trn", 90), ("tst", 30)):
        lines = []
        for number in range(count):
            name, words = list(topics.items())[number % 3]
            lines.append(json.dumps({"text": f"report {number} on {words}", "labels": [name]}))
        (folder / f"{part}.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize("features", ["hashing", "tfidf"])
def test_text_in_labels_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], features: str) -> None:
    write_text_set(tmp_path / "data")
    settings = "num_clients=2 clients_per_round=2 num_buckets=3 num_tables=16 hidden_sizes=32 feature_dim=512 top_k=1"
    flags = [part for setting in settings.split() for part in ("--set", setting)]
    more = ["--set", f"text_features={features}", "--set", "learning_rate=0.01", "--set", "partition=iid"]
    assert call("run", "demo", "--data", tmp_path / "data", "--rounds", 8, *flags, *more, "--out", tmp_path / "r") == 0
    capsys.readouterr()
    assert call("predict", tmp_path / "r", "--text", "the olive press", "--top", 1) == 0
    shown = capsys.readouterr().out
    assert "olive oil" in shown
    assert "log-probability" in shown  # what a score means
    (tmp_path / "ask.jsonl").write_text('{"text": "herring"}\n{"text": "gauge of the track"}')
    assert call("predict", tmp_path / "r", "--input", tmp_path / "ask.jsonl", "--out", tmp_path / "said.jsonl") == 0
    said = [json.loads(line)["labels"][0]["name"] for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert said == ["sea fish", "railway"]


def test_predict_takes_the_formats_that_training_takes(tmp_path: Path) -> None:
    assert call("data", "synth", tmp_path / "npz", "--points", 300, "--features", 100, "--labels", 40) == 0
    for kind in ("xmc", "svmlight"):
        assert call("data", "convert", tmp_path / "npz", tmp_path / kind, "--to", kind) == 0
    small = [*TINY, "--set", "num_buckets=10"]
    assert call("run", "demo", "--data", tmp_path / "npz", "--rounds", 1, *small, "--out", tmp_path / "r") == 0
    answers = []
    for source in (
        tmp_path / "npz/X.tst.npz",
        *(next((tmp_path / kind).glob("test.*")) for kind in ("xmc", "svmlight")),
    ):
        target = tmp_path / f"{source.parent.name}.jsonl"
        first = 1 if source.suffix == ".svm" else 0  # as `convert` writes it
        assert call("predict", tmp_path / "r", "--input", source, "--first-feature", first, "--out", target) == 0
        answers.append(target.read_text())
    assert answers[0] == answers[1] == answers[2]


def test_unknown_settings_name_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "demo", "--set", "num_bucket=3", "--out", tmp_path / "x") == 2
    assert "did you mean 'num_buckets'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_settings_are_explained_with_and_without_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("config") == 0
    shown = capsys.readouterr().out
    assert "[server] How the server turns the updates of a round into the next model." in shown
    assert "num_tables = 4   (1 to 1,024)" in shown
    assert call("config", "demo", "--set", "server.momentum=0.5", "--set", "algorithm=fedavg") == 0
    config = Config.from_toml(capsys.readouterr().out, "shown")
    assert config == Config.load("demo").replace(server_momentum=0.5, label_map="identity", num_tables=1)
    assert call("config", "--set", "rounds=3") == 2
    assert "name one, e.g. fedmlh config recommended" in capsys.readouterr().err


def test_sizes_that_are_chosen_cannot_be_set_but_fedavg_can(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("config", "recommended", "--set", "task.num_tables=3") == 2
    assert "num_tables has no effect with sizes 'auto'" in capsys.readouterr().err
    assert call("config", "recommended", "--set", "label_map=identity", "--set", "num_tables=1") == 0
    assert Config.from_toml(capsys.readouterr().out, "shown").is_fedavg


@pytest.mark.parametrize("name", presets())
def test_configs_survive_their_own_text(name: str, tmp_path: Path) -> None:
    config = Config.load(name)
    (tmp_path / "c.toml").write_text(config.to_toml())
    assert Config.load(tmp_path / "c.toml") == config


def test_sockets_are_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert call("run", "demo", "--rounds", 1, *TINY, "--out", tmp_path / "run") == 0


@pytest.mark.skipif(not EURLEX.is_dir(), reason="the EurLex titles are not beside this checkout")
def test_eurlex_titles_become_eurovoc_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = "feature_dim=2000 loss=softmax learning_rate=0.005 partition=iid num_clients=2 clients_per_round=2"
    names = ("data_format=text", "local_epochs=2", *quick.split())
    settings = [part for name in names for part in ("--set", name)]
    flags = ["--data", EURLEX, *settings, "--rounds", 2, "--out", tmp_path / "e"]
    assert call("run", "eurlex-4k", *flags) == 0
    capsys.readouterr()
    assert call("predict", tmp_path / "e", "--text", "Commission Regulation on olive oil prices") == 0
    assert "olive oil" in capsys.readouterr().out.split("\n", 1)[1]


def test_seed_zero_is_a_seed(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('seed = 7\nname = "c"')
    assert call("run", tmp_path / "c.toml", "--seed", 0, "--rounds", 1, *TINY, "--out", tmp_path / "r") == 0
    assert Config.load(tmp_path / "r/config.toml").seed == 0


def test_an_svmlight_model_reads_features_as_its_training_files_did(tmp_path: Path) -> None:
    """Training counts from 1 (no feature 0 occurs): a file to predict that fits both ways is read the same way."""
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        (tmp_path / "data" / f"{part}.svm").write_text("".join(f"{i % 4} {i % 4 + 1}:1 5:0.1\n" for i in range(80)))
    settings = (
        "num_clients=2 clients_per_round=2 partition=iid feature_map=none hidden_sizes=[] top_k=1 learning_rate=0.1"
    )
    flags = [part for setting in settings.split() for part in ("--set", setting)]
    run = ["run", "demo", "--data", tmp_path / "data", "--algorithm", "fedavg", "--rounds", 5]
    assert call(*run, *flags, "--out", tmp_path / "r") == 0
    (tmp_path / "ask.svm").write_text("2:1\n3:1\n")
    assert call("predict", tmp_path / "r", "--input", tmp_path / "ask.svm", "--out", tmp_path / "said.jsonl") == 0
    said = [json.loads(line)["labels"][0]["name"] for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert said == ["1", "2"]


def test_eval_refuses_to_measure_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"num_points": 400, "num_features": 300, "num_labels": 60}
    small = {"feature_dim": 64, "num_buckets": 20, "hidden_sizes": [16], "rounds": 1, "local_epochs": 1}
    shape = {f"synthetic_{name}": sizes[f"num_{name}"] for name in ("points", "features", "labels")}
    config = Config.load("demo").replace(**small, **shape)
    fedmlh.run(config, fedmlh.synthesize(**sizes, seed=5), tmp_path / "r")
    assert call("eval", tmp_path / "r") == 2
    assert "--data" in capsys.readouterr().err


def test_reports_never_mix_set_ups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for name, more in (("a", []), ("b", ["--set", "num_buckets=30"]), ("c", ["--set", "selection=paper"])):
        folders.append(tmp_path / name)
        assert call("run", "demo", "--rounds", 1, *TINY, *more, "--out", folders[-1]) == 0
    capsys.readouterr()
    assert call("report", *folders, "--out", tmp_path / "r.html") == 0
    page = (tmp_path / "r.html").read_text()
    assert "num_buckets 20" in page
    assert "num_buckets 30" in page
    assert "(best round on test)" in page
    assert "±" not in capsys.readouterr().out
    assert call("report", folders[0], folders[0], "--out", tmp_path / "twice.html") == 2
    assert call("report", tmp_path, "--out", tmp_path / "all.html") == 0  # a folder of runs stands for them
    assert call("report", folders[0], "--out", tmp_path / "no" / "where.html") == 2


def test_a_run_that_never_began_is_in_nobodys_way(tmp_path: Path) -> None:
    wild = ["--set", "learning_rate=1e30", "--set", "optimizer=sgd"]
    assert call("run", "demo", "--rounds", 1, *TINY, *wild, "--out", tmp_path / "r") == 2
    assert call("run", "demo", "--rounds", 1, *TINY, "--out", tmp_path / "r") == 0
    assert call("run", "demo", "--rounds", 1, *TINY, "--out", tmp_path / "r") == 2


def test_predict_takes_any_kind_of_matrix(tmp_path: Path) -> None:
    assert call("run", "demo", "--rounds", 1, *TINY, "--out", tmp_path / "r") == 0
    model = fedmlh.Model.load(tmp_path / "r")
    points = fedmlh.synthesize(num_points=400, num_features=300, num_labels=60).test.X[:3]
    expected = model.predict(points)
    for other in (csr_array(points), points.tocsc(), points.toarray().astype(float)):
        assert model.predict(other) == expected
    with pytest.raises(fedmlh.UserError, match="text"):
        model.predict(["some text"])
    with pytest.raises(fedmlh.UserError, match="list of texts"):
        model.predict("some text")


def test_sites_keep_their_names_and_svmlight_sites_need_not_use_the_same_features(tmp_path: Path) -> None:
    for site, features in (("north", (1, 2, 3)), ("south", (2, 3, 4))):
        (tmp_path / "sites" / site).mkdir(parents=True)
        for part in ("train", "test"):
            lines = [f"{i % 3} {features[i % 3]}:1\n" for i in range(60)]
            (tmp_path / "sites" / site / f"{part}.svm").write_text("".join(lines))
    settings = "num_clients=2 clients_per_round=2 partition=folder num_buckets=2 top_k=1"
    flags = [part for setting in settings.split() for part in ("--set", setting)]
    run = ["run", "demo", "--data", tmp_path / "sites", "--rounds", 1, *flags]
    assert call(*run, "--out", tmp_path / "r") == 0
    clients = json.loads((tmp_path / "r/summary.json").read_text())["clients"]
    assert [client["site"] for client in clients] == ["north", "south"]


def test_without_ray_its_engine_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fedmlh.engines.ray", None)
    assert call("run", "demo", "--engine", "ray", "--out", tmp_path / "run") == 2
    assert 'pip install -c constraints.txt ".[ray]"' in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_recommended_continues_where_it_was_and_says_what_reaches_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text_set(tmp_path / "data")
    few = ["--set", "num_clients=2", "--set", "clients_per_round=2", "--set", "top_k=1", "--set", "patience=0"]
    few += ["--set", "training=rounds", "--set", "partition=paper-code"]
    command = ["run", "recommended", "--data", tmp_path / "data", *few, "--out", tmp_path / "r"]
    assert call(*command, "--rounds", 2) == 0
    assert (
        "of 81 training points reach a client: partition 'paper-code' leaves the others out;" in capsys.readouterr().err
    )
    assert call(*command, "--rounds", 3) == 2
    assert call(*command, "--rounds", 3, "--resume") == 0
    assert call("run", "recommended", "--data", tmp_path / "data", *few, "--rounds", 3, "--out", tmp_path / "s") == 0
    assert (tmp_path / "r/model/weights.safetensors").read_bytes() == (
        tmp_path / "s/model/weights.safetensors"
    ).read_bytes()
    capsys.readouterr()
    assert call(*command, "--set", "budget_mib=0.2", "--resume") == 2
    assert "this one says" in capsys.readouterr().err
    assert call(*command[:-1], tmp_path / "new", "--rounds", 1, "--resume") == 0
    assert "holds no run to resume: this is a new one" in " ".join(capsys.readouterr().err.split())
    assert call(*command[:-1], tmp_path / "t", "--set", "num_tables=4") == 2
    assert "num_tables has no effect with sizes 'auto'" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_files_that_are_there_are_not_replaced_by_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text_set(tmp_path / "data")
    small = [*TINY, "--set", "num_buckets=3", "--set", "num_clients=2", "--set", "clients_per_round=2"]
    assert call("run", "demo", "--data", tmp_path / "data", "--rounds", 1, *small, "--out", tmp_path / "r") == 0
    (tmp_path / "ask.jsonl").write_text('{"text": "herring"}\n\n{"text": "gauge"}\n\n')
    assert call("predict", tmp_path / "r", "--input", tmp_path / "ask.jsonl", "--out", tmp_path / "said.jsonl") == 0
    assert len((tmp_path / "said.jsonl").read_text().splitlines()) == 2, "empty lines are no points"
    for arguments, sentence in (
        (
            ("predict", tmp_path / "r", "--input", tmp_path / "ask.jsonl", "--out", tmp_path / "ask.jsonl"),
            "replace the",
        ),
        (("predict", tmp_path / "r", "--text", "x", "--out", tmp_path / "data"), "is a folder: name a file"),
        (("report", tmp_path / "r", "--out", tmp_path / "data"), "is a folder: name a file"),
        (("reproduce", "--only", "table1", "--out", tmp_path / "r"), "holds a run: choose another --out"),
    ):
        capsys.readouterr()
        assert call(*arguments) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
    assert "herring" in (tmp_path / "ask.jsonl").read_text()


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert re.fullmatch(r"fedmlh \d+\.\d+\.\d+\n", capsys.readouterr().out)
