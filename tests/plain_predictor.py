"""Predictions from the rules of docs/model-format.md alone: the standard library, one number after the other.

Nothing of fedmlh is imported. Whoever writes a predictor in another language may start here.
"""

import hashlib
import json
import math
import re
import struct
import tomllib
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

U32, U64, PRIME, SIGN = 2**32 - 1, 2**64 - 1, 2**61 - 1, 0x5EED
Point = dict[int, float]

# Hashing.


def murmur3(key: str | int, seed: int) -> int:
    data = key.encode() if isinstance(key, str) else (key & U32).to_bytes(4, "little")
    state = seed
    for begin in range(0, len(data), 4):
        block = int.from_bytes(data[begin : begin + 4], "little") * 0xCC9E2D51 & U32
        state ^= ((block << 15 | block >> 17) & U32) * 0x1B873593 & U32
        if begin + 4 <= len(data):
            state = ((state << 13 | state >> 19) & U32) * 5 + 0xE6546B64 & U32
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & U32
    state = (state ^ state >> 13) * 0xC2B2AE35 & U32
    return state ^ state >> 16


def philox(seed: int, purpose: str) -> Iterator[int]:
    """Yield the 64-bit numbers of a seed and a purpose."""
    words = [seed, crc32(purpose.encode())]
    constant = 0x43B0D7E5

    def scramble(value: int) -> int:
        nonlocal constant
        value, constant = value ^ constant, constant * 0x931E8875 & U32
        value = value * constant & U32
        return value ^ value >> 16

    pool = [scramble(word) for word in (*words, 0, 0)]
    for source in range(4):
        for target in {0, 1, 2, 3} - {source}:
            mixed = pool[target] * 0xCA01F9DD - scramble(pool[source]) * 0x4973F715 & U32
            pool[target] = mixed ^ mixed >> 16
    constant, halves = 0x8B51F9DD, []
    for word in pool:
        word, constant = word ^ constant, constant * 0x58F38DED & U32
        word = word * constant & U32
        halves.append(word ^ word >> 16)
    start = (halves[0] | halves[1] << 32, halves[2] | halves[3] << 32)
    counter = 0
    while True:
        counter += 1
        key, block = start, (counter, 0, 0, 0)
        for _ in range(10):
            one, two = 0xD2E7470EE14C6C93 * block[0], 0xCA5A826395121157 * block[2]
            block = (two >> 64 ^ block[1] ^ key[0], two & U64, one >> 64 ^ block[3] ^ key[1], one & U64)
            key = (key[0] + 0x9E3779B97F4A7C15 & U64, key[1] + 0xBB67AE8584CAA73B & U64)
        yield from block


def draw_below(bound: int, numbers: Iterator[int]) -> int:
    """Return a number below the bound."""
    products = (number * bound for number in numbers)
    return next(product >> 64 for product in products if product & U64 >= (2**64 - bound) % bound)


def permute(count: int, seed: int, purpose: str) -> list[int]:
    halves = (half for number in philox(seed, purpose) for half in (number & U32, number >> 32))
    order = list(range(count))
    for place in range(count - 1, 0, -1):
        mask = (1 << place.bit_length()) - 1
        other = next(half & mask for half in halves if half & mask <= place)
        order[place], order[other] = order[other], order[place]
    return order


def map_labels(family: str, labels: Sequence[str] | Sequence[int], seed: int, num_buckets: int) -> list[int]:
    """Return the bucket of each label in one table; labels are keys or numbers."""
    names = [unicodedata.normalize("NFC", key).strip() if isinstance(key, str) else key for key in labels]
    if family == "identity":
        return list(range(len(names)))
    if family == "balanced":
        return [place % num_buckets for place in permute(len(names), seed, "balanced labels")]
    if family == "murmur3":
        return [murmur3(name, seed) % num_buckets for name in names]
    numbers = philox(seed, "universal hash")
    a, b = 1 + draw_below(PRIME - 1, numbers), draw_below(PRIME, numbers)
    whole = [
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") % PRIME
        if isinstance(name, str)
        else name
        for name in names
    ]
    return [(a * number + b) % PRIME % num_buckets for number in whole]


# Points.


def find_words(text: str) -> list[str]:
    """Return the words of a text, then the pairs of neighbours."""
    words = re.findall(r"[^\W_]{2,}", text.lower())
    return words + [f"{one} {two}" for one, two in pairwise(words)]


def find_feature(word: str, dim: int) -> int:
    """Return the feature of a word or pair that is hashed."""
    state = murmur3(word, 0)
    return (state if state < 2**31 else 2**32 - state) % dim


