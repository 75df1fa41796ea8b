"""One round gives the same bits in process and on Ray, whatever is lost on the way."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from careless import careless
from fedmlh.engines.run import run
from fedmlh.federated.messages import Reason
from once import BASE, DATA, VARIANTS, differing, left


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each variant, run in process."""
    folder = tmp_path_factory.mktemp("in-process")
    for name, config in VARIANTS.items():
        run(config, DATA, folder / name, workers=2)
    return {name: folder / name for name in VARIANTS}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    from fedmlh.engines import ray_cluster

    with contextlib.ExitStack() as life:
        with careless():
            life.enter_context(ray_cluster.start_cluster(3))
        yield ray
        with careless():
            life.close()


@pytest.mark.parametrize(
    ("name", "workers"), [("labels", 3), ("buckets", 2), ("labels", 1), ("labels, held out", 2), ("corrected", 2)]
)
def test_on_ray_the_run_is_that_in_process(
    name: str, workers: int, in_process: dict[str, Path], cluster: Any, tmp_path: Path
) -> None:
    from fedmlh.engines.ray import live_on_ray

    run(VARIANTS[name], DATA, tmp_path / "ray", engine=live_on_ray, workers=workers)
    assert differing(in_process[name], tmp_path / "ray") == []


def test_a_worker_that_is_killed_is_replaced_and_its_client_asked_again(
    in_process: dict[str, Path], cluster: Any, tmp_path: Path
) -> None:
    """A worker is stopped before it can answer a request for sums, then killed."""
    from fedmlh.engines import ray as engine

    seen = []

    class Shot(engine.RayClients):
        def exchange(self, sampled: Any, post: Any) -> Any:
            pids = cluster.get([worker.pid.remote() for worker in self.workers])
            seen.append(pids)
            if post.place == (1, 1):
                os.kill(pids[0], signal.SIGSTOP)
                threading.Timer(1, os.kill, (pids[0], signal.SIGKILL)).start()
            yield from super().exchange(sampled, post)
            seen.append(cluster.get([worker.pid.remote() for worker in self.workers]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "RayClients", Shot)
        run(VARIANTS["labels"], DATA, tmp_path / "ray", engine=engine.live_on_ray, workers=2)
    assert len(set(seen[0]) & set(seen[-1])) == 1, "one of the two workers is another one now"
    assert differing(in_process["labels"], tmp_path / "ray") == []


def test_a_client_that_fails_or_takes_workers_down_is_left_out_and_named(cluster: Any, tmp_path: Path) -> None:
    from fedmlh.engines import ray as engine

    class Fragile(engine.Worker):
        def answer(self, work: Any) -> Any:
            if work.clients == [2]:
                os._exit(1)
            return super().answer(work)

    class Crossed(engine.ClusterPoints):
        def member(self, client_id: int) -> Any:
            return super().member(5 if client_id == 3 else client_id)

    cluster.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Worker", Fragile)
        patch.setattr(engine, "ClusterPoints", Crossed)
        patch.setattr(engine, "MAX_LOSSES", 1)
        run(BASE, DATA, tmp_path / "ray", engine=engine.live_on_ray, workers=1)
    found = left(tmp_path / "ray")
    assert found["metrics 1 clients"] == [0, 1, 4, 5]
    refused = {(entry["client"], entry["reason"]) for entry in found["metrics 1 refused"]}
    assert refused == {(2, Reason.FAILED), (3, Reason.CLIENT)}
