"""Write a small data set: titles with their subjects, made up for two libraries. `python examples/make_books.py`."""

import json
import random
from pathlib import Path

#: For each library its subjects, each with the words that titles use for it.
LIBRARIES = {
    "city": {
        "birds": ["birds", "storks", "geese"],
        "cooking": ["cooking", "recipes", "kitchens"],
        "cycling": ["bicycles", "cycling", "cycle paths"],
        "fishing": ["fishing", "herring", "boats"],
        "gardening": ["gardens", "roses", "vegetables"],
        "music": ["songs", "choirs", "guitars"],
        "railways": ["railways", "locomotives", "night trains"],
        "wine": ["wine", "vineyards", "grapes"],
    },
    "university": {
        "birds": ["birds", "bird migration", "geese"],
        "fishing": ["fisheries", "herring", "trawlers"],
        "forestry": ["forests", "timber", "oak"],
        "geology": ["rocks", "earthquakes", "volcanoes"],
        "law": ["law", "courts", "contracts"],
        "medicine": ["medicine", "hospitals", "nursing"],
        "railways": ["railways", "rail freight", "stations"],
        "taxes": ["taxes", "customs", "revenue"],
    },
}
PLACES = ["Austria", "Estonia", "Finland", "Greece", "Ireland", "Italy", "Norway", "Poland", "Portugal", "Spain"]
TITLES = ["{} in {}", "A history of {} in {}", "{}: a guide to {}", "Notes on {} from {}", "The {} of {}"]


def make_book(library, rng):
    """Return a title and its subjects: topic, place, and both together. Cataloguers forget one in ten."""
    topic, place = rng.choice(sorted(LIBRARIES[library])), rng.choice(PLACES)
    title = rng.choice(TITLES).format(rng.choice(LIBRARIES[library][topic]), place)
    return title, [subject for subject in (topic, place, f"{topic}, {place}") if rng.random() < 0.9]


def make_books():
    """Return titles, the subjects of each, and the library that each is from: always the same 1,000."""
    titles, subjects, owners = [], [], []
    for library in LIBRARIES:
        rng = random.Random(library)
        for _ in range(500):
            title, found = make_book(library, rng)
            titles.append(title)
            subjects.append(found)
            owners.append(library)
    return titles, subjects, owners


def write_books(folder):
    """Write a folder per library: 400 titles to learn from, 100 to test on."""
    titles, subjects, owners = make_books()
    for library in LIBRARIES:
        lines = [
            json.dumps({"text": title, "labels": found}) + "\n"
            for title, found, owner in zip(titles, subjects, owners, strict=True)
            if owner == library
        ]
        place = Path(folder, library)
        place.mkdir(parents=True, exist_ok=True)
        (place / "trn.jsonl").write_text("".join(lines[:400]), encoding="utf-8")
        (place / "tst.jsonl").write_text("".join(lines[400:]), encoding="utf-8")
        print(f"wrote {place}: 400 titles to learn from, 100 to test on")


if __name__ == "__main__":
    write_books("data/books")
