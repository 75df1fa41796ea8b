"""Updates that must not count: each is refused with a reason, and the model moves as if it had never come."""

import dataclasses
import hashlib
import json
import math
import struct
import tracemalloc
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from federation import Federation
from fedmlh.config import Config
from fedmlh.data.division import divide
from fedmlh.data.synthetic import synthesize
from fedmlh.engines.local import LocalClients
from fedmlh.errors import UserError
from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.codecs.grid_levels import read_vector
from fedmlh.federated.messages import FRAME, MAX_HEADER, Reason, Rejected
from fedmlh.federated.participation import list_refused
from fedmlh.federated.task import Task
from fedmlh.federated.transforms.clipping import Bounds
from fedmlh.federated.validate import Expected

CPU = torch.device("cpu")
DATA = synthesize(num_points=200, num_test=20, num_features=60, num_labels=40)
CONFIG = Config(
    num_clients=10,
    clients_per_round=4,
    partition="iid",
    local_epochs=1,
    batch_size=20,
    num_tables=2,
    num_buckets=6,
    feature_dim=8,
    hidden_sizes=(4,),
    learning_rate=0.01,
)
VARIANTS = {
    "fp32": CONFIG,
    "fp16": CONFIG.replace(update_codec="fp16", weighting="examples", broadcast_codec="fp16"),
    "int8": CONFIG.replace(update_codec="int8"),
    "grid": CONFIG.replace(update_codec="grid-100%", broadcast_codec="grid-150%"),
    "scaffold": CONFIG.replace(correction="scaffold"),
}
FRAMING = {Reason.MALFORMED, Reason.VERSION}
PREFIX = 10  # magic, version, header length
DIGEST = 32


def make_federation(config):
    shards = divide(DATA.train, config).shards
    return Federation(config, [(shards[n].X, shards[n].Y) for n in range(config.num_clients)], labels=DATA.labels)


def answer_all(federation, state, attempt):
    """Return what all clients, asked or not, would answer to this attempt at the next round."""

    def broadcast(client):
        return federation.server.broadcast(state, attempt, client)

    return dict(federation.exchange()(list(federation.clients), broadcast))


@dataclass
class Scene:
    """A federation in its second round: what was said before, what is honest now, and what follows from it."""

    federation: Federation
    state: object
    earlier: dict[int, bytes]  # all clients, first round
    repeated: dict[int, bytes]  # all clients, second attempt at this round
    now: dict[int, bytes]  # all clients, this round
    sampled: list[int]
    expected: Expected
    outcome: object  # the state that the sampled clients' honest updates give


def replay(*replies):
    """Return an exchange that yields these replies, whatever was asked."""
    return lambda sampled, broadcast: iter(replies)


def same(a, b):
    """Say whether two states are equal to the bit."""
    return (a.round, dict(a.accepted)) == (b.round, dict(b.accepted)) and a.model.numpy().tobytes() == (
        b.model.numpy().tobytes()
    )


