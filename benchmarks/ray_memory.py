"""What the Ray engine holds in memory, by process, and whether it ends with the model of the in-process engine.

Each figure is the most that a process held at any of the moments when it was measured, from /proc/PID/smaps_rollup:
`anon` is its own memory, `file` its share of libraries and programs, `store` its share of what Ray keeps in shared
memory (Pss: a page that n processes use counts 1/n in each). The driver's most is that of making the data. Two
populations of the same data, one of fewer and one of more clients, show what a client costs.

    python benchmarks/ray_memory.py [--clients 2000] [--rounds 3] [--workers 2]
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("Pss_Anon", "Pss_File", "Pss_Shmem")
MIB = 1 << 20


def train(engine: str, clients: int, rounds: int, workers: int, out: str) -> None:
    """Run once in a process of its own, and print what the run was about."""
    from fedmlh.config import Config
    from fedmlh.data.source import open_dataset
    from fedmlh.engines.local import live_in_process
    from fedmlh.engines.run import run

    config = Config(
        name="many",
        device="cpu",
        synthetic_points=200_000,
        synthetic_features=5_000,
        synthetic_labels=2_000,
        partition="iid",
        num_clients=clients,
        clients_per_round=50,
        rounds=rounds,
        local_epochs=1,
        batch_size=20,
        update_codec="int8",
    )
    dataset = open_dataset(config)
    live = live_in_process
    if engine == "ray":
        from fedmlh.engines.ray import live_on_ray as live
    summary = run(config, dataset, out, engine=live, progress=False, workers=workers).summary
    parts = [m for split in (dataset.train, dataset.test) for m in (split.X, split.Y)]
    size = sum(array.nbytes for m in parts for array in (m.data, m.indices, m.indptr))
    figures = {name: summary[name] for name in ("precision", "bytes_up", "bytes_down", "seconds_per_round")}
    print(json.dumps({"data_bytes": size, "model_bytes": summary["model_bytes"], **figures}))


def descendants(root: int) -> list[int]:
    """Return a process and all processes that it has started, by their parents' numbers."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def look(process: int | str) -> tuple[str, dict[str, int]] | None:
    """Return what kind of process it is, and what it holds in bytes."""
    folder = Path("/proc") / str(process)
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        lines = dict(line.split(":") for line in (folder / "smaps_rollup").read_text().splitlines()[1:])
    except (OSError, ValueError):
        return None
    kind = "worker" if command.startswith("ray::Worker") else "driver" if __file__ in command else "Ray itself"
    return kind, {name: 1024 * int(lines[name].split()[0]) for name in KINDS}


def measure(engine: str, clients: int, rounds: int, workers: int, out: Path) -> dict:
    """Return the most that each process of a run held, and the results of the run."""
    command = [sys.executable, __file__, "--child", engine, "--out", str(out)]
    command += ["--clients", str(clients), "--rounds", str(rounds), "--workers", str(workers)]
    peaks: dict[tuple[str, int], dict[str, int]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            for process in descendants(child.pid):
                seen = look(process)
                if seen is not None:
                    kind, values = seen
                    peak = peaks.setdefault((kind, process), dict.fromkeys(KINDS, 0))
                    peaks[kind, process] = {name: max(peak[name], values[name]) for name in KINDS}
            time.sleep(0.2)
        if child.returncode:
            raise SystemExit(f"the run of {engine} failed")
        figures = json.loads(child.stdout.read().splitlines()[-1])
    weights = (out / "model" / "weights.safetensors").read_bytes()
    return {"peaks": peaks, "model": hashlib.sha256(weights).hexdigest(), **figures}


def main() -> None:
    """Measure both engines, with few clients and with many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--child", choices=("local", "ray"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        train(args.child, args.clients, args.rounds, args.workers, args.out)
        return
    command = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fedmlh.engines.ray"
    command += "; from ray_memory import look; print(sum(look('self')[1].values()))"
    bare = int(subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, check=True).stdout)
    print(f"a process that has imported the engine and done nothing: {bare / MIB:.0f} MiB")
    with tempfile.TemporaryDirectory() as place:
        for clients in (max(50, args.clients // 4), args.clients):
            models = {}
            for engine in ("local", "ray"):
                found = measure(engine, clients, args.rounds, args.workers, Path(place) / f"{engine}-{clients}")
                models[engine] = [found[name] for name in ("model", "precision", "bytes_up", "bytes_down")]
                print(
                    f"{engine}, {clients:,} clients, 50 per round: data {found['data_bytes'] / MIB:.0f} MiB, "
                    f"model {found['model_bytes'] / MIB:.1f} MiB, {found['seconds_per_round']:.2f} s per round"
                )
                groups: dict[str, list[dict[str, int]]] = {}
                for (kind, _), values in sorted(found["peaks"].items()):
                    groups.setdefault(kind, []).append(values)
                for kind, rows in groups.items():
                    each = [" + ".join(f"{row[name] / MIB:.0f}" for name in KINDS) for row in rows]
                    shown = each if kind != "Ray itself" else [f"{sum(sum(r.values()) for r in rows) / MIB:.0f} in all"]
                    print(f"  {kind:10} anon + file + store, MiB: {', '.join(shown)}")
            same = models["local"] == models["ray"]
            print(f"model, metrics and bytes of the two engines: {'the same to the bit' if same else 'DIFFERENT'}")
            if not same:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
