"""A contestant of `peers.py`: rounds in Flower's simulation over Ray, as its users write them.

Flower looks for messages and for replies every 0.1 s, and offers no setting for it.
"""

import json
import sys
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers import CLIENTS, Tables, load, load_dense, order
from rounds import BATCH, RATE


def make_client(*, easy: bool) -> ClientApp:
    """Return a client that trains the model it is sent on its partition; `easy`: input made dense, fused Adam."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        work = load()
        model = Tables(work.stack, work.start)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        step = torch.optim.Adam(model.parameters(), lr=RATE, fused=easy)
        points = order(int(message.content["config"]["server-round"]), number).ravel()
        for begin in range(0, len(points), BATCH):
            rows = points[begin : begin + BATCH]
            if easy:
                batch = [part[rows] for part in load_dense(number)]
            else:
                shard = work.shards[number]
                batch = [torch.from_numpy(part[rows].toarray()) for part in (*shard.features, *shard.buckets)]
            step.zero_grad()
            model.loss(*batch).backward()
            step.step()
        metrics = MetricRecord({"loss": model.take_loss(), "num-examples": len(points)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def make_server(rounds: int, target: Path) -> ServerApp:
    """Return FedAvg over all clients; the end of each round and the loss of the first one go to a file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        work = load()
        moments: list[float] = []

        def stamp(server_round: int, arrays: ArrayRecord) -> None:
            moments.append(time.perf_counter())  # Flower calls it before the first round and after each

        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        start = ArrayRecord(Tables(work.stack, work.start).state_dict())
        result = strategy.start(grid, start, rounds, evaluate_fn=stamp)
        loss = result.train_metrics_clientapp[1]["loss"]
        target.write_text(json.dumps({"moments": moments, "loss": loss}))

    return app


def run(form: str, rounds: int, target: Path) -> None:
    """Run this many rounds with one CPU per client."""
    run_simulation(
        make_server(rounds, target),
        make_client(easy=form == "easy"),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1}},
    )


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
