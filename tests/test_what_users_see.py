"""What commands say beside their results: once, on lines of its own, and so that a user knows what to do."""

import ast
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections import Counter
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedmlh
from command_line import TINY, call
from drawn_models import BASE, make_bundle
from fedmlh.cli.federation import _watch
from fedmlh.comparison.comparison import compare
from fedmlh.config import Config, presets
from fedmlh.data.text import TextFeatures
from fedmlh.engines.replay import explain_difference
from fedmlh.errors import how_to_install
from fedmlh.federated import task
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.guides import GUIDES, list_unusual
from fedmlh.serving.predictor import Model
from texts import write_text_set

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedmlh"
#: As TINY, in one round.
ONCE = ["--set", "training=one-round", "--set", "num_buckets=20"]


def sized(*names: str) -> list[str]:
    """Return the settings of TINY but for these."""
    pairs = zip(TINY[::2], TINY[1::2], strict=True)
    return [part for pair in pairs if not pair[1].startswith(names) for part in pair]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of two rounds."""
    out = tmp_path_factory.mktemp("seen") / "run"
    assert call("run", "demo", "--rounds", 2, *TINY, "--out", out) == 0
    return out


# Lines of their own.


def show(raw: str) -> list[str]:
    """Return the lines of a terminal that got this text, without colours."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", raw):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d+A", token):
            row -= int(token[2:-1])
        elif not token.startswith("\x1b"):
            kept = lines[row].ljust(column)
            lines[row] = kept[:column] + token + kept[column + len(token) :]
            column += len(token)
    return lines


def run_in_terminal(*arguments: object, columns: int = 200) -> list[str]:
    """Return what a terminal of this width shows after the command."""
    child, handle = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("COLUMNS", None)
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.execv(sys.executable, [sys.executable, "-m", "fedmlh", *map(str, arguments)])
    read = b""
    while True:
        try:
            piece = os.read(handle, 1 << 16)
        except OSError:  # the other end has closed
            break
        if not piece:
            break
        read += piece
    os.close(handle)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, read.decode()
    return show(read.decode())


def test_in_a_terminal_every_message_stands_above_the_bar(tmp_path: Path) -> None:
    once = ["--set", "correct=1", *ONCE]
    lines = run_in_terminal("run", "demo", *TINY, *once, "--out", tmp_path / "run")
    messages = ["data: made from seed 0, no real data", "sums: 10 of 10 clients have answered"]
    assert all(lines.count(message) == 1 for message in messages)
    bars = [place for place, line in enumerate(lines) if "━" in line and "2/2" in line]
    assert len(bars) == 1
    assert bars[0] > max(map(lines.index, messages))
    assert "of the data" not in "".join(line for line in lines if "━" in line)


def test_what_is_printed_for_a_script_holds_no_bar(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedmlh", "run", "demo", "--rounds", "2", *TINY, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout + done.stderr
    assert sum(line.startswith("round ") for line in done.stderr.splitlines()) == 2


# Once.


def test_a_comparison_says_once_what_was_chosen_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = sized("feature_dim", "num_buckets", "hidden_sizes")
    options = ["--set", "training=rounds", "--set", "prox_mu=0.1", "--rounds", 1, "--seeds", 2]
    assert call("compare", "recommended", *sizes, *options, "--out", tmp_path / "c") == 0
    said = capsys.readouterr().err.splitlines()
    assert max(Counter(said).values()) == 1
    *_, first = (place for place, line in enumerate(said) if line.startswith("round 1 of at most 1, fedmlh, seed 0"))
    above = said[:first]
    assert above.index("fedmlh:") < above.index("fedavg:")
    assert sum("one hidden layer of" in line for line in above) == 2, "each method has its own"
    assert sum("clients (Dirichlet" in line for line in above) == 1, "what holds for both is said of none"
    assert not [line for line in said[first:] if not line.startswith("round 1 of at most 1, fed")]


def test_a_comparison_tells_what_each_run_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "local_baseline=true", "--rounds", 1, "--seeds", 2]
    assert call("compare", "demo", *TINY, *options, "--out", tmp_path / "c") == 0
    said = Counter(capsys.readouterr().err.splitlines())
    assert said["training client 0 alone"] == 4
    assert max(count for line, count in said.items() if "training points reach a client" in line) == 1


