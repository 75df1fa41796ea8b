"""A model asked with the base package alone, side by side with the torch path of `eval`.

    python benchmarks/predict.py [--data DIR] [--few RUN] [--linear RUN] [--turns N]

Two environments are made: one with the base package alone, one with numba as well (extra `fast`). torch is that of the
interpreter that runs this file. The models are

- few: about 4,000 labels in networks of eurlex-4k's size, trained for one round on the texts of a data folder, or on
  texts drawn in the same shape; or the model of a finished run (--few), which was trained on texts;
- linear: a finished run of `recommended` on texts (--linear), a linear model of 64 MiB with networks beside it;
- many: 312,330 labels in 8 tables of 5,000 buckets over one hidden layer of 500, with drawn weights.

Each turn starts every way once, each in a process of its own. CPU counts all threads of the process from its start, so
that other programs matter little; wall time is shown beside it. "First" ends with the labels of the first title; "warm"
is one title at a time.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "predict.json"
TITLES = 200

#: What runs in each process: folder of the model, file of titles, way.
PROBE = """
import json, resource, sys, time
folder, titles, way = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3]
import fedmlh
model = fedmlh.Model.load(folder)
if way == "torch":
    from fedmlh.runs.model_tools import make_tools
    features, ranker, weights = make_tools(model.bundle, "cpu")
    def ask(title):
        rows = features.apply(model.bundle.text.transform([title]))
        ((_, (labels,), _),) = ranker.rank(weights, rows, 5)
        return [model.bundle.labels.keys[label] for label in labels]
else:
    def ask(title):
        return [label["key"] for label in model.predict([title], 5)[0]]