def scale(point: Point) -> Point:
    """Return a point of length 1, without zeros."""
    length = math.sqrt(sum(value * value for value in point.values()))
    return {column: value / length for column, value in point.items() if value}


def add_up(pairs: list[tuple[int, float]]) -> Point:
    point: Point = {}
    for column, value in pairs:
        point[column] = point.get(column, 0.0) + value
    return {column: value for column, value in point.items() if value}


def read_text(text: str, about: dict[str, Any]) -> Point:
    counts = Counter(find_words(text))
    if about["kind"] == "hashing":
        return scale(add_up([(find_feature(word, about["dim"]), n) for word, n in counts.items()]))
    places = {word: place for place, word in enumerate(about["vocabulary"])}
    return scale({places[word]: n * about["idf"][places[word]] for word, n in counts.items() if word in places})


def hash_point(point: Point, seed: int, dim: int, signed: bool) -> Point:
    def turn(feature: int) -> int:
        return 1 - 2 * (murmur3(feature, seed ^ SIGN) % 2) if signed else 1

    return add_up([(murmur3(feature, seed) % dim, turn(feature) * value) for feature, value in point.items()])


# The coder of terms.bin.

WEIGHTS = [*range(8), *((4 + step) << octave for octave in range(1, 13) for step in range(4))]


class Bits:
    """Bits from the lowest of the first byte."""

    def __init__(self, data: bytes) -> None:
        self.number, self.place = int.from_bytes(data, "little"), 0

    def take(self, width: int) -> int:
        self.place += width
        return self.number >> self.place - width & (1 << width) - 1

    def take_gamma(self) -> int:
        zeros = 0
        while not self.take(1):
            zeros += 1
        return 1 << zeros | self.take(zeros)