def test_a_label_whose_key_is_its_name_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = "num_clients=2 clients_per_round=2 num_buckets=3 num_tables=4 hidden_sizes=16 feature_dim=64 top_k=1"
    flags = [part for setting in settings.split() for part in ("--set", setting)]
    for name, keys in (("same", ""), ("keyed", "oil\tolive oil\nfish\tsea fish\nrail\trailway\n")):
        data = tmp_path / name
        write_text_set(data)
        if keys:
            (data / "labels.txt").write_text(keys)
            for part in data.glob("*.jsonl"):
                text = part.read_text()
                for line in keys.splitlines():
                    text = text.replace(f'["{line.split(chr(9))[1]}"]', f'["{line.split(chr(9))[0]}"]')
                part.write_text(text)
        assert call("run", "demo", "--data", data, "--rounds", 1, *flags, "--out", tmp_path / f"{name}-run") == 0
    capsys.readouterr()
    assert call("predict", tmp_path / "same-run", "--text", "press", "--top", 3) == 0
    shown = capsys.readouterr().out
    assert len(re.findall("olive oil|sea fish|railway", shown)) == 3
    assert "(olive oil)" not in shown
    assert call("predict", tmp_path / "keyed-run", "--text", "press", "--top", 3) == 0
    assert "olive oil  (oil)" in capsys.readouterr().out


def test_a_terminal_shows_the_labels_of_a_file_and_a_pipe_gets_json(tmp_path: Path) -> None:
    model = Model(make_bundle(BASE, 5, d=50, text=TextFeatures.hashing(50)))
    model.save(tmp_path / "model")
    (tmp_path / "a.csv").write_text(f"id,title\n17,Olive oil\n18,\n19,{'x' * 300}\n")
    lines = run_in_terminal(
        "predict", tmp_path / "model", "--input", tmp_path / "a.csv", "--column", "title", "--id", "id", "--top", 1
    )
    place = lines.index("17  Olive oil")
    (label,) = model.predict(["Olive oil"], 1)[0]
    assert f"{label['name']}  ({label['key']})" in lines[place + 1]
    assert lines[place + 2].rstrip() == "18  (no text)"
    assert "no label" in lines[place + 3]
    assert lines[place + 4].startswith("19  xxx")
    assert lines[place + 4].endswith("x…")
    assert not any(line.startswith("{") for line in lines)


# Resuming.


def test_a_resumed_run_says_with_which_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "demo", *TINY, "--out", tmp_path / "run"]
    assert call(*command, "--rounds", 2) == 0
    capsys.readouterr()
    assert call(*command, "--rounds", 3, "--resume") == 0
    said = capsys.readouterr().err.splitlines()
    assert said.index("resuming with round 3 of at most 3") < next(
        place for place, line in enumerate(said) if line.startswith("round 3 of at most 3, ")
    )
    assert call(*command, "--rounds", 3, "--resume") == 0
    said = capsys.readouterr().err.splitlines()
    assert "training had ended before, after round 3 of at most 3: only the results are written" in said
    assert not any(line.startswith(("round", "resuming")) for line in said)


def test_one_round_that_is_resumed_says_whose_answers_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "demo", *TINY, *ONCE, "--set", "correct=2", "--out", tmp_path / "run"]
    assert call(*command) == 0
    assert "before" not in capsys.readouterr().err
    assert call(*command, "--resume") == 0
    said = capsys.readouterr().err.splitlines()
    assert "sums: 10 of 10 clients had answered before" in said
    assert any(line.startswith("networks beside it: training had ended before, after round 2") for line in said)


