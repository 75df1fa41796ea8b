"""Texts with labels for a server and two sites, and files of them."""

import json
from pathlib import Path

#: Each site has a label that nobody else knows; Ångström is written in two ways that mean the same.
TEXTS = {
    "server": [("olive oil", ["oil"]), ("wheat and rye", ["cereal"]), ("milk", ["dairy"]), ("light", ["Ångström"])],
    "north": [("virgin olive oil", ["oil"]), ("wheat prices", ["cereal"]), ("a ray", ["A\u030angstro\u0308m"])],
    "south": [("rye bread", ["cereal"]), ("cheese from milk", ["dairy"]), ("a goat", ["goat"])],
}
CATALOGUE = ("oil", "cereal", "dairy", "Ångström", "never seen")


def write_text(folder: Path, lines: list[tuple[str, list[str]]], labels: tuple[str, ...] = ()) -> Path:
    folder.mkdir(parents=True)
    content = "".join(json.dumps({"text": text, "labels": names}) + "\n" for text, names in lines)
    for part in ("trn", "tst"):
        (folder / f"{part}.jsonl").write_text(content)
    if labels:
        (folder / "labels.txt").write_text("".join(label + "\n" for label in labels))
    return folder
