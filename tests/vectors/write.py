"""Write the test vectors for predictors in other languages: `cd tests && python -m vectors.write`.

They change only if the format of models does; docs/model-format.md explains them.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from drawn_models import BASE, make_bundle
from fedmlh.data.text import TextFeatures, find_words
from fedmlh.evaluation.calibration import NUM_BINS, Curve, Scale
from fedmlh.hashing.features import make_feature_map
from fedmlh.hashing.labels import make_label_map
from fedmlh.hashing.murmur import hash_integers, hash_strings
from fedmlh.runs.model_folder import Bundle
from fedmlh.serving.predictor import Model

HERE = Path(__file__).parent
#: The hash of `aivlts3m` is 2^31, the one whose absolute value does not fit 32 bits.
TEXTS = [
    "The cat sat on the mat",
    "a Größe of 42; a_b, ab_cd!",
    "Tokyo 2020: 東京 games, Ｆｕｌｌ Straße İstanbul ΣΑΣ",
    "e\u0301te\u0301, it's 3.14",
    "",
    "a b c - _",
    "aivlts3m, AIVLTS3M word",
]
SEEDS = (0, 1, 0x5EED, 2**32 - 1)


def draw_curve(bundle: Bundle, form: str) -> Bundle:
    """Return a model with a curve, one of whose bins is empty and some of whose shares fall."""
    rng = np.random.default_rng(4)
    edges = np.sort(rng.normal(size=NUM_BINS + 1) * 4)
    counts = rng.integers(0, 40, NUM_BINS)
    counts[3] = 0
    hits = np.minimum(counts, (counts * np.linspace(0, 1, NUM_BINS) + rng.integers(0, 9, NUM_BINS)).astype(int))
    curve = Curve(Scale(form, tuple(edges.tolist())), 60, tuple(counts.tolist()), tuple(hits.tolist()))
    return replace(bundle, curve=curve)


def write(name: str, content: Any) -> None:
    """Write a file, a case on each line."""
    parts = content.items() if isinstance(content, dict) else [("", content)]
    listed = []
    for key, cases in parts:
        lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
        listed.append(f"{json.dumps(key)}: [\n{lines}\n]" if key else f"[\n{lines}\n]")
    text = f"{{{', '.join(listed)}}}" if isinstance(content, dict) else listed[0]
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _hash(key: str | int, seed: int) -> int:
    return int((hash_strings([key], seed) if isinstance(key, str) else hash_integers(np.array([key]), seed))[0])


def main() -> None:
    """Write all vectors."""
    strings, numbers = ("", "a", "ab", "abc", "abcd", "abcde", "東京", "x" * 300), (0, 1, 255, 65_536, 2**31 - 1, -1)
    hashes = [{"key": key, "seed": seed, "hash": _hash(key, seed)} for key in (*strings, *numbers) for seed in SEEDS]
    keys = ("cat", " dog ", "e\u0301", "é", "東京")
    maps = []
    for family in ("murmur3", "universal", "balanced", "identity"):
        for seed in SEEDS[1:3]:
            for labels in (7, keys) if family in ("murmur3", "universal") else (7,):
                found = make_label_map(family, labels, (seed,), 4).buckets[0].tolist()
                maps.append({"family": family, "seed": seed, "buckets": 4, "labels": labels, "map": found})
    point = [(0, 1.5), (3, -2.0), (17, 0.25), (40, 1.0), (41, 3.0), (99, -0.5)]
    features = []
    for signed in (False, True):
        for normalize in (False, True):
            X = csr_matrix(([v for _, v in point], [c for c, _ in point], [0, len(point)]), (1, 100), dtype=np.float32)
            (row,) = make_feature_map(100, 8, (101,), signed=signed, normalize=normalize).apply(X)
            hashed = list(zip(row.indices.tolist(), map(float, row.data), strict=True))
            about = {"features": 100, "dim": 8, "seed": 101, "signed": signed, "normalize": normalize}
            features.append({**about, "point": point, "hashed": hashed})
    write("hashing", {"murmur3": hashes, "label_maps": maps, "feature_maps": features})
    ways = [TextFeatures.hashing(50), TextFeatures.hashing(), TextFeatures.fit_tfidf([*TEXTS, *TEXTS[:2]])]
    cases = []
    for text in TEXTS:
        rows = [(way, way.read([text])) for way in ways]
        found = [
            {"how": way.to_json(), "row": list(zip(row.columns.tolist(), map(float, row.values), strict=True))}
            for way, row in rows
        ]
        words = sorted(find_words(text), key=lambda word: " " in word)
        cases.append({"text": text, "words": words, "features": found})
    write("text", cases)
    hashing = {"d": 50, "text": TextFeatures.hashing(50)}
    models = {
        "networks": draw_curve(make_bundle(BASE.replace(decoding="log-probs"), 5, **hashing), "log-probs"),
        "one-round": draw_curve(
            make_bundle(BASE.replace(training="one-round", correct=0), 5, beside=True, **hashing), "plain"
        ),
    }
    for name, bundle in models.items():
        shutil.rmtree(HERE / f"model-{name}", ignore_errors=True)
        model = Model(bundle)
        model.save(HERE / f"model-{name}")
        write(
            f"model-{name}",
            [{"text": text, "labels": labels} for text, labels in zip(TEXTS, model.predict(TEXTS), strict=True)],
        )


if __name__ == "__main__":
    main()
