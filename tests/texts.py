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


def write_text_set(folder: Path) -> None:
    """Write a data folder in which three labels each have words of their own."""
    topics = {"olive oil": "olive oil press", "sea fish": "cod herring catch", "railway": "train track gauge"}
    folder.mkdir()
    for part, count in (("trn", 90), ("tst", 30)):
        lines = []
        for number in range(count):
            name, words = list(topics.items())[number % 3]
            lines.append(json.dumps({"text": f"report {number} on {words}", "labels": [name]}))
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
