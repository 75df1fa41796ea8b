"""Damaged models."""

import hashlib
import json
import shutil

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from faulty_inputs.cases import Cases, append, cut, flip, garble
from faulty_inputs.world import P, toml

CASES = Cases()
add = CASES.add


def seal(folder, **changes):
    """Change files of a sealed folder and seal it again, as an attacker or another program would."""
    for name, content in changes.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    names = sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    write_manifest(folder, digests)


def write_manifest(folder, files, version=1):
    manifest = json.dumps({"version": version, "files": files}, indent=1, sort_keys=True)
    (folder / "manifest.json").write_text(manifest)


def asking(change, command="predict"):
    """Ask a trained model to which something was done."""

    def build(world, box, rng):
        folder = world.copy("run/model", box / "model")
        change(folder, rng, world)
        if command == "eval":
            return ["eval", str(folder), "--data", str(world.place / "xmc")]
        return [
            "predict",
            str(folder),
            "--input",
            str(world.place / "xmc" / "test.txt"),
            "--out",
            str(box / "out.jsonl"),
        ]

    return build


MODEL = ("manifest.json", "model.json", "config.toml", "labels.json", "weights.safetensors")
for file in MODEL:
    for number, damage in enumerate((flip, flip, flip, cut, garble, append)):

        def spoil(folder, rng, world, file=file, damage=damage):
            (folder / file).write_bytes(damage((folder / file).read_bytes(), rng))

        add(
            f"model {file} {damage.__name__} {number}", asking(spoil, "eval" if number % 2 else "predict"), says="model"
        )
    add(f"model without {file}", asking(lambda folder, rng, world, file=file: (folder / file).unlink()), says="model")
    if file != "labels.json":  # which is the same there
        others = asking(lambda folder, rng, world, f=file: shutil.copy(world.place / "other" / "model" / f, folder / f))
        add(f"model with another's {file}", others, says="model")


def about(**changes):
    """Write the model's description with other values, and seal it."""

    def change(folder, rng, world):
        values = {**json.loads((folder / "model.json").read_bytes()), **changes}
        seal(folder, model__json=json.dumps(values).encode())

    return change


def weights(make):
    def change(folder, rng, world):
        old = load_tensors((folder / "weights.safetensors").read_bytes())["weights"]
        seal(folder, weights__safetensors=make(old))

    return change


def tensors(**named):
    return save_tensors({name: tensor.contiguous() for name, tensor in named.items()})