@pytest.fixture(scope="module", params=list(VARIANTS))
def scene(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    federation = make_federation(VARIANTS[request.param])
    server = federation.server
    start = server.begin()
    earlier = answer_all(federation, start, 0)
    state, _ = server.run_round(start, replay(*((n, earlier[n]) for n in server.sample(1, 0))))
    now, sampled = answer_all(federation, state, 0), server.sample(2, 0)
    config = server.task.config
    expected = Expected(
        server.run,
        server.task.fingerprint,
        2,
        0,
        config.update_codec,
        len(state.model),
        {n: server.max_examples[n] for n in sampled},
        server.clipping.bounds(sampled, state.lengths),
        100,
        config.seed,
        server.remedy.extra,
    )
    outcome, report = server.run_round(state, replay(*((n, now[n]) for n in sampled)))
    assert report.accepted == sampled
    assert not report.refused
    assert not torch.equal(outcome.model, state.model)
    yield Scene(federation, state, earlier, answer_all(federation, state, 1), now, sampled, expected, outcome)
    torch.set_num_threads(threads)


@dataclass
class Bad:
    """A message that must be refused, who sends it, and the reasons that would be right."""

    name: str
    sender: int
    message: bytes
    reasons: set[Reason]


def split(message):
    """Return header (as a dict) and payload, read by the format's description rather than by the code under test."""
    length = struct.unpack_from("<4sHI", message)[2]
    return json.loads(message[PREFIX : PREFIX + length]), message[PREFIX + length : -DIGEST]


def canonical(values):
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def sign(head, payload, *, magic=b"FMLH", version=1, length=None):
    """Return a message whose digest holds, whatever else is wrong with it."""
    body = struct.pack("<4sHI", magic, version, len(head) if length is None else length) + head + payload
    return body + hashlib.sha256(body).digest()


def read(codec, payload):
    """Return the numbers of a payload, in the precision in which they travel."""
    if codec.startswith("fp"):
        return np.frombuffer(payload, "<f4" if codec == "fp32" else "<f2")
    if codec.startswith("grid"):
        return read_vector(
            memoryview(payload), Task(CONFIG, DATA.num_features, DATA.num_labels).stack.num_parameters
        ).numpy()
    scales = (np.frombuffer(payload, "<u2", -(-len(payload) // 130)).astype(np.uint32) << 16).view(np.float32)
    codes = np.frombuffer(payload, np.uint8)[2 * len(scales) :].astype(np.float32) - 127
    return codes / 127 * np.repeat(scales, 128)[: len(codes)]


def write(codec, values):
    """Return a payload that carries the numbers, or comes as near to them as it can."""
    values = np.asarray(values)
    with np.errstate(over="ignore"):
        if codec.startswith("fp"):
            return values.astype("<f4" if codec == "fp32" else "<f2").tobytes()
        return make_codec(codec).encode(torch.from_numpy(values.astype(np.float32)), np.random.default_rng(0))


def flip_bits(scene, rng) -> Iterator[Bad]:
    sender = scene.sampled[0]
    message = scene.now[sender]
    rest = rng.choice(np.arange(8 * PREFIX, 8 * len(message)), 300, replace=False).tolist()
    for bit in [*range(8 * PREFIX), *rest]:
        mutated = bytearray(message)
        mutated[bit // 8] ^= 1 << bit % 8
        place = bit // 8
        if place < 4:
            reasons = {Reason.MALFORMED}
        elif place < 6:
            reasons = {Reason.VERSION}
        else:
            reasons = {Reason.CORRUPT, Reason.MALFORMED} if place < PREFIX else {Reason.CORRUPT}
        yield Bad(f"bit {bit}", sender, bytes(mutated), reasons)


def cut_and_extend(scene, rng) -> Iterator[Bad]:
    sender = scene.sampled[1]
    message = scene.now[sender]
    for length in [*range(FRAME + 8), *rng.integers(FRAME + 8, len(message), 60).tolist()]:
        yield Bad(f"cut to {length}", sender, message[:length], {Reason.MALFORMED, Reason.CORRUPT})
    for extra in [1, 2, 4, 8, 31, 32, 33, 1000, *rng.integers(1, 5000, 20).tolist()]:
        yield Bad(f"{extra} bytes more", sender, message + rng.bytes(extra), {Reason.CORRUPT})
        yield Bad(f"{extra} bytes before", sender, b"\0" * extra + message, {Reason.MALFORMED})
    for _ in range(40):
        start, stop = sorted(rng.choice(len(message) - DIGEST, 2, replace=False).tolist())
        yield Bad("a piece lost", sender, message[:start] + message[stop:], {Reason.CORRUPT, *FRAMING})
        yield Bad("a piece twice", sender, message[:stop] + message[start:], {Reason.CORRUPT, *FRAMING})


def mix_messages(scene, rng) -> Iterator[Bad]:
    """Yield pieces of two honest messages, with the digest of one or the other."""
    for a in scene.sampled:
        for b, source in ((b, source) for b in scene.sampled for source in (scene.now, scene.earlier, scene.repeated)):
            one, other = scene.now[a], source[b]
            if one == other:
                continue
            cut = int(rng.integers(PREFIX, min(len(one), len(other)) - DIGEST))
            for mixed in (one[:cut] + other[cut:], one[:-DIGEST] + other[-DIGEST:]):
                if mixed not in (one, other):
                    yield Bad("mixed", a, mixed, {Reason.CORRUPT, Reason.MALFORMED})


def change_fields(scene, rng) -> Iterator[Bad]:
    """Yield every header field with every wrong value, signed again."""
    sender, other = scene.sampled[2], scene.sampled[0]
    header, payload = split(scene.now[sender])
    absent = next(n for n in scene.federation.clients if n not in scene.sampled)
    most = scene.expected.max_examples[sender]
    not_a_count = [-1, -(10**12), 2**63, 10**400, 1.0, 1e12, float("nan"), float("inf"), "2", "", True, None, [2], {}]
    not_a_text = [5, 0.5, None, True, [], ["a"], {}, "x" * 65, "x" * 5000]
    others = VARIANTS["fp16" if scene.expected.codec != "fp16" else "int8"]
    foreign = make_federation(others.replace(seed=1)).server
    wrong = {
        ("run", Reason.RUN): [foreign.run, "", "x" * 64, header["run"].upper() + "0", header["run"][:-1], "ü", "\0"],
        ("config", Reason.CONFIG): [foreign.task.fingerprint, "", header["run"], "\ud800", "\x1b[2J"],
        ("round", Reason.ROUND): [0, 1, 3, 4, 2**32, 2**62],
        ("attempt", Reason.ROUND): [1, 2, 3, 2**62],
        ("client", Reason.CLIENT): [other, absent, 10, 10**6, 2**62],
        ("codec", Reason.CODEC): [others.update_codec, "initial", "", "zip", "FP32", "int8+zlib"],
        ("examples", Reason.EXAMPLES): [0, most + 1, most * 2, 10**6, 10**12, 2**62],
        ("loss", Reason.RANGE): [-0.5, -1e-300, 1e30, 1.7e308, -1.7e308],
        ("kind", Reason.MALFORMED): ["broadcast", "", "Update", None, 1, [], {}, ["update"]],
        ("loss", Reason.MALFORMED): [*not_a_count[6:8], -float("inf"), 10**400, -(10**400), "0.5", *not_a_count[10:]],
    }
    for field in ("run", "config", "codec"):
        wrong[field, Reason.MALFORMED] = not_a_text
    for field in ("round", "attempt", "client", "examples"):
        wrong[field, Reason.MALFORMED] = not_a_count
    for (field, reason), values in wrong.items():
        for value in values:
            head = canonical({**header, field: value})
            yield Bad(f"{field} is {value!r:.20}", sender, sign(head, payload), {reason})


def change_keys(scene, rng) -> Iterator[Bad]:
    """Yield headers that are not exactly the canonical JSON of the fields."""
    sender = scene.sampled[3]
    header, payload = split(scene.now[sender])
    head = canonical(header)
    heads = {f"without {key}": canonical({k: v for k, v in header.items() if k != key}) for key in header}
    extra = ["a", "zzz", "", "seed", "label_seeds", "accepted", "Run", "run ", "__class__", "self", "\ud800", "é" * 99]
    heads |= {f"with {key!r}": canonical({**header, key: 1}) for key in extra}
    for key, value in header.items():
        pair = canonical({key: value})[1:-1]
        heads |= {
            f"{key} twice in front": b"{" + pair + b"," + head[1:],
            f"{key} twice behind": head[:-1] + b"," + pair + b"}",
            f"{key} escaped": head.replace(b'"' + key.encode(), b'"\\u%04x' % ord(key[0]) + key[1:].encode()),
            f"space after {key}": head.replace(b'"' + key.encode() + b'":', b'"' + key.encode() + b'": '),
        }
    heads |= {
        "indented": json.dumps(header, indent=1, sort_keys=True).encode(),
        "spaced": json.dumps(header, sort_keys=True).encode(),
        "unsorted": json.dumps(dict(sorted(header.items(), reverse=True)), separators=(",", ":")).encode(),
        "newline": head + b"\n",
        "null byte": head + b"\0",
        "space before": b" " + head,
        "byte order mark": b"\xef\xbb\xbf" + head,
        "utf-16": head.decode().encode("utf-16"),
        "utf-16-le": head.decode().encode("utf-16-le"),
        "utf-32": head.decode().encode("utf-32"),
        "latin-1": canonical({**header, "run": "é"}).replace(b"\\u00e9", b"\xe9"),
        "raw utf-8": canonical({**header, "run": "é"}).replace(b"\\u00e9", "é".encode()),
        "float round": head.replace(b'"round":2', b'"round":2.0'),
        "exponent": head.replace(b'"round":2', b'"round":2e0'),
        "leading zero": head.replace(b'"round":2', b'"round":02'),
        "plus": head.replace(b'"round":2', b'"round":+2'),
        "minus zero": head.replace(b'"attempt":0', b'"attempt":-0'),
        "loss 1e999": head.replace(b'"loss":', b'"loss":1e999,"loss":'),
        "two objects": head + head,
        "in a list": b"[" + head + b"]",
        "empty": b"",
        "empty object": b"{}",
        "null": b"null",
        "number": b"1",
        "text": b'"run"',
        "list": b"[]",
        "broken": head[:-1],
        "single quotes": head.replace(b'"', b"'"),
        "comment": head[:-1] + b"/**/}",
        "trailing comma": head[:-1] + b",}",
        "deep list": b"[" * 30_000 + b"]" * 30_000,
        "deep object": b'{"a":' * 9_000 + b"1" + b"}" * 9_000,
        "deep field": canonical({**header, "run": 0}).replace(b'"run":0', b'"run":' + b"[" * 900 + b"]" * 900),
        "many digits": canonical({**header, "round": 0}).replace(b'"round":0', b'"round":' + b"1" * 60_000),
        "many keys": canonical({**header, **{f"k{i}": i for i in range(4000)}}),
        "long list": canonical({**header, "round": [1] * 20_000}),
    }
    for name, content in heads.items():
        assert content != head, name
        yield Bad(f"header {name}", sender, sign(content, payload), {Reason.MALFORMED})


def lie_about_frame(scene, rng) -> Iterator[Bad]:
    sender = scene.sampled[0]
    header, payload = split(scene.now[sender])
    head = canonical(header)
    room = len(head) + len(payload)
    lengths = [0, 1, len(head) - 1, len(head) + 1, len(head) - 4, len(head) + 4, room, room + 1, room + DIGEST]
    for length in [*lengths, MAX_HEADER, MAX_HEADER + 1, 2**31, 2**32 - 1, *rng.integers(0, room, 40).tolist()]:
        if length != len(head):
            yield Bad(f"header length {length}", sender, sign(head, payload, length=length), {Reason.MALFORMED})
    for version in [0, 2, 3, 256, 2**16 - 1, *rng.integers(2, 2**16, 10).tolist()]:
        yield Bad(f"version {version}", sender, sign(head, payload, version=version), {Reason.VERSION})
    for magic in [b"fmlh", b"FMLX", b"\0\0\0\0", b"PK\3\4", b"\x80\4\x95.", *(rng.bytes(4) for _ in range(10))]:
        yield Bad(f"magic {magic!r}", sender, sign(head, payload, magic=magic), {Reason.MALFORMED})
    for size in [0, 1, 2, 3, 4, len(payload) - 1, len(payload) - 2, len(payload) - 4, len(payload) + 1]:
        resized = (payload + bytes(8))[:size]
        yield Bad(f"payload of {size} bytes", sender, sign(head, resized), {Reason.SIZE})
    for size in [
        *rng.integers(0, len(payload), 20).tolist(),
        len(payload) // 2,
        len(payload) * 2,
        MAX_HEADER - len(head),
    ]:
        yield Bad(f"payload of {size} bytes", sender, sign(head, rng.bytes(size)), {Reason.SIZE})
    for size in [len(payload) + MAX_HEADER + 1, 10**6]:
        yield Bad(f"payload of {size} bytes", sender, sign(head, bytes(size)), {Reason.TOO_LARGE})


def change_values(scene, rng) -> Iterator[Bad]:
    """Yield updates in good form whose numbers must not reach the average."""
    sender = scene.sampled[1]
    header, payload = split(scene.now[sender])
    codec = scene.expected.codec
    dtype = np.dtype("<f2" if codec == "fp16" else "<f4")
    honest = read(codec, payload)
    spots = rng.choice(len(honest), 12, replace=False).tolist()

    def carrying(name, values, reason):
        return Bad(name, sender, sign(canonical(header), write(codec, values)), {reason})

    for value, reason in (
        (np.nan, Reason.NON_FINITE),
        (np.inf, Reason.NON_FINITE),
        (-np.inf, Reason.NON_FINITE),
    ):
        for spot in [0, len(honest) - 1, *spots]:
            values = honest.copy()
            values[spot] = value
            yield carrying(f"{value} at {spot}", values, reason)
        yield carrying(f"all {value}", np.full(len(honest), value), reason)
    bits = f"<u{dtype.itemsize}"
    for pattern in (0x7FC00001, 0xFFC00000, 0x7F800001) if dtype.itemsize == 4 else (0x7E01, 0xFE00, 0x7C01):
        values = honest.copy()
        values.view(bits)[spots[0]] = pattern
        yield carrying(f"NaN {pattern:x}", values, Reason.NON_FINITE)


def invent(scene, rng) -> Iterator[Bad]:
    """Yield random bytes, from plain noise to noise with a proper frame."""
    size = len(scene.now[scene.sampled[0]])
    for _ in range(60):
        sender = int(rng.choice(scene.sampled))
        noise = rng.bytes(int(rng.integers(0, 2 * size)))
        yield Bad("noise", sender, noise, FRAMING)
        yield Bad("noise with magic", sender, b"FMLH\1\0" + noise, {Reason.MALFORMED, Reason.CORRUPT})
        yield Bad("signed noise", sender, sign(noise[:200], noise[200:]), {Reason.MALFORMED})


def repeat(scene, rng) -> Iterator[Bad]:
    """Yield honest messages at the wrong time or from the wrong client."""
    for n in scene.federation.clients:
        yield Bad("last round's", n, scene.earlier[n], {Reason.ROUND})
        yield Bad("another attempt's", n, scene.repeated[n], {Reason.ROUND})
        if n not in scene.sampled:
            yield Bad("uninvited", n, scene.now[n], {Reason.CLIENT})
        for sender in [*scene.sampled, -1, 10, 10**6]:
            if sender != n:
                yield Bad("another client's", sender, scene.now[n], {Reason.CLIENT})
                yield Bad("another client's old", sender, scene.earlier[n], {Reason.ROUND})
    server = scene.federation.server
    for n in scene.sampled:
        yield Bad("the broadcast itself", n, server.broadcast(scene.state, 0, n), {Reason.MALFORMED})


FAMILIES = [
    flip_bits,
    cut_and_extend,
    mix_messages,
    change_fields,
    change_keys,
    lie_about_frame,
    change_values,
    invent,
    repeat,
]


def draw(family, scene):
    return list(family(scene, np.random.default_rng(FAMILIES.index(family))))


def test_there_are_more_than_a_thousand_mutations(scene):
    messages = {(bad.sender, bad.message) for family in FAMILIES for bad in draw(family, scene)}
    honest = {(n, scene.now[n]) for n in scene.sampled}
    assert len(messages) >= 1000
    assert not messages & honest


@pytest.mark.parametrize("family", FAMILIES)
def test_every_mutation_is_refused_for_the_right_reason(scene, family):
    for bad in draw(family, scene):
        with pytest.raises(Rejected) as refusal:
            scene.expected.check(bad.sender, bad.message, ())
        assert refusal.value.reason in bad.reasons, (bad.name, str(refusal.value))


@pytest.mark.parametrize("family", FAMILIES)
def test_beside_honest_updates_a_mutation_changes_no_bit(scene, family):
    server = scene.federation.server
    rng = np.random.default_rng(100 + FAMILIES.index(family))
    for bad in draw(family, scene):
        replies = [(n, scene.now[n]) for n in rng.permutation(scene.sampled).tolist()]
        replies.insert(int(rng.integers(len(replies) + 1)), (bad.sender, bad.message))
        state, report = server.run_round(scene.state, replay(*replies))
        assert same(state, scene.outcome), bad.name
        assert report.accepted == scene.sampled
        assert report.attempts == 1
        assert [entry.client for entry in report.refused] == [bad.sender]
        assert report.refused[0].reason in bad.reasons | {Reason.DUPLICATE}
        written = list_refused(report.told)
        assert json.loads(json.dumps(written)) == written
        assert report.bytes_up == sum(len(reply) for _, reply in replies)


def test_an_update_that_is_too_long_is_scaled_to_the_bound_and_keeps_its_direction(scene):
    if scene.expected.extra:
        pytest.skip("with a control it is refused")
    sender, codec = scene.sampled[0], scene.expected.codec
    header, payload = split(scene.now[sender])
    honest, rng = read(codec, payload).astype(np.float64), np.random.default_rng(5)
    bound, top = scene.expected.bounds.updates[sender], 6e4 if codec == "fp16" else 1e30
    strict = dataclasses.replace(scene.expected, bounds=dataclasses.replace(scene.expected.bounds, scales=False))
    spike = honest.copy()
    spike[3] = LIMIT * 1.01
    for values in (
        np.full(len(honest), 10.1),
        LIMIT * rng.choice([-1.0, 1.0], len(honest)),
        -top * np.sign(honest),
        honest * 1.01 * bound / np.sqrt(np.mean(np.square(honest))),
        honest * 50,
        spike,
    ):
        message = sign(canonical(header), write(codec, values))
        update = scene.expected.check(sender, message, ())
        sent = read(codec, split(message)[1]).astype(np.float64)
        assert update.delta.length == pytest.approx(bound, rel=1e-4)
        assert update.delta.factor == pytest.approx(bound / np.sqrt(np.mean(np.square(sent))), rel=1e-4)
        np.testing.assert_allclose(
            update.delta.values.numpy(), sent * update.delta.factor, rtol=1e-3, atol=1e-6 * bound
        )
        with pytest.raises(Rejected) as refusal:
            strict.check(sender, message, ())
        assert refusal.value.reason == Reason.RANGE
    assert scene.expected.check(sender, scene.now[sender], ()).delta.factor == 1


def test_no_parameter_may_jump_beyond_the_limit(scene):
    """Whatever norm is allowed: the fixed-point sum has room for no more."""
    if scene.expected.codec in ("int8", "grid-100%"):
        pytest.skip("the limit itself lies between two of its levels")
    sender = scene.sampled[1]
    header, payload = split(scene.now[sender])
    dtype = np.dtype("<f4" if scene.expected.codec == "fp32" else "<f2")
    bounds = dataclasses.replace(scene.expected.bounds, updates=dict.fromkeys(scene.sampled, math.inf))
    lenient = dataclasses.replace(scene.expected, bounds=bounds)
    for value in (LIMIT, np.nextafter(dtype.type(LIMIT), dtype.type(np.inf))):
        for sign_of in (1, -1):
            values = np.frombuffer(payload, dtype).copy()
            values[0] = sign_of * value
            message = sign(canonical(header), values.tobytes())
            if value == LIMIT:
                assert lenient.check(sender, message, ()).delta.values[0] == sign_of * value
                continue
            with pytest.raises(Rejected) as refusal:
                lenient.check(sender, message, ())
            assert refusal.value.reason == Reason.RANGE


def test_all_mutations_at_once_change_no_bit(scene):
    flood = [(bad.sender, bad.message) for family in FAMILIES for bad in draw(family, scene)]
    replies = [*flood, *((n, scene.now[n]) for n in scene.sampled)]
    np.random.default_rng(7).shuffle(replies)
    state, report = scene.federation.server.run_round(scene.state, replay(*replies))
    assert same(state, scene.outcome)
    assert len(report.refused) == len(flood)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_nothing_but_mutations_the_round_is_given_up(scene, family):
    """A mutation is one of the first attempt; to the others nobody answers."""
    state = scene.state
    before = (state.round, dict(state.accepted), state.model.numpy().tobytes())
    attempts = iter([[(bad.sender, bad.message) for bad in draw(family, scene)], [], []])
    said = "round 2 was given up after 3 attempts with no valid update"
    with pytest.raises(UserError, match=said) as given_up:
        scene.federation.server.run_round(state, lambda sampled, broadcast: next(attempts))
    assert str(copy(given_up.value)) == str(given_up.value)  # as it comes from a worker process
    assert (state.round, dict(state.accepted), state.model.numpy().tobytes()) == before


def test_a_second_answer_in_a_round_is_a_duplicate(scene):
    """Whether it is the same message again or another that would be valid by itself."""
    server = scene.federation.server
    for n in scene.sampled:
        header, payload = split(scene.now[n])
        for again in (scene.now[n], sign(canonical(header), bytes(len(payload)))):
            with pytest.raises(Rejected) as refusal:
                scene.expected.check(n, again, {n})
            assert refusal.value.reason == Reason.DUPLICATE
            replies = [*((m, scene.now[m]) for m in scene.sampled), (n, again)]
            state, report = server.run_round(scene.state, replay(*replies))
            assert same(state, scene.outcome)
            assert [(entry.client, entry.reason) for entry in report.refused] == [(n, Reason.DUPLICATE)]


def test_a_hundred_replays_are_a_hundred_refusals(scene):
    """Each client's updates of rounds 1 to 10, played again in round 11."""
    federation = make_federation(scene.federation.server.task.config)
    server = federation.server
    state, heard = server.begin(), []
    for number in range(1, 11):
        answers = answer_all(federation, state, 0)
        heard += answers.items()
        state, _ = server.run_round(state, replay(*((n, answers[n]) for n in server.sample(number, 0))))
    assert len(heard) == 100
    now = answer_all(federation, state, 0)
    honest = [(n, now[n]) for n in server.sample(11, 0)]
    alone, _ = server.run_round(state, replay(*honest))
    among, report = server.run_round(state, replay(*heard, *honest))
    assert same(among, alone)
    assert [entry.reason for entry in report.refused] == [Reason.ROUND] * 100


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_thirty_percent_bad_clients_the_run_equals_the_honest_one(variant):
    """Five rounds with all ten clients; three of them send something else wrong each time."""
    federation = make_federation(VARIANTS[variant].replace(clients_per_round=10, quorum=7))
    server, bad = federation.server, {1, 4, 8}
    rng = np.random.default_rng(3)

    def spoil(message):
        header, payload = split(message)
        codec = VARIANTS[variant].update_codec
        values = read(codec, payload)
        return [
            lambda: message[: int(rng.integers(len(message)))],
            lambda: sign(canonical({**header, "examples": 10**12}), payload),
            lambda: sign(canonical(header), write(codec, np.full_like(values, np.nan))),
            lambda: sign(canonical(header), write(codec, np.full_like(values, np.inf))),
            lambda: sign(canonical({**header, "client": 0}), payload),
            lambda: rng.bytes(len(message)),
        ][int(rng.integers(6))]()

    def run(reply_of_bad):
        local = LocalClients(federation.clients, 1)

        def exchange(sampled, broadcast):
            for n, reply in local.exchange(sampled, broadcast):
                yield from reply_of_bad(n, reply) if n in bad else [(n, reply)]

        states, reports = [server.begin()], []
        for _ in range(5):
            state, report = server.run_round(states[-1], exchange)
            states.append(state)
            reports.append(report)
        return states, reports

    attacked, reports = run(lambda n, reply: [(n, spoil(reply))])
    honest, _ = run(lambda n, reply: [])
    assert all(same(a, b) for a, b in zip(attacked, honest, strict=True))
    assert all({entry.client for entry in report.refused} == bad for report in reports)
    assert all(report.accepted == [0, 2, 3, 5, 6, 7, 9] for report in reports)
    everyone, _ = run(lambda n, reply: [(n, reply)])
    assert not torch.equal(everyone[-1].model, honest[-1].model)


def test_below_quorum_the_round_is_repeated_with_other_clients(scene):
    """Two of four fail in the first attempt; the second attempt asks afresh and is all that counts."""
    federation = make_federation(scene.federation.server.task.config.replace(quorum=3))
    federation.memories.update(scene.federation.memories)
    server, state = federation.server, scene.state
    first, second = (answer_all(federation, state, attempt) for attempt in (0, 1))

    def exchange(sampled, broadcast):
        if sampled == server.sample(2, 0):
            return [(n, first[n] if place < 2 else b"?") for place, n in enumerate(sampled)]
        return [(n, second[n]) for n in sampled]

    assert server.sample(2, 0) != server.sample(2, 1)
    moved, report = server.run_round(state, exchange)
    assert report.attempts == 2
    assert report.accepted == server.sample(2, 1)
    assert {moved.accepted[n] for n in report.accepted} == {(2, 1)}
    assert [entry["attempt"] for entry in list_refused(report.told)] == [0, 0]


def test_a_hundred_bombs_cost_no_memory(scene):
    """Messages that promise or hold far too much are refused before anything is made of them."""
    sender = scene.sampled[0]
    header, payload = split(scene.now[sender])
    head = canonical(header)
    fill = head[:-1] + b',"zz":['
    room = MAX_HEADER - len(fill) - 2
    bombs = [
        bytes(60_000_000),
        sign(head, bytes(40_000_000)),
        b"FMLH\1\0" + struct.pack("<I", 2**32 - 1) + bytes(64),
        sign(head, payload, length=2**32 - 1),
        sign(b"[" * (MAX_HEADER // 2) + b"]" * (MAX_HEADER // 2), payload),
        sign(fill + b",".join([b"{}"] * (room // 3)) + b"]}", payload),
        sign(fill + b",".join([b'""'] * (room // 3)) + b"]}", payload),
        sign(fill + b"9" * 4000 + b"]}", payload),
        sign(fill + b"1e999999999" + b"]}", payload),
        sign(canonical({**header, "zz": {str(i): {} for i in range(5000)}}), payload),
    ]
    expected = scene.expected

    def refuse_all():
        for bomb in bombs * 10:
            with pytest.raises(Rejected):
                expected.check(sender, bomb, ())

    tracemalloc.start()
    try:
        refuse_all()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        refuse_all()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(bombs * 10) == 100
    assert peak - before < 50e6
    assert after - before < 1e6


def test_an_update_is_decoded_within_twice_its_size():
    """The cap follows from the model: what is accepted costs no more than the model's own size or so."""
    federation = make_federation(CONFIG.replace(feature_dim=2000, hidden_sizes=(200,)))
    server = federation.server
    size = 4 * server.task.stack.num_parameters
    n = server.sample(1, 0)[0]
    reply = federation.clients[n].answer(server.broadcast(server.begin(), 0, n), Memory())[0]
    expected = Expected(
        server.run,
        server.task.fingerprint,
        1,
        0,
        "fp32",
        server.task.stack.num_parameters,
        server.max_examples,
        Bounds(dict.fromkeys(server.max_examples, 10.0), 10.0, True),
        100,
        0,
    )
    tracemalloc.start()
    try:
        expected.check(n, reply, ())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 3e6
    assert peak < 2 * size


def test_a_client_that_raises_is_named_and_left_out(scene):
    federation, server = scene.federation, scene.federation.server
    sampled = server.sample(1, 0)
    broken = {sampled[0]: RuntimeError("disk on fire"), sampled[1]: MemoryError("no room")}

    class Broken(Client):
        def answer(self, broadcast, memory):
            raise broken[self.client_id]

    start = server.begin()
    answers = answer_all(federation, start, 0)
    honest, _ = server.run_round(start, replay(*((n, answers[n]) for n in sampled[2:])))
    clients = dict(federation.clients)
    for n in broken:
        old = clients[n]
        clients[n] = Broken(old.task, n, *old._raw, CPU)
    local = LocalClients(clients, 2)
    state, report = server.run_round(start, local.exchange)
    assert same(state, honest)
    assert report.accepted == sampled[2:]
    assert {entry.client: (entry.reason, entry.detail) for entry in report.refused} == {
        sampled[0]: (Reason.FAILED, "RuntimeError: disk on fire"),
        sampled[1]: (Reason.FAILED, "MemoryError: no room"),
    }
    assert not broken.keys() & local.memories.keys()


def test_a_client_refuses_a_broadcast_that_is_not_for_it(scene):
    """What goes down the wire is checked as what comes up is."""
    federation, server = scene.federation, scene.federation.server
    a, b = scene.sampled[:2]
    other = make_federation(VARIANTS["fp32"].replace(local_epochs=2))
    message = server.broadcast(scene.state, 0, a)
    header, payload = split(message)
    cases = [
        (server.broadcast(scene.state, 0, b), Reason.CLIENT),
        (other.server.broadcast(other.server.begin(), 0, a), Reason.CONFIG),
        (message[:-1], Reason.CORRUPT),
        (scene.now[a], Reason.MALFORMED),
        (sign(canonical({**header, "seed": -1}), payload), Reason.MALFORMED),
        (sign(canonical({**header, "label_seeds": ["1"]}), payload), Reason.MALFORMED),
    ]
    for number, (bad, reason) in enumerate(cases):
        with pytest.raises(Rejected) as refusal:
            federation.clients[a].answer(bad, Memory())
        assert refusal.value.reason == reason, number