found = [ask(titles[0])]
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss, which begins with the memory of the process that started this one. "Own" leaves out mapped files.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak, own = (int(status[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon"))
first = {"first_cpu_s": used.ru_utime + used.ru_stime, "first_mib": peak, "first_own_mib": own}
cpu, wall = [], []
for title in titles[1:]:
    began, clock = time.process_time(), time.perf_counter()
    found.append(ask(title))
    cpu.append(1e3 * (time.process_time() - began))
    wall.append(1e3 * (time.perf_counter() - clock))
def middle(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
warm = {"warm_cpu_ms": middle(cpu, 0.5), "warm_cpu_ms_p99": middle(cpu, 0.99)}
warm |= {"warm_wall_ms": middle(wall, 0.5), "warm_wall_ms_p99": middle(wall, 0.99)}
print(json.dumps({**first, **warm, "found": found}))
"""


def make_environment(folder: Path, extras: str) -> Path:
    """Install the package of this checkout into an environment of its own; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", constraints, f"{ROOT}{extras}"]
    subprocess.run(command, check=True)
    return python


def measure_size(python: Path) -> float:
    """Return the MB that an environment's packages take, pip included."""
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    return sum(path.lstat().st_blocks * 512 for path in packages.rglob("*")) / 1e6


def draw_texts(folder: Path) -> None:
    """Write a data folder of texts with the shape of 15,000 titles and 4,000 labels."""
    import numpy as np

    rng = np.random.default_rng(0)
    for name, count in (("trn", 15_000), ("tst", 1_000)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for labels, noise in zip(
                rng.zipf(1.4, (count, 5)) % 4_000, rng.zipf(1.5, (count, 12)) % 20_000, strict=True
            ):
                words = [f"word{label}" for label in labels] + [f"other{number}" for number in noise]
                line = {"text": " ".join(words), "labels": sorted({str(label) for label in labels})}
                file.write(json.dumps(line) + "\n")
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in range(4_000)))


def train_few(data: str | None, out: Path) -> Path:
    """Train a model with networks of eurlex-4k's size; return its folder."""
    import fedmlh

    if data is None:
        data = str(out / "texts")
        Path(data).mkdir(parents=True)
        draw_texts(Path(data))
    config = fedmlh.Config.load("eurlex-4k").replace(rounds=1)
    fedmlh.run(config, fedmlh.load(data), out / "run", progress=False)
    return out / "run" / "model"


def draw_many(out: Path) -> Path:
    """Write a model of very many labels with drawn weights; return its folder."""
    import numpy as np

    import fedmlh
    from fedmlh.data.dataset import Labels
    from fedmlh.data.text import TextFeatures
    from fedmlh.federated.task import Task
    from fedmlh.runs.model_folder import Bundle
    from fedmlh.serving.predictor import Model

    sizes = {"num_tables": 8, "num_buckets": 5_000, "feature_dim": 5_000, "hidden_sizes": (500,)}
    text, count = TextFeatures.hashing(), 312_330
    task = Task(
        fedmlh.Config.load("eurlex-4k").replace(**sizes, label_seeds="drawn", feature_seeds="drawn"),
        text.num_features,
        count,
    )
    weights = np.random.default_rng(0).standard_normal(task.stack.num_parameters, np.float32) * np.float32(0.03)
    labels = Labels(tuple(map(str, range(count))), tuple(f"label number {number}" for number in range(count)))
    Model(Bundle(task, task.draw_seeds(), weights, labels, text, "drawn", None)).save(out)
    return out


def take_titles(data: str | None) -> list[str]:
    """Return texts to ask about: the first of the test part of a data folder, or drawn ones."""
    if data is None:
        return [f"word{n} other{n * 7 % 3001} word{n * 3 % 997} of the {n % 13}th kind of title" for n in range(TITLES)]
    from fedmlh.data.readers.jsonl import read_text
    from fedmlh.data.readers.layout import recognise

    return [str(text) for text in read_text(recognise(Path(data))).test.points[:TITLES]]


def ask(python: Path | str, folder: Path, titles: Path, way: str) -> dict[str, Any]:
    """Run one process; return its figures and the labels that it found."""
    command = [str(python), "-c", PROBE, str(folder), str(titles), way]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or way == "torch"}
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/", env=environment)
    return dict(json.loads(said.stdout))


def compare(name: str, folder: Path, ways: dict[str, Path], titles: Path, turns: int) -> dict[str, dict[str, float]]:
    """Ask in all ways, in turns; return the median of each figure by way."""
    taken: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for way, python in ways.items():
        ask(python, folder, titles, way)  # compiles what is compiled once
    for _ in range(turns):
        for way, python in ways.items():
            taken[way].append(ask(python, folder, titles, way))
    best = {way: [labels[:1] for labels in figures[0].pop("found")] for way, figures in taken.items()}
    same = statistics.mean(one == other for one, other in zip(best["base"], best["torch"], strict=True))
    assert same > 0.98, f"the first labels agree for {same:.1%} of titles only"
    figures = {}
    for way, rows in taken.items():
        figures[way] = {
            figure: statistics.median(row[figure] for row in rows) for figure in rows[-1] if figure != "found"
        }
        shown = " ".join(f"{value:>9.2f}" for value in figures[way].values())
        print(f"{name:<6} {way:<14} {shown}", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="folder of texts; without it, texts are drawn")
    parser.add_argument("--few", metavar="RUN", type=Path, help="the model of a finished run instead of a new one")
    parser.add_argument("--linear", metavar="RUN", type=Path, help="a run of `recommended` on texts, measured as well")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        ways = {
            "base": make_environment(work / "base", ""),
            "base and numba": make_environment(work / "fast", "[fast]"),
            "torch": Path(sys.executable),
        }
        size = measure_size(ways["base"])
        print(f"installed: {size:.0f} MB (base), load average {load:.1f}")
        titles = work / "titles.json"
        titles.write_text(json.dumps(take_titles(arguments.data)))
        few = (arguments.few or train_few(arguments.data, work / "few")).resolve()
        print(f"{'':21} {'CPU, s':>9} {'MiB':>9} {'own, MiB':>9} {'CPU, ms':>9} {'p99':>9} {'wall, ms':>9} {'p99':>9}")
        linear = {} if arguments.linear is None else {"linear": arguments.linear.resolve()}
        models = {"few": few, **linear, "many": draw_many(work / "many")}
        rows = {name: compare(name, folder, ways, titles, arguments.turns) for name, folder in models.items()}
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "load_before": load}
    content = {"machine": machine, "titles": TITLES, "turns": arguments.turns, "base_mb": size, "models": rows}
    RESULTS.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
