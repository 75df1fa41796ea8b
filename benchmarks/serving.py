"""Questions to a served model over a real socket, and how long a server takes to be ready.

    python benchmarks/serving.py TITLES MODEL [--seconds 5]

TITLES is a folder of raw text, whose test titles are asked (EurLex titles); MODEL is a run that was trained on it:
`fedmlh run recommended --data TITLES --set feature_slots=12000 --out MODEL`. The server is `fedmlh serve` in a process
of its own, the client a plain loop over one connection. "312,330 labels" is a model with drawn weights and the sizes
that `recommended` takes for as many labels (`fedmlh plan --labels 312330`: 16 tables, 48 MiB). napkinXC's label tree is
asked in this process, without a socket, about the same titles as features that are made already.
"""

import argparse
import gzip
import http.client
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

import fedmlh
from fedmlh.data.dataset import Labels
from fedmlh.data.text import TextFeatures
from fedmlh.federated.task import Task
from fedmlh.runs.model_folder import Bundle

RESULT = Path(__file__).parent / "results" / "serving.json"
LARGE = 312_330
BATCH = 32


@contextmanager
def serve(model: Path, *options: str) -> Iterator[tuple[http.client.HTTPConnection, float]]:
    """Start a server; give a connection to it, and the seconds until it was ready."""
    with tempfile.NamedTemporaryFile() as log:
        began = time.perf_counter()
        command = [sys.executable, "-m", "fedmlh", "serve", f"model={model}", "--port", "0", *options]
        process = subprocess.Popen(command, stderr=log)
        try:
            while not (found := re.search(r"http://127.0.0.1:(\d+)/", Path(log.name).read_text())):
                assert process.poll() is None, Path(log.name).read_text()
                time.sleep(0.002)
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]))
            connection.request("GET", "/ready")
            assert connection.getresponse().read().startswith(b'{"status":"ready"')
            yield connection, time.perf_counter() - began
            connection.close()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def ask_native(connection: http.client.HTTPConnection, texts: Sequence[str]) -> Any:
    """Ask our own interface."""
    body = json.dumps({"texts": texts})
    connection.request("POST", "/api/projects/model/predict", body, {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())["results"]


def ask_annif(connection: http.client.HTTPConnection, texts: Sequence[str]) -> Any:
    """Ask as a client of Annif does."""
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/v1/projects/model/suggest", urlencode({"text": texts[0]}), kind)
    return [json.loads(connection.getresponse().read())["results"]]


def measure(ask: Callable[[Sequence[str]], Any], titles: Sequence[str], size: int, seconds: float) -> dict[str, float]:
    """Ask about titles, a number of them at a time, for some seconds; return milliseconds and titles per second."""
    took: list[float] = []
    for begin in range(0, 20 * size, size):
        assert len(ask(titles[begin : begin + size])) == size
    began, begin = time.perf_counter(), 0
    while (now := time.perf_counter()) - began < seconds:
        begin = (begin + size) % (len(titles) - size)
        ask(titles[begin : begin + size])
        took.append(1000 * (time.perf_counter() - now))
    low, high = np.quantile(took, [0.5, 0.99])
    rate = size * len(took) / (time.perf_counter() - began)
    return {"p50_ms": round(low, 2), "p99_ms": round(high, 2), "titles_per_second": round(rate), "requests": len(took)}


def measure_model(model: Path, titles: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return all figures of a served model."""
    ready = []
    for _ in range(3):
        with serve(model) as (_, took):
            ready.append(took)
    with serve(model) as (connection, _):
        return {
            "ready_seconds": round(statistics.median(ready), 2),
            "alone": measure(lambda texts: ask_native(connection, texts), titles, 1, seconds),
            "alone_annif": measure(lambda texts: ask_annif(connection, texts), titles, 1, seconds),
            "batches": measure(lambda texts: ask_native(connection, texts), titles, BATCH, seconds),
        }


def draw_large(folder: Path) -> None:
    """Write a model of many labels, with drawn weights."""
    text = TextFeatures.hashing()
    config = fedmlh.Config(num_tables=16, num_buckets=4471, feature_dim=4877, hidden_sizes=(83,), loss="balanced-bce")
    task = Task(config, text.num_features, LARGE)
    weights = np.random.default_rng(0).normal(scale=0.1, size=task.stack.num_parameters).astype(np.float32)
    fedmlh.Model(Bundle(task, task.draw_seeds(), weights, Labels.numbered(LARGE), text, "drawn", None)).save(folder)


def measure_napkinxc(titles: Path, texts: Sequence[str], seconds: float) -> dict[str, float]:
    """Ask a label tree of napkinXC, trained with its defaults, in this process."""
    from napkinxc.models import PLT
    from scipy.sparse import csr_matrix

    data = fedmlh.load(titles)
    rows = TextFeatures.hashing().read(texts)
    features = csr_matrix((rows.values, rows.columns, rows.starts), shape=(len(rows), rows.width))
    with tempfile.TemporaryDirectory() as folder:
        tree = PLT(folder, verbose=False)
        tree.fit(data.train.X, data.train.Y)
        numbers = {text: number for number, text in enumerate(texts)}

        def ask(some: Sequence[str]) -> Any:
            return tree.predict_proba(features[[numbers[text] for text in some]], top_k=5)

        alone = measure(ask, texts, 1, seconds)
        return {"alone": alone, "batches": measure(ask, texts, BATCH, seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("titles", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each figure is taken")
    given = parser.parse_args()
    with gzip.open(given.titles / "tst.jsonl.gz", "rt") as lines:
        titles = list(dict.fromkeys(json.loads(line)["text"] for line in lines))
    found: dict[str, Any] = {"cores": os.cpu_count(), "machine": platform.processor() or platform.machine()}
    found["numba"] = has_numba()
    found["4,072 labels"] = measure_model(given.model, titles, given.seconds)
    print(json.dumps(found["4,072 labels"], indent=1), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        draw_large(Path(folder) / "large")
        found["312,330 labels"] = measure_model(Path(folder) / "large", titles, given.seconds)
    print(json.dumps(found["312,330 labels"], indent=1), flush=True)
    found["napkinXC, in process"] = measure_napkinxc(given.titles, titles, given.seconds)
    print(json.dumps(found["napkinXC, in process"], indent=1), flush=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


def has_numba() -> bool:
    """Say whether the compiled decoder is at hand."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