def share_slots(weights: list[int], slots: int) -> list[int]:
    shares = [1 + weight * (slots - len(weights)) // sum(weights) for weight in weights]
    if shares:
        shares[weights.index(max(weights))] += slots - sum(shares)
    return shares


def decode(data: bytes, contexts: list[int]) -> tuple[list[int], bytes]:
    """Return the numbers under these contexts, and the bytes that follow."""
    length = place = 0
    while True:
        length |= (data[place] & 127) << 7 * place
        place += 1
        if data[place - 1] < 128:
            break
    body, rest = data[place : place + length], data[place + length :]
    if not contexts:
        return [], rest
    bits, present, table_of = Bits(body), sorted(set(contexts)), {}
    while len(table_of) < len(present):
        size, count = bits.take_gamma(), bits.take_gamma()
        symbols = [symbol - 1 for symbol in accumulate(bits.take_gamma() for _ in range(count))]
        steps = [bits.take_gamma() for _ in range(count)]
        weights = [WEIGHTS[code] for code in accumulate(-(step // 2) if step % 2 else step // 2 for step in steps)]
        slots, top = share_slots(weights, 16384), weights.index(max(weights))
        if slots[top] > 15360:
            others = share_slots(weights[:top] + weights[top + 1 :], 1024)
            slots = [*others[:top], 15360, *others[top:]]
        starts = [0, *accumulate(slots)]
        table_of |= dict.fromkeys(present[len(table_of) : len(table_of) + size], (symbols, slots, starts))
    begin = -(-bits.place // 8)
    lanes = 1 + max(math.isqrt(len(contexts)) // 3, len(contexts) // 1024)
    states = list(struct.unpack_from(f"<{lanes}I", body, begin))
    begin += 4 * lanes
    found = []
    for place, context in enumerate(contexts):
        symbols, slots, starts = table_of[context]
        state = states[place % lanes]
        entry = bisect_right(starts, state % 16384) - 1
        state = slots[entry] * (state >> 14) + state % 16384 - starts[entry]
        if state < 65536:
            state = state << 16 | int.from_bytes(body[begin : begin + 2], "little")
            begin += 2
        states[place % lanes] = state
        found.append(symbols[entry])
    raw = Bits(body[begin:])
    octaves = [(symbol - 8) // 8 for symbol in found]
    return [
        symbol if symbol < 16 else (8 + symbol % 8 << octave) + raw.take(octave)
        for symbol, octave in zip(found, octaves, strict=True)
    ], rest


def decode_sparse(data: bytes, length: int) -> list[int]:
    count = int.from_bytes(data[:4], "little")
    gaps, rest = decode(data[4:], [0] * count)
    places = [place - 1 for place in accumulate(gap + 1 for gap in gaps)]
    values, _ = decode(rest, [(place + 1).bit_length() - 1 for place in places])
    vector = [0] * length
    for place, value in zip(places, values, strict=True):
        vector[place] = value + 1
    return vector


# The model.


def read_arrays(data: bytes) -> dict[str, tuple[Any, ...]]:
    """Return the arrays of a safetensors file, flat."""
    (size,) = struct.unpack_from("<Q", data)
    head, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    letters = {"F16": "e", "F32": "f", "I8": "b", "I64": "q", "U16": "H", "U32": "I"}
    arrays = {}
    for name, about in head.items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            letter = letters[about["dtype"]]
            arrays[name] = struct.unpack(f"<{(end - begin) // struct.calcsize(letter)}{letter}", body[begin:end])
    return arrays


class Networks:
    """Perceptrons over hashed features, one per table."""

    def __init__(self, config: dict[str, Any], seeds: dict[str, Any], weights: Sequence[float], d: int, p: int) -> None:
        self.config, self.seeds = config, seeds
        self.num_buckets = p if config["label_map"] == "identity" else config["num_buckets"]
        widths = [config["feature_dim"] if seeds["features"] else d, *config["hidden_sizes"], self.num_buckets]
        self.layers, numbers = [], iter(weights)
        for inputs, outputs in pairwise(widths):
            tables = range(config["num_tables"])
            weight = [[list(islice(numbers, outputs)) for _ in range(inputs)] for _ in tables]
            self.layers.append((weight, [list(islice(numbers, outputs)) for _ in tables]))

    def score(self, point: Point) -> tuple[bool, list[list[float]]]:
        """Return whether anything of a point is seen, and its score for each bucket of each table."""
        config = self.config
        maps = [
            hash_point(point, seed, config["feature_dim"], config["feature_signed"]) for seed in self.seeds["features"]
        ] or [point]
        maps = [scale(each) for each in maps] if config["normalize"] else maps
        tables = []
        for table in range(config["num_tables"]):
            inputs = maps[table % len(maps)]
            for depth, (weights, biases) in enumerate(self.layers):
                outputs = list(biases[table])
                for place, value in inputs.items():
                    for bucket, weight in enumerate(weights[table][place]):
                        outputs[bucket] += value * weight
                is_last = depth == len(self.layers) - 1
                inputs = {place: value if is_last else max(value, 0.0) for place, value in enumerate(outputs)}
            tables.append(self.decode(outputs))
        return any(maps), tables

    def decode(self, logits: list[float]) -> list[float]:
        if self.config["decoding"] == "logits":
            return logits
        if self.config["loss"].endswith("softmax"):
            total = math.log(sum(math.exp(logit) for logit in logits))
            likely = [logit - total for logit in logits]
        else:
            likely = [-math.log1p(math.exp(-logit)) for logit in logits]
        return likely if self.config["decoding"] == "log-probs" else [math.exp(value) for value in likely]


class Linear:
    """The linear model of one round."""

    def __init__(self, folder: Path, seeds: dict[str, Any], num_tables: int, num_buckets: int, d: int) -> None:
        self.arrays = read_arrays((folder / "weights.safetensors").read_bytes())
        self.num_tables, self.num_buckets = num_tables, num_buckets
        terms = (folder / "terms.bin").read_bytes()
        points, limit, weigh = struct.unpack_from("<QIB", terms)
        often = decode_sparse(terms[13:], d)
        order = sorted((feature for feature in range(d) if often[feature]), key=lambda feature: -often[feature])
        count = min(limit or len(order), len(order))
        own = count if count == len(order) else count * 3 // 4
        seed = seeds["features"][0]
        self.slots = {}
        for rank, feature in enumerate(order):
            factor = 1.0
            if weigh:
                factor = round((1 + math.log((1 + points) / (1 + often[feature]))) * 1024) / 1024
            if rank < own:
                self.slots[feature] = (rank, factor)
            else:
                sign = 1 - 2 * (murmur3(feature, seed ^ SIGN) % 2)
                self.slots[feature] = (own + murmur3(feature, seed) % (count - own), sign * factor)

    def score(self, point: Point) -> tuple[bool, list[list[float]]]:
        """Return whether anything of a point is seen, and its score for each bucket of each table."""
        known = [(*self.slots[feature], value) for feature, value in point.items() if feature in self.slots]
        slots = scale(add_up([(slot, factor * value) for slot, factor, value in known]))
        outputs = [0.0] * (self.num_tables * self.num_buckets)
        starts, columns, levels, scales = (self.arrays[name] for name in ("starts", "columns", "levels", "scales"))
        for row, value in ((0, 1.0), *((slot + 1, value) for slot, value in slots.items())):
            for cell in range(starts[row], starts[row + 1]):
                outputs[columns[cell]] += value * levels[cell] * scales[row]
        begins = range(0, len(outputs), self.num_buckets)
        return bool(slots), [outputs[begin : begin + self.num_buckets] for begin in begins]


def read_config(path: Path) -> dict[str, Any]:
    tables = tomllib.loads(path.read_text("utf-8"))
    return {name: value for table in tables.values() if isinstance(table, dict) for name, value in table.items()}


class Predictor:
    """The model of a folder."""

    def __init__(self, folder: Path) -> None:
        for name, digest in json.loads((folder / "manifest.json").read_bytes())["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        self.about = about = json.loads((folder / "model.json").read_bytes())
        self.keys = json.loads((folder / "labels.json").read_bytes())["keys"]
        curve = folder / "calibration.json"
        self.curve = json.loads(curve.read_bytes()) if curve.exists() else None
        config, d, p = read_config(folder / "config.toml"), about["num_features"], about["num_labels"]
        self.parts: list[tuple[float, Linear | Networks, list[list[int]]]] = []
        if config["training"] == "one-round":
            is_plain = config["label_map"] == "identity"
            num_tables, num_buckets = (1, p) if is_plain else (config["num_tables"], config["num_buckets"])
            linear = Linear(folder, about["seeds"], num_tables, num_buckets, d)
            self.parts.append((1.0, linear, self.map_labels(config, about["seeds"], p)))
            if "networks" in about:
                beside = about["networks"]
                self.add_networks(folder, "networks", beside["seeds"], beside["weight"])
        else:
            self.add_networks(folder, "weights", about["seeds"], 1.0)

    def add_networks(self, folder: Path, name: str, seeds: dict[str, Any], weight: float) -> None:
        config = read_config(folder / ("networks.toml" if name == "networks" else "config.toml"))
        flat = read_arrays((folder / f"{name}.safetensors").read_bytes())["weights"]
        d, p = self.about["num_features"], self.about["num_labels"]
        self.parts.append((weight, Networks(config, seeds, flat, d, p), self.map_labels(config, seeds, p)))

    def map_labels(self, config: dict[str, Any], seeds: dict[str, Any], p: int) -> list[list[int]]:
        labels = self.keys if config["label_key"] == "name" else range(p)
        return [map_labels(config["label_map"], labels, seed, config["num_buckets"]) for seed in seeds["labels"]]

    def predict(self, asked: str | Point, k: int) -> list[tuple[int, float, float | None]]:
        """Return number, score and probability of the k best labels; none of a text without known words."""
        point = read_text(asked, self.about["text"]) if isinstance(asked, str) else asked
        scores, is_seen = [0.0] * len(self.keys), False
        for place, (weight, model, buckets) in enumerate(self.parts):
            sees, tables = model.score(point)
            is_seen |= sees and place == 0
            for label in range(len(scores)):
                votes = [table[bucket[label]] for table, bucket in zip(tables, buckets, strict=True)]
                scores[label] += weight * sum(votes) / len(votes)
        if isinstance(asked, str) and not is_seen:
            return []
        best = sorted(range(len(scores)), key=lambda label: -scores[label])[:k]
        return [(label, scores[label], self.find_probability(scores[label])) for label in best]

    def find_probability(self, score: float) -> float | None:
        if self.curve is None:
            return None
        if self.curve["form"] != "plain":
            chance = math.exp(min(score, 0)) if self.curve["form"] == "log-probs" else score
            chance = min(max(chance, 1e-12), 1 - 1e-12)
            score = math.log(chance) - math.log1p(-chance)
        edges, counts, hits = (self.curve[name] for name in ("edges", "counts", "hits"))
        full = [place for place, count in enumerate(counts) if count]
        middles, shares = [(edges[place] + edges[place + 1]) / 2 for place in full], pool_shares(counts, hits)
        if len(full) < 2:
            middles, shares = [edges[0], edges[-1]], [(sum(hits) + 0.5) / (sum(counts) + 1)] * 2
        right = min(max(bisect_right(middles, score), 1), len(middles) - 1)
        low, high = middles[right - 1], middles[right]
        way = min(max((score - low) / (high - low), 0.0), 1.0)
        risen = shares[right - 1] + way * (shares[right] - shares[right - 1])
        steady = 0.5 + math.atan((score - middles[0]) / (middles[-1] - middles[0])) / math.pi
        return min(max(0.999 * risen + 0.001 * steady, 1e-6), 1.0)


def pool_shares(counts: list[int], hits: list[int]) -> list[float]:
    """Return the share of hits in each bin with labels, made to rise."""
    blocks: list[list[float]] = []
    for count, hit in zip(counts, hits, strict=True):
        if count:
            blocks.append([hit + 0.5, count + 1, 1])
            while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
                last = blocks.pop()
                blocks[-1] = [one + two for one, two in zip(blocks[-1], last, strict=True)]
    return [hit / count for hit, count, bins in blocks for _ in range(int(bins))]
