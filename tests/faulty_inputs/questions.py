"""Damaged results, wrong questions to a model, and places that cannot be written to."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, save_npz

from faulty_inputs.cases import Cases

CASES = Cases()
add = CASES.add


# Damaged results.


def reporting(name, change):
    def build(world, box, rng):
        run = world.copy("run", box / "run")
        content = change((run / name).read_bytes(), rng)
        (run / name).unlink() if content is None else (run / name).write_bytes(content)
        return ["report", str(run), "--out", str(box / "report.html")]

    return build


def summary(**changes):
    def change(content, rng):
        values = {**json.loads(content), **changes}
        return json.dumps({key: value for key, value in values.items() if value != "gone"}).encode()

    return reporting("summary.json", change)


SHOWN = (
    "name algorithm selection precision precision_paper precision_infrequent ndcg psp best_round model_bytes".split()
)
SHOWN += "bytes_up_to_best bytes_down_to_best paper_volume_bytes seconds_per_round".split()
for key in SHOWN:
    add(f"summary without {key}", summary(**{key: "gone"}), says="summary.json")
    if key not in ("name", "algorithm", "selection"):
        add(f"summary {key} a text", summary(**{key: "x"}), says="summary.json")
        add(f"summary {key} null", summary(**{key: None}), says="summary.json")
for name, content in {
    "empty": b"",
    "a list": b"[]",
    "a list of numbers": b"[1]",
    "pairs": b'[["name", "x"]]',
    "null": b"null",
    "a number": b"5",
    "a text": b'"x"',
    "an object": b"{}",
    "deep": b"[" * 200_000,
    "not UTF-8": b'{"name": "\xff"}',
}.items():
    add(f"summary {name}", reporting("summary.json", lambda old, rng, content=content: content), says="summary.json")
    if name != "empty":
        add(
            f"metrics {name}",
            reporting("metrics.jsonl", lambda old, rng, content=content: content),
            plots=True,
            says="metrics.jsonl",
        )
add("metrics empty", reporting("metrics.jsonl", lambda old, rng: b""), plots=True, says="metrics.jsonl")
add("metrics blank line", reporting("metrics.jsonl", lambda old, rng: old + b"\n"), plots=True, says="metrics.jsonl")
add("summary precision empty", summary(precision={}), says="summary.json")
add("summary precision of texts", summary(precision={"1": "a", "3": "b"}), says="summary.json")
add("summary precision of another k", summary(precision={"7": 0.5}), says="summary.json")
add("summary cut", reporting("summary.json", lambda old, rng: old[:-5]), says="summary.json")
add("metrics cut", reporting("metrics.jsonl", lambda old, rng: old[:-5]), plots=True, says="metrics.jsonl")
add("no summary", reporting("summary.json", lambda old, rng: None), says="has no summary.json")
add("no metrics", reporting("metrics.jsonl", lambda old, rng: None), says="has no metrics.jsonl")
add("no config", reporting("config.toml", lambda old, rng: None), says="config.toml")
add("config noise", reporting("config.toml", lambda old, rng: b"\xff"), says="config.toml")
add("report of nothing", lambda world, box, rng: ["report", str(box / "nowhere")], says="has no summary.json")
add("report of data", lambda world, box, rng: ["report", str(world.place / "xmc")], says="has no summary.json")


# Wrong questions.


def predicting(name, content, run="run", *arguments):
    def build(world, box, rng):
        (box / name).write_bytes(content)
        return [
            "predict",
            str(world.place / run),
            "--input",
            str(box / name),
            "--out",
            str(box / "answers.jsonl"),
            *arguments,
        ]

    return build


def npz_bytes(matrix):
    buffer = io.BytesIO()
    save_npz(buffer, csr_matrix(matrix))
    return buffer.getvalue()


for name, content, says in (
    ("points.txt", b"1 19 12\n0 1:1\n", "19 features"),
    ("points.txt", b"2 20 12\n0 1:1\n", "it may be cut short"),
    ("points.txt", b"1 20 12\n0 1:x\n", "line 2"),
    ("points.txt", b"0 20:1\n0 x\n", "line 2"),
    ("points.svm", b"0 1:1\n", "count from 0 or from 1"),
    ("points.svm", b"0 0:1 20:1\n", "feature"),
    ("points.svm", b"0 21:1\n", "feature"),
    ("points.svm", b"0 99999999999:1\n", "line 1"),
    ("points.npz", b"", "points.npz"),
    ("points.npz", b"PK\3\4", "points.npz"),
    ("points.npz", npz_bytes(np.ones((2, 19))), "19 features"),
    ("points.npz", npz_bytes(np.full((2, 20), np.nan)), "NaN"),
    ("points.jsonl", b'{"text": "a"}\n', "holds text"),
    ("points.csv", b"1,2\n", "should end in"),
    ("points", b"1 20 12\n0 1:1\n", "should end in"),
):
    add(f"predict {name} {content[:30]!r}", predicting(name, content), says=says)
for name, content, says in (
    ("points.jsonl", b'{"text": 5}\n', "line 1"),
    ("points.jsonl", b'{"text": "a"}\n{"labels": []}\n', "line 2"),
    ("points.jsonl", b"[]\n", "line 1"),
    ("points.jsonl", b"\xff\n", "line 1"),
    ("points.jsonl.gz", b'{"text": "a"}\n', "points.jsonl.gz"),
    ("points.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0)[:-4], "points.jsonl.gz"),
    ("points.txt", b"fine\n\xff\n", "line 2"),
    ("points.txt.gz", b"\x1f\x8b", "points.txt.gz"),
    ("points.npz", npz_bytes(np.ones((2, 20))), "holds features"),
    ("points.svm", b"0 1:1\n", "holds features"),
    ("points.pdf", b"%PDF", "should end in"),
):
    add(f"predict text {name} {content[:30]!r}", predicting(name, content, "textrun"), says=says)


def answers(count, labels=5):
    def check(world, box, stdout, stderr):
        lines = [json.loads(line) for line in (box / "answers.jsonl").read_text().splitlines()]
        assert [line.get("point", place) for place, line in enumerate(lines)] == list(range(count))
        assert all(len(line["labels"]) == labels for line in lines)

    return check


add("predict no text", predicting("points.jsonl", b"", "textrun"), passes=answers(0), must_pass=True)
add("predict empty texts", predicting("points.txt", b"\n\n", "textrun"), passes=answers(2, labels=0), must_pass=True)
add(
    "predict half a character",
    predicting("points.jsonl", b'{"text": "a"}\n{"text": "\\ud800"}\n', "textrun"),
    says="points.jsonl, line 2: is not JSON (a text in it holds half a character)",
)
add("predict odd text", predicting("points.jsonl", b'{"text": "\\u0000"}\n', "textrun"), passes=answers(1, labels=0))
add("predict no point", predicting("points.txt", b"0 20 12\n"), passes=answers(0), must_pass=True)
add("predict a blank point", predicting("points.txt", b"1 20 12\n\n"), passes=answers(1), must_pass=True)
for top in ("0", "-1", "10001", "x"):
    add(f"usage predict --top {top}", predicting("points.txt", b"1 20 12\n\n", "run", "--top", top), usage=True)
for arguments, says in (
    (["{run}"], "name what to label"),
    (["{run}", "--text", "a", "--input", "b"], "name what to label"),
    (["{run}", "--text", "a"], "not on text"),
    (["{run}", "--input", "{box}/nowhere"], "should be a file"),
    (["{run}", "--input", "{box}"], "should be a file"),
    (["{box}/nowhere", "--text", "a"], "is not a folder"),
    (["{box}", "--text", "a"], "holds no model"),
    (["{xmc}", "--text", "a"], "holds no model"),
    (["{unfinished}", "--text", "a"], "holds no model yet"),
    (["{run}/config.toml", "--text", "a"], "is not a folder"),
):
    add(
        f"predict {' '.join(arguments)}",
        lambda world, box, rng, arguments=arguments: [
            "predict",
            *(
                part.format(
                    run=world.place / "run", box=box, xmc=world.place / "xmc", unfinished=world.place / "stopped"
                )
                for part in arguments
            ),
        ],
        says=says,
    )
for data, says in (
    ("svmlight", ""),
    ("jsonl", "pass the data that the model was trained on"),
    ("run", "no data set recognised"),
):
    add(
        f"eval on {data}",
        lambda world, box, rng, data=data: ["eval", str(world.place / "run"), "--data", str(world.place / data)],
        says=says,
        **({"passes": lambda *_: None, "must_pass": True} if data == "svmlight" else {}),
    )


# Places that cannot be written to.


def occupy(box, how):
    """Name a path that is taken or cannot exist."""
    place = box / "taken"
    if how == "a file":
        place.write_text("mine")
    elif how == "a full folder":
        place.mkdir()
        (place / "note").write_text("mine")
    elif how == "below a file":
        place.write_text("mine")
        place = place / "below"
    elif how == "below a device":
        place = Path("/dev/null/below")
    elif how == "no place":
        place = Path("/proc/nowhere/below")
    elif how == "a long name":
        place = box / ("x" * 300)
    return str(place)


WRITERS = {
    "run": lambda world, out: ["run", str(world.place / "three.toml"), "--out", out],
    "run --resume": lambda world, out: ["run", str(world.place / "three.toml"), "--out", out, "--resume"],
    "compare": lambda world, out: ["compare", str(world.place / "three.toml"), "--out", out],
    "data convert": lambda world, out: ["data", "convert", str(world.place / "xmc"), out],
    "data synth": lambda world, out: ["data", "synth", out, "--points", "50", "--labels", "10", "--features", "50"],
}
for command, arguments in WRITERS.items():
    for how in ("a file", "a full folder", "below a file", "below a device", "no place", "a long name"):
        taken = lambda world, box, rng, arguments=arguments, how=how: arguments(world, occupy(box, how))  # noqa: E731
        add(f"{command} to {how}", taken)
for command in ("report", "predict"):
    for how in ("a full folder", "below a file", "below a device", "no place", "a long name"):

        def write_file(world, box, rng, command=command, how=how):
            out = occupy(box, how)
            if command == "report":
                return ["report", str(world.place / "run"), "--out", out]
            points = str(world.place / "xmc" / "test.txt")
            return [
                "predict",
                str(world.place / "run"),
                "--input",
                points,
                "--out",
                out if how != "a long name" else f"{out}.csv",
            ]

        add(f"{command} to {how}", write_file)
