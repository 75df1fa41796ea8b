"""What each codec makes of one real update: python experiments/codecs.py DATA experiments/results/codecs.json

The update is that of the first client in round 3, with the preset eurlex-4k, softmax and a feature map a table.
"""

import json
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from fedmlh import Config, run
from fedmlh.data.source import open_dataset
from fedmlh.federated.client import Assignment, Client
from fedmlh.federated.codecs import make_codec
from fedmlh.randomness import generator

CODECS = "fp32 fp16 int8 int4 int2 topk-10% topk-1% sketch-25% sketch-10%".split()
#: These compress by themselves.
GRIDS = "grid-50% grid-100% grid-150% grid-199%".split()
ROUND = 3
DRAWS = 20


def main() -> None:
    """Measure bytes, relative error of one encoding and of the mean of many, and seconds."""
    change = find_update(sys.argv[1])
    names = [name + suffix for name in CODECS for suffix in ("", "+zlib")] + GRIDS
    rows = [measure(name, change) for name in names]
    machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    result = {"machine": machine, "num_parameters": len(change), "draws": DRAWS, "codecs": rows}
    Path(sys.argv[2]).write_text(json.dumps(result, indent=1) + "\n")
    print("| codec | bytes | bits a value | error of one | error of the mean of 20 | encode, ms | decode, ms |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| `{row['codec']}` | {row['bytes']:,} | {row['bits']:.2f} | {row['error']:.4f} | {row['error_mean']:.4f} "
            f"| {row['encode_ms']:.0f} | {row['decode_ms']:.0f} |"
        )


def find_update(data: str) -> Tensor:
    """The change of the model that a client would send."""
    config = Config.load("eurlex-4k").replace(
        data=data, rounds=ROUND, loss="softmax", feature_map="per-table", learning_rate=0.003, device="cpu"
    )
    found: dict[tuple[int, int], Tensor] = {}
    reply = Client.reply

    def watched(self: Client, work: Assignment, trained: Tensor, loss: float) -> object:
        found[-work.header.round, self.client_id] = trained - work.model
        return reply(self, work, trained, loss)

    Client.reply = watched
    with tempfile.TemporaryDirectory() as folder:
        run(config, open_dataset(config), Path(folder) / "run")
    return found[min(found)]


def measure(name: str, change: Tensor) -> dict[str, object]:
    """One codec on one vector."""
    codec, total, sizes, spent = make_codec(name), torch.zeros(len(change)), [], [0.0, 0.0]
    for draw in range(DRAWS):
        started = time.perf_counter()
        payload = codec.encode(change, generator(0, "experiment", draw))
        encoded = time.perf_counter()
        decoded = codec.decode(memoryview(payload), len(change), generator(0, "experiment", draw))
        spent[0] += encoded - started
        spent[1] += time.perf_counter() - encoded
        sizes.append(len(payload))
        error = float((decoded - change).norm() / change.norm())
        total += decoded
    size = sum(sizes) / DRAWS
    return {
        "codec": name,
        "bytes": round(size),
        "bits": round(8 * size / len(change), 3),
        "error": round(error, 5),
        "error_mean": round(float((total / DRAWS - change).norm() / change.norm()), 5),
        "encode_ms": round(1000 * spent[0] / DRAWS, 1),
        "decode_ms": round(1000 * spent[1] / DRAWS, 1),
    }


if __name__ == "__main__":
    main()