def test_a_federation_that_is_started_again_reports_new_rounds_only(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    run, config = RunFolder(tmp_path / "run"), SimpleNamespace(most_rounds=4)
    with _watch(SimpleNamespace(run=run, agreement=SimpleNamespace(config=config))) as watch:
        watch(run.count_rounds())
        watch(3)
    (line,) = capsys.readouterr().err.splitlines()
    assert "round 3 of at most 4 finished" in line


def test_to_resume_there_must_be_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for command, what in (
        (["run", "demo", *TINY, "--rounds", 1], "runs/demo-fedmlh-seed0 holds no run"),
        (["compare", "demo", *TINY, "--rounds", 1], "runs/demo-compare holds no comparison"),
        (["tune", "data"], "runs/data-tune holds no search"),
    ):
        assert call(*command, "--resume") == 2
        assert f"{what} to resume: name its folder with --out, or leave --resume out" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert call("run", "demo", *TINY, "--rounds", 1) == 0
    assert call("run", "demo", *TINY, "--rounds", 2, "--resume") == 0
    assert RunFolder(tmp_path / "runs/demo-fedmlh-seed0").count_rounds() == 2


# Why.


def test_a_replay_says_what_differs(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def replay(run: Path) -> tuple[int, str]:
        capsys.readouterr()
        code = call("replay", run, "--out", tmp_path / f"{len(list(tmp_path.iterdir()))}")
        return code, capsys.readouterr().out

    def edit(name: str, old: str, new: str) -> Path:
        shutil.copytree(finished, tmp_path / name)
        text = (tmp_path / name / "config.toml").read_text()
        assert old in text
        (tmp_path / name / "config.toml").write_text(text.replace(old, new))
        return tmp_path / name

    assert replay(finished) == (0, "2 attempts, and the same model to the bit\n")
    slower = edit("slower", "\nlearning_rate = 0.003", "\nlearning_rate = 0.002")
    assert replay(slower) == (
        1,
        "the replay ends with another model than the run: learning_rate was 0.003, and is 0.002\n",
    )


def test_a_replay_on_other_data_is_refused_before_its_first_round(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--points", 400, "--features", 300, "--labels", 60]
    assert call("data", "synth", tmp_path / "data", *sizes, "--seed", 4) == 0
    capsys.readouterr()
    assert call("replay", finished, "--data", tmp_path / "data", "--out", tmp_path / "again") == 2
    said = capsys.readouterr().err
    assert re.search(r"other data than the run had \(fingerprint [0-9a-f]{16}, now [0-9a-f]{16}\)", said)
    assert "round 1" not in said
    assert not (tmp_path / "again").exists()
    # A run with real sites does not know how many training points they have, nor their data.
    shutil.copytree(finished, tmp_path / "of-sites")
    summary = json.loads((finished / "summary.json").read_text())
    del summary["training_points"]
    (tmp_path / "of-sites" / "summary.json").write_text(json.dumps(summary))
    assert call("replay", tmp_path / "of-sites", "--data", tmp_path / "data", "--out", tmp_path / "again") == 1
    said = " ".join(capsys.readouterr().out.split())
    assert re.search("model than the run: the fingerprint of the data was [0-9a-f]{16}, and is [0-9a-f]{16}$", said)


@pytest.mark.parametrize("more", [[], ONCE], ids=["rounds", "one-round"])
def test_a_replay_knows_another_version_of_training(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("before", task.TRAINING - 1), ("now", task.TRAINING), ("again", task.TRAINING)):
        monkeypatch.setattr(task, "TRAINING", version)
        assert call("run", "demo", "--rounds", 1, *TINY, *more, "--out", tmp_path / name) == 0
    before, now, again = (RunFolder(tmp_path / name) for name in ("before", "now", "again"))
    assert "another version of fedmlh" in explain_difference(before, now)
    known = explain_difference(again, now)
    assert known.startswith("nothing known differs (their data, settings and version of training are the same)")
    shutil.rmtree(before.checkpoints)
    assert explain_difference(before, now).startswith("nothing known differs (their data and settings are the same)")


@pytest.mark.parametrize(
    "command",
    [
        ["run", "recomended"],
        ["config", "recomended"],
        ["compare", "demo", "recomended"],
        ["tune", ".", "--start", "recomended"],
        ["federation", "rehearse", "recomended"],
    ],
    ids=lambda command: command[0],
)
def test_a_mistyped_preset_names_the_one_that_was_meant(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*command) == 2
    assert "did you mean 'recommended'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_name_like_a_presets_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recomended").write_text("rounds = 3\n")
    assert call("config", "recomended") == 0


#: Files whose messages only the command line shows, or that name it in full. Settings say theirs elsewhere.
APART = ("cli", "tuning", "sites", "reproduction", "planning", "data/public", "oneround/forecast.py")


def test_messages_that_python_users_meet_name_more_than_options() -> None:
    """An option stands in brackets, behind words or a name that hold in Python as well."""
    found = 0
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).as_posix().startswith(APART):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            text = "".join(part.value for part in ast.walk(node.exc) if is_text(part))
            for option in re.finditer(r"--[a-z]", text):
                found += 1
                before = text[: option.start()]
                assert before.rfind("(") > before.rfind(")"), f"{path}: {text}"
    assert found > 3


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_python_users_are_told_how_to_resume(finished: Path) -> None:
    config = Config.load(finished / "config.toml")
    words = "pass resume=True, overwrite=True or another out (on the command line: --resume or another --out)"
    with pytest.raises(fedmlh.UserError, match=re.escape(words)):
        fedmlh.run(config, fedmlh.synthesize(num_points=400, num_features=300, num_labels=60), finished)


# Values that ruin a run.


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: f"{guide.setting}-{guide.condition}")
def test_values_far_outside_a_guide_are_told(guide: object) -> None:
    base = next(
        config
        for config in (
            Config(optimizer=optimizer, loss=loss, server_optimizer=server, server_learning_rate=0.3, learning_rate=10)
            for optimizer in ("adam", "sgd")
            for loss in ("bce", "softmax", "balanced-bce")
            for server in ("average", "adam", "yogi", "adagrad")
        )
        if guide.holds(config)
    )

    def is_told(value: float) -> bool:
        lines = list(list_unusual(base.replace(**{guide.setting: value})))
        return any(line.startswith(f"{guide.setting} is {value:g}; ") for line in lines)

    assert not is_told(guide.low)
    assert not is_told(guide.high)
    assert is_told(guide.high * 1.01)
    assert guide.low == 0 or is_told(guide.low * 0.99)