SEEDS = {"run": 0, "labels": [1, 2], "features": [3]}
for name, change in {
    "num_features 19": about(num_features=19),
    "num_features text": about(num_features="many"),
    "num_features null": about(num_features=None),
    "num_features infinite": about(num_features=float("inf")),
    "num_features negative": about(num_features=-1),
    "num_labels 11": about(num_labels=11),
    "num_labels huge": about(num_labels=10**30),
    "num_labels 0": about(num_labels=0),
    "seeds missing": about(seeds=None),
    "seeds a list": about(seeds=[1, 2]),
    "label seeds too few": about(seeds={**SEEDS, "labels": [1]}),
    "label seeds too many": about(seeds={**SEEDS, "labels": [1, 2, 3]}),
    "label seeds texts": about(seeds={**SEEDS, "labels": ["a", "b"]}),
    "label seeds negative": about(seeds={**SEEDS, "labels": [-1, -2]}),
    "label seeds huge": about(seeds={**SEEDS, "labels": [2**70, 2**71]}),
    "label seeds lists": about(seeds={**SEEDS, "labels": [[1], [2]]}),
    "feature seeds none": about(seeds={**SEEDS, "features": []}),
    "feature seeds text": about(seeds={**SEEDS, "features": "x"}),
    "feature seeds floats": about(seeds={**SEEDS, "features": [0.5]}),
    "text of nothing": about(text={}),
    "text of a list": about(text=[]),
    "text of another kind": about(text={"kind": "magic", "dim": 20}),
    "text of another size": about(text={"kind": "hashing", "dim": 10**12}),
    "model.json a list": lambda folder, rng, world: seal(folder, model__json=b"[]"),
    "model.json null": lambda folder, rng, world: seal(folder, model__json=b"null"),
    "model.json not UTF-8": lambda folder, rng, world: seal(folder, model__json=b'{"a": "\xff"}'),
    "model.json deep": lambda folder, rng, world: seal(folder, model__json=b"[" * 200_000),
    "model.json empty": lambda folder, rng, world: seal(folder, model__json=b""),
    "labels a list": lambda folder, rng, world: seal(folder, labels__json=b"[]"),
    "labels numbers": lambda folder, rng, world: seal(
        folder, labels__json=json.dumps({"keys": list(range(P)), "names": list(range(P))}).encode()
    ),
    "labels of other lengths": lambda folder, rng, world: seal(
        folder, labels__json=json.dumps({"keys": ["k"] * P, "names": ["k"] * (P - 1)}).encode()
    ),
    "labels too few": lambda folder, rng, world: seal(folder, labels__json=b'{"keys": ["a"], "names": ["a"]}'),
    "labels a text": lambda folder, rng, world: seal(folder, labels__json=b'{"keys": "abcdefghijkl", "names": 5}'),
    "config of nothing": lambda folder, rng, world: seal(folder, config__toml=b""),
    "config unknown": lambda folder, rng, world: seal(folder, config__toml=b"nonsense = 1"),
    "config broken": lambda folder, rng, world: seal(folder, config__toml=b"="),
    "config not UTF-8": lambda folder, rng, world: seal(folder, config__toml=b"\xff"),
    "config of more buckets": lambda folder, rng, world: seal(folder, config__toml=toml(num_buckets=6).encode()),
    "config of one table": lambda folder, rng, world: seal(folder, config__toml=toml(num_tables=1).encode()),
    "weights too few": weights(lambda old: tensors(weights=old[:-1])),
    "weights too many": weights(lambda old: tensors(weights=torch.cat([old, old]))),
    "weights square": weights(lambda old: tensors(weights=old[:, None])),
    "weights named otherwise": weights(lambda old: tensors(model=old)),
    "weights of halves": weights(lambda old: tensors(weights=old.half())),
    "weights of doubles": weights(lambda old: tensors(weights=old.double())),
    "weights of whole numbers": weights(lambda old: tensors(weights=old.long())),
    "weights not finite": weights(lambda old: tensors(weights=old * float("nan"))),
    "weights noise": lambda folder, rng, world: seal(folder, weights__safetensors=rng.bytes(500)),
    "weights empty": lambda folder, rng, world: seal(folder, weights__safetensors=b""),
    "weights of a huge header": lambda folder, rng, world: seal(folder, weights__safetensors=b"\xff" * 8 + b"{}"),
    "weights a pickle": lambda folder, rng, world: seal(folder, weights__safetensors=b"cos\nsystem\n(S'true'\ntR."),
    "manifest with a list": lambda folder, rng, world: write_manifest(folder, []),
    "manifest with nothing": lambda folder, rng, world: write_manifest(folder, None),
    "manifest with a text": lambda folder, rng, world: write_manifest(folder, "x"),
    "manifest with no files": lambda folder, rng, world: write_manifest(folder, {}),
    "manifest of version 2": lambda folder, rng, world: write_manifest(folder, {}, 2),
    "manifest of version null": lambda folder, rng, world: write_manifest(folder, {}, None),
    "manifest above": lambda folder, rng, world: write_manifest(folder, {"../x": "0"}),
    "manifest absolute": lambda folder, rng, world: write_manifest(folder, {"/etc/passwd": "0"}),
    "manifest of a null byte": lambda folder, rng, world: write_manifest(folder, {"a\0b": "0"}),
    "manifest of half a letter": lambda folder, rng, world: write_manifest(folder, {"\ud800": "0"}),
    "manifest of a long name": lambda folder, rng, world: write_manifest(folder, {"x" * 5000: "0"}),
    "manifest of dots": lambda folder, rng, world: write_manifest(folder, {"..": "0", ".": "0", "": "0"}),
    "manifest with numbers": lambda folder, rng, world: write_manifest(folder, {"model.json": 5}),
    "manifest deep": lambda folder, rng, world: (folder / "manifest.json").write_bytes(b"[" * 200_000),
    "manifest a folder": lambda folder, rng, world: [
        (folder / "manifest.json").unlink(),
        (folder / "manifest.json").mkdir(),
    ],
}.items():
    add(f"model sealed: {name}", asking(change))
add("model sealed: unchanged", asking(lambda folder, rng, world: seal(folder)), must_pass=True, passes=lambda *_: None)
