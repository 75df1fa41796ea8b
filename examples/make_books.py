"""Write two spreadsheets: titles of two libraries with subjects, and new titles. `python examples/make_books.py`."""

import csv
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
#: Titles without subjects, as a library gets them: id, title, year.
NEW = [
    ["n1", "Night trains of Poland", 2024],
    ["n2", "Herring boats: a short history", 2025],
    ["n3", "", 2025],
    ["n4", "The vineyards of Portugal, by train", 2025],
    ["n5", "Nursing and hospital law in Estonia", 2026],
]


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


def write_rows(path, rows):
    """Write a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    print(f"wrote {path}: {len(rows) - 1:,} titles")


def write_books(folder):
    """Write the catalogue of both libraries with its subjects, and some titles that nobody has catalogued yet."""
    books = zip(*make_books(), strict=True)
    rows = [[number, owner, title, "; ".join(found)] for number, (title, found, owner) in enumerate(books, start=1)]
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "books.csv", [["id", "library", "title", "subjects"], *rows])
    write_rows(folder / "new.csv", [["id", "title", "year"], *NEW])


if __name__ == "__main__":
    write_books(Path("data"))