def test_the_page_of_objectives_lists_the_guides() -> None:
    def show(value: float) -> str:
        return f"{value:,.5f}".rstrip("0").rstrip(".")

    page = (ROOT / "docs/objectives.md").read_text()
    for guide in GUIDES:
        row = rf"\| `{guide.setting}` \| [^|\n]+ \| {show(guide.low)} to {show(guide.high)} \|"
        assert re.search(row, page), guide


@pytest.mark.parametrize("name", presets())
def test_presets_are_within_all_guides(name: str) -> None:
    config = Config.load(name)
    settled = {"learning_rate": config.learning_rate or 0.01, "loss_tau": max(0.0, config.loss_tau)}
    assert list(list_unusual(config.replace(sizes="given", **settled))) == []


def test_a_run_with_an_unusual_value_says_so_and_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: Path
) -> None:
    run = ["run", "demo", *TINY, "--rounds", 1, "--set", "prox_mu=0.1"]
    assert call(*run, "--set", "server_optimizer=adam", "--out", tmp_path / "run") == 0
    said = capsys.readouterr().err
    assert said.count("prox_mu is 0.1; with adam and a softmax loss, 0 to 0.001 is usual") == 1
    assert said.count("server_learning_rate is 1; with server_optimizer adam or yogi, 0.03 to 0.3 is usual") == 1
    assert call(*run, "--set", "correct=1", *ONCE, "--out", tmp_path / "once") == 0
    assert capsys.readouterr().err.count("prox_mu is 0.1; ") == 1
    assert call(*run[:-2], *ONCE, "--set", "prox_mu=0.1", "--out", tmp_path / "linear") == 0
    assert "prox_mu" not in capsys.readouterr().err, "without networks it has no effect"


# Reports.


