"""On Ray a run gives the bits that it gives in process, however many workers there are and whichever of them die."""

import contextlib
import json
import os
import signal
import sys
import threading

import numpy as np
import pytest
import torch

from careless import careless
from command_line import call
from fedmlh.data.division import divide
from fedmlh.data.source import open_dataset
from fedmlh.engines.replay import read_log, replay
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.messages import Reason
from fedmlh.federated.sharing import encode_points
from fedmlh.federated.task import Task
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.population import Population
from tiny import TINY

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
from fedmlh.engines import ray as engine  # noqa: E402
from fedmlh.engines import ray_cluster  # noqa: E402

BASE = TINY.replace(
    partition="dirichlet",
    num_clients=9,
    clients_per_round=5,
)
#: Clients keep a residual and the model, or a control; squares of updates count; weights are not all one.
VARIANTS = {
    "changes": BASE.replace(
        update_codec="topk-20%+zlib",
        broadcast_codec="int8+zlib",
        weighting="examples",
        server_optimizer="fedexp",
        shared_fraction=0.1,
    ),
    "grid": BASE.replace(update_codec="grid-100%", broadcast_codec="grid-150%"),
    "scaffold": BASE.replace(update_codec="fp16", correction="scaffold", optimizer="sgd", learning_rate=0.1),
}
DATA = open_dataset(BASE)


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    with contextlib.ExitStack() as life:
        with careless():
            life.enter_context(ray_cluster.start_cluster(3))
        yield
        with careless():
            life.close()


def left(folder):
    """Return all that a run leaves, without time and memory: model, metrics, participation and state."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = {"participation": (folder / "participation.jsonl").read_text()}
    for record in records:
        found |= {f"{record['round']} {key}": value for key, value in record.items() if not key.startswith("seconds")}
    newest = max((folder / "checkpoint").glob("round-??????"))
    for path in (*(folder / "model").iterdir(), *newest.glob("*.safetensors"), *newest.glob("*.bin")):
        found[path.name] = path.read_bytes()
    return found


def differing(a, b):
    a, b = left(a), left(b)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_equals_the_one_in_process(name, tmp_path):
    run(VARIANTS[name], DATA, tmp_path / "local")
    workers = {"changes": 3, "grid": 2, "scaffold": 1}[name]
    run(VARIANTS[name], DATA, tmp_path / "ray", engine=engine.live_on_ray, workers=workers)
    assert differing(tmp_path / "local", tmp_path / "ray") == []
    assert list((tmp_path / "ray" / "checkpoint").glob("*/client-*")), "clients kept something"


def test_a_worker_that_dies_in_a_round_is_replaced_and_a_run_can_change_engines(tmp_path):
    """A round in process, one on Ray in which a worker, stopped before it can answer, is killed, and the last one."""
    config = VARIANTS["changes"]
    run(config, DATA, tmp_path / "whole")
    run(config.replace(rounds=1), DATA, tmp_path / "run")
    seen = []

    class Shot(engine.RayClients):
        def exchange(self, sampled, outbox):
            pids = ray.get([worker.pid.remote() for worker in self.workers])
            seen.append(pids)
            if outbox.place[0] == 2:
                os.kill(pids[0], signal.SIGSTOP)
                threading.Timer(1, os.kill, (pids[0], signal.SIGKILL)).start()
            yield from super().exchange(sampled, outbox)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "RayClients", Shot)
        run(config, DATA, tmp_path / "run", engine=engine.live_on_ray, workers=2, resume=True)
    assert len(seen) == 2
    assert len(set(seen[0]) & set(seen[1])) == 1, "one of the two workers is another one now"
    assert differing(tmp_path / "run", tmp_path / "whole") == []


@pytest.mark.slow
def test_a_client_that_takes_workers_down_is_left_out_and_named(tmp_path):
    victim = 4

    class Fragile(engine.Worker):
        def answer(self, work):
            if victim in work.clients:
                os._exit(1)
            return super().answer(work)

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    config = BASE.replace(rounds=1, clients_per_round=len(divide(DATA.train, BASE).shards))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Worker", Fragile)
        patch.setattr(engine, "MAX_LOSSES", 1)
        run(config, DATA, tmp_path / "ray", engine=engine.live_on_ray, workers=1)
    (line,) = (json.loads(line) for line in (tmp_path / "ray" / "participation.jsonl").read_text().splitlines())
    assert [(entry["client"], entry["reason"]) for entry in line["refused"]] == [(victim, Reason.FAILED)]
    assert line["accepted"] == [client for client in line["sampled"] if client != victim]
    replay(*read_log(RunFolder(tmp_path / "ray")), DATA, tmp_path / "again")
    sent = [RunFolder(tmp_path / name).read_metrics()[0]["bytes_down"] for name in ("ray", "again")]
    assert sent[0] == sent[1], "a client that was lost has been sent the round all the same"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"feature_map": "per-table", "feature_signed": True, "normalize": True},
        {"feature_map": "none", "shared_fraction": 0.2},
        {"algorithm": "fedavg", "shared_fraction": 0.2},
    ],
)
def test_a_client_finds_in_the_stock_what_it_would_have_made_of_its_points(settings):
    config = BASE.replace(**settings)
    division = divide(DATA.train, config)
    task = Task(config, DATA.num_features, DATA.num_labels)
    shared = encode_points(division.shared) if len(division.shared) else b""
    population = Population(task, task.draw_seeds(), division.shards, shared, DATA.labels, torch.device("cpu"))
    points = engine.ClusterPoints.gather(population)
    for number in division.shards:
        expected, found = population.member(number).prepare(population.seeds), points.shard(number)
        assert points.count(number) == len(found)
        for one, two in zip(expected.features + expected.buckets, found.features + found.buckets, strict=True):
            assert one.shape == two.shape
            for part in ("data", "indices", "indptr"):
                assert getattr(one, part).dtype == getattr(two, part).dtype
                np.testing.assert_array_equal(getattr(one, part), getattr(two, part))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--engine", "rocket"), "there is no engine 'rocket'"),
        (("--ray-address", "127.0.0.1:6379"), "pass --engine ray as well"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options, sentence, tmp_path, capsys):
    assert call("run", "demo", "--out", tmp_path / "x", *options) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray.invalid:6379", ""])
def test_where_there_is_no_cluster_it_is_said_at_once(address):
    with pytest.raises(UserError, match="there is no Ray cluster at"), ray_cluster.join_cluster(address):
        pass
