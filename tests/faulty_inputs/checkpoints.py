"""Damaged checkpoints."""

import json
import re
import shutil

from safetensors.torch import load as load_tensors

from faulty_inputs.cases import Cases, cut, flip
from faulty_inputs.models import MODEL, seal, tensors, write_manifest
from faulty_inputs.world import toml

CASES = Cases()
add = CASES.add


def resuming(change, both=True):
    """Resume a run with two of three rounds done, after something was done to it."""

    def build(world, box, rng):
        out = world.copy("stopped", box / "out")
        for generation in sorted((out / "checkpoint").iterdir(), reverse=True)[: 2 if both else 1]:
            change(generation, rng, world)
        return ["run", str(world.place / "three.toml"), "--out", str(out), "--resume"]

    return build


def falls_back(world, box, stdout, stderr):
    told = "".join(stderr.split())
    assert re.search("round-000002.*resumingfromthecheckpointbeforeit", told), stderr
    equals_unbroken(world, box, stdout, stderr)


def equals_unbroken(world, box, stdout, stderr):
    for name in MODEL:
        assert (box / "out" / "model" / name).read_bytes() == (world.place / "three" / "model" / name).read_bytes()


def state(**changes):
    def change(folder, rng, world):
        values = {**json.loads((folder / "state.json").read_bytes()), **changes}
        seal(folder, state__json=json.dumps({key: value for key, value in values.items() if value != "gone"}).encode())

    return change


def model(make, name="model.safetensors"):
    def change(folder, rng, world):
        old = load_tensors((folder / name).read_bytes())["model"]
        seal(folder, **{name.replace(".", "__"): make(old)})

    return change


def keep_old(folder, rng, world):
    """Put the manifest of the generation before in place of its own."""
    shutil.copy(folder.with_name("round-000001") / "manifest.json", folder / "manifest.json")


for name, change in {
    "noise for the state": lambda folder, rng, world: (folder / "state.json").write_bytes(rng.bytes(99)),
    "model flipped": lambda folder, rng, world: (folder / "model.safetensors").write_bytes(
        flip((folder / "model.safetensors").read_bytes(), rng)
    ),
    "manifest cut": lambda folder, rng, world: (folder / "manifest.json").write_bytes(
        cut((folder / "manifest.json").read_bytes(), rng)
    ),
    "state of another run": lambda folder, rng, world: seal(
        folder, state__json=(world.place / "other" / "checkpoint" / folder.name / "state.json").read_bytes()
    ),
    "all of another run": lambda folder, rng, world: [
        shutil.rmtree(folder),
        shutil.copytree(world.place / "other" / "checkpoint" / folder.name, folder),
    ],
    "nothing in it": lambda folder, rng, world: [path.unlink() for path in folder.iterdir()],
    "no files": lambda folder, rng, world: write_manifest(folder, {}),
    "a list of files": lambda folder, rng, world: write_manifest(folder, []),
    "a newer version": lambda folder, rng, world: write_manifest(folder, {}, 2),
    "state a list": lambda folder, rng, world: seal(folder, state__json=b"[]"),
    "state deep": lambda folder, rng, world: seal(folder, state__json=b"[" * 200_000),
    "no round": state(round="gone"),
    "no history": state(history="gone"),
    "no run": state(run="gone"),
    "round a text": state(round="2"),
    "round negative": state(round=-1),
    "round a fraction": state(round=1.5),
    "round null": state(round=None),
    "round far ahead": state(round=10**9),
    "accepted a list": state(accepted=[1]),
    "accepted short": state(accepted={"0": [1]}),
    "accepted of texts": state(accepted={"0": ["a", "b"]}),
    "accepted of nobody": state(accepted={"x": [1, 0]}),
    "memories a list": state(memories=[1]),
    "memories of nobody": state(memories={"x": []}),
    "memories of numbers": state(memories={"0": 5}),
    "history a text": state(history="x"),
    "history of numbers": state(history=[1, 2]),
    "history empty": state(history=[]),
    "history of one": state(history=[{"round": 1}]),
    "best score a text": state(best_score="high"),
    "best score null": state(best_score=None),
    "best round a text": state(best_round="x"),
    "best round far": state(best_round=99),
    "model too short": model(lambda old: tensors(model=old[:-1])),
    "model of doubles": model(lambda old: tensors(model=old.double())),
    "model of whole numbers": model(lambda old: tensors(model=old.long())),
    "model not finite": model(lambda old: tensors(model=old * float("nan"))),
    "model misnamed": model(lambda old: tensors(weights=old)),
    "model noise": model(lambda old: b"noise"),
    "best too short": model(lambda old: tensors(model=old[:-1]), "best.safetensors"),
    "best of whole numbers": model(lambda old: tensors(model=old.long()), "best.safetensors"),
}.items():
    add(f"checkpoints: {name}", resuming(change))
    add(f"newest checkpoint: {name}", resuming(change, both=False), passes=falls_back, must_pass=True)
add("newest checkpoint: older manifest", resuming(keep_old, both=False), passes=falls_back, must_pass=True)
add(
    "checkpoints: sealed again",
    resuming(lambda folder, rng, world: seal(folder)),
    passes=equals_unbroken,
    must_pass=True,
)


def changing(path, content):
    """Resume the stopped run with another file in place of one of its own."""

    def build(world, box, rng):
        out = world.copy("stopped", box / "out")
        (out / path).write_bytes(content)
        return ["run", str(world.place / "three.toml"), "--out", str(out), "--resume"]

    return build


add("resume: config cut", changing("config.toml", b"rounds = "), says="is not valid TOML")
add("resume: config noise", changing("config.toml", b"\xff\xfe"), says="UTF-8")
add("resume: config unknown", changing("config.toml", b"nonsense = 1"), says="there is no setting 'nonsense'")
add("resume: config of another", changing("config.toml", toml(rounds=3, seed=5).encode()), says="seed = 5")
add("resume: metrics noise", changing("metrics.jsonl", b"\xff\xfe"), passes=equals_unbroken, must_pass=True)