def test_a_report_leaves_no_file_of_another_name(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("report", finished, "--out", "mine.html") == 0
    names = sorted(path.name for path in tmp_path.iterdir() if path.name != "cache")
    tables = [f"mine-{what}" for what in ("comparison.csv", "curves.csv", "curves.png", "differences.csv")]
    assert names == [*tables, "mine.html"]
    shown = capsys.readouterr().out
    assert all(f": {name}\n" in shown for name in names)


def test_every_figure_is_explained_where_it_stands(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compare([RunFolder(finished)])
    for row in comparison.figures:
        kinds = [re.sub("[nk]", r"\\S+", re.escape(term)) for term, _ in comparison.terms]
        costs = row.name.startswith(
            ("mean of P@k", "model", "clients sent", "server sent", "seconds", "rounds to best")
        )
        assert costs or any(re.search(kind, row.name) for kind in kinds) or "recall@" in row.name, row.name
    page = (finished / "report.html").read_text()
    assert all(f"<b>{term}</b>" in page for term, _ in comparison.terms)
    assert call("report", finished, "--out", finished.parent / "again.html") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{term}: {meaning}" in shown for term, meaning in comparison.terms)
    assert "fewer than 1 % of the training points" in shown


def test_the_papers_figures_are_shown_where_its_way_was_asked_for(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = tmp_path / "paper"
    assert call("run", "demo", "--rounds", 1, *TINY, "--set", "selection=paper", "--out", chosen) == 0
    for run, wanted in ((finished, False), (chosen, True)):
        capsys.readouterr()
        assert call("report", run, "--out", tmp_path / f"{wanted}.html") == 0
        shown, page = capsys.readouterr().out, (tmp_path / f"{wanted}.html").read_text()
        assert ("paper's @5" in shown) == wanted
        assert ("paper's volume: " in shown) == wanted
        assert ("paper&#x27;s @5" in page) == wanted
        assert "precision_paper,5," in (tmp_path / f"{wanted}-comparison.csv").read_text()
        assert "precision_paper" in json.loads((run / "summary.json").read_text())
        assert call("eval", run) == 0
        assert ("precision_paper" in capsys.readouterr().out) == wanted


def test_the_caption_of_the_clients_says_whose_points_they_are(finished: Path, tmp_path: Path) -> None:
    def report(run: Path) -> str:
        assert call("report", run, "--out", tmp_path / "r.html") == 0
        return (tmp_path / "r.html").read_text().partition("<h2>Clients</h2>")[2]

    simulated = report(finished)
    assert "Simulated clients: P@k in %, on the client’s share of the validation points" in simulated
    assert "Real sites" not in simulated
    assert "Alone" not in simulated
    assert "<th>client</th>" in simulated
    shutil.copytree(finished, tmp_path / "sites")
    summary = json.loads((finished / "summary.json").read_text())
    summary["precision_at_sites"] = summary["precision"]
    for number, row in enumerate(summary["clients"]):
        row |= {"site": f"site-{number}", "precision_alone": row["precision"]}
    (tmp_path / "sites/summary.json").write_text(json.dumps(summary))
    real = report(tmp_path / "sites")
    assert "Real sites: P@k in %, measured by each site on the points that it holds out." in real
    assert "Simulated" not in real
    assert "“Alone”: the model that the client trains on its own points only" in real
    assert "<th>site</th>" in real


# Words.


def test_nothing_is_installed_by_a_name_that_no_index_has() -> None:
    texts = [
        *SOURCE.rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "experiments").glob("*.md"),
        ROOT / "README.md",
    ]
    assert len(texts) > 100
    for path in texts:
        assert not re.search(r"pip install [^\n]*fedmlh\[", path.read_text()), path
    assert how_to_install("ray").startswith('pip install -c constraints.txt ".[ray]"')


def test_deployment_installs_what_reports_need() -> None:
    page = (ROOT / "docs/deployment.md").read_text()
    assert re.search(r'pip install -c constraints.txt "\.\[[^]]*plot[^]]*\]"', page)


def test_remarks_on_data_name_it_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("run", "demo", "--rounds", 1, *TINY, "--out", tmp_path / "run") == 0
    assert "\ndata: made from seed 0, no real data\n" in "\n" + capsys.readouterr().err
