"""Wrong settings, and names that a file must give back."""

from datetime import date

from faulty_inputs.cases import Cases
from faulty_inputs.world import SMALL, invoke, toml
from fedmlh.config import SETTINGS

CASES = Cases()
add = CASES.add


def running(*arguments, text=None):
    """Call `run` with a config file of its own."""

    def build(world, box, rng):
        (box / "config.toml").write_bytes(toml().encode() if text is None else text)
        return ["run", str(box / "config.toml"), "--out", str(box / "out"), *arguments]

    return build


def misspell(name):
    middle = len(name) // 2
    return name[:middle] + name[middle] + name[middle:]


for number, field in enumerate(SETTINGS):
    wrong = misspell(field)
    by_flag = running("--set", f"{wrong}=1")
    in_file = running(text=toml(**{wrong: 1}).encode())
    add(
        f"misspelt {wrong}",
        in_file if number % 2 else by_flag,
        says=f"there is no setting '{wrong}'; did you mean '{field}'?",
    )
    day = f"{field} = {date(2024, 2, 29)}\n".encode()
    text = "".join(line + "\n" for line in toml().splitlines() if not line.startswith(f"{field} = ")).encode()
    add(f"a date for {field}", running(text=text + day), says=f"{field} is ")
    add(f"a table for {field}", running(text=text + f"[{field}]\nx = 1\n".encode()), says=f"{field} is ")
    section = SETTINGS[field].section.name
    add(
        f"a second value for {field}",
        running(text=toml(**{field: 1}).encode() + f"[{section}]\n{field} = 1\n".encode()),
        says=f"{field} is set twice, as {field} and as {section}.{field}",
    )
for setting, says in (
    ("rounds=0", "rounds is 0: it must be "),
    ("rounds=-1", "rounds is -1"),
    ("rounds=1.5", "rounds is 1.5: it must be a whole number"),
    ("rounds=true", "rounds is True"),
    ("rounds=", "rounds is ''"),
    ("rounds=many", "rounds is 'many'"),
    ("rounds=nan", "rounds is nan"),
    ("rounds=1" + "0" * 400, "rounds is "),
    ("rounds=1" + "0" * 5000, "rounds is "),
    ("seed=-1", "seed is -1"),
    (f"seed={2**63}", "seed is "),
    ("learning_rate=nan", "learning_rate is "),
    ("learning_rate=inf", "learning_rate is "),
    ("learning_rate=-1", "learning_rate is -1"),
    ("learning_rate=1" + "0" * 400, "learning_rate is "),
    ("learning_rate=1e999", "learning_rate is "),
    ("validation_fraction=0.95", "validation_fraction is 0.95: it must be from 0 to 0.9"),
    ("validation_fraction=0", "selection 'validation' needs a validation_fraction above 0"),
    ("validation_fraction=0.001", "leaves none on one side"),
    ("feature_signed=yes", "feature_signed is 'yes': say true or false"),
    ("feature_signed=1", "feature_signed is 1: say true or false"),
    ("algorithm=fedprox", "algorithm is 'fedprox': choose one of fedmlh, fedavg"),
    ("loss=1", "loss is 1: choose one of bce, softmax"),
    ("hidden_sizes=0", "hidden_sizes is 0"),
    ("hidden_sizes=4,x", "hidden_sizes is '4,x'"),
    ("hidden_sizes=[4,[5]]", "hidden_sizes is [5]"),
    ("hidden_sizes=[1.5]", "hidden_sizes is 1.5"),
    ("hidden_sizes=1000000000000000000000", "hidden_sizes"),
    ("hidden_sizes=1000000000000000", "hidden_sizes"),
    ("top_k=[]", "top_k is empty"),
    ("top_k=0", "top_k is 0"),
    ("label_seeds=random", "label_seeds is 'random'"),
    ("label_seeds=1", "label_seeds needs at least 2 numbers"),
    ("label_seeds=1,-1", "label_seeds needs at least 2 numbers"),
    ("feature_seeds=[]", "feature_seeds needs at least 1 numbers"),
    ("num_tables=1025", "num_tables is 1025"),
    ("num_buckets=13", "num_buckets is 13, more than the 12 labels"),
    ("clients_per_round=4", "clients_per_round is 4, but there are only 3 clients"),
    ("quorum=3", "quorum is 3, more than the 2 clients"),
    ("partition=folder", "partition 'folder'"),
    ("data_format=npz", "no data set recognised in the format npz"),
    ("text_dim=0", "text_dim is 0"),
    ("device=tpu", "device is 'tpu'"),
    ("=5", "'=5' sets nothing: write name=value"),
    ("rounds", "'rounds' sets nothing: write name=value"),
    ("", "'' sets nothing: write name=value"),
    ("qwertyuiop=1", "there is no setting 'qwertyuiop'"),
    ("rounds=2\nseed=1", "rounds"),
):
    add(
        f"set {setting[:50]} ({len(setting)})",
        lambda world, box, rng, setting=setting: [
            *running("--set", setting)(world, box, rng),
            "--data",
            str(world.place / "xmc"),
        ],
        says=says,
    )
for name, text, says in (
    ("open string", b'name = "a', "is not valid TOML"),
    ("no value", b"rounds =", "is not valid TOML"),
    ("same key twice", b"rounds = 1\nrounds = 2", "is not valid TOML"),
    ("JSON", b'{"rounds": 1}', "is not valid TOML"),
    ("not UTF-8", b'name = "\xff"', "UTF-8"),
    ("UTF-16", "rounds = 1".encode("utf-16"), "UTF-8"),
    ("zeros", b"\0" * 100, "is not valid TOML"),
    ("deep list", b"hidden_sizes = " + b"[" * 50_000, "is not valid TOML"),
    ("many digits", b"rounds = " + b"1" * 5000, "is not valid TOML"),
    ("many digits that parse", b"rounds = " + b"1" * 4000, "rounds is "),
    ("a section that there is not", b"[runs]\nrounds = 1", "there is no section 'runs'; did you mean 'run'?"),
    ("a section that is a value", b"run = 1", "there is no setting 'run': it is a section"),
    ("quoted key", b'"ro unds" = 1', "there is no setting 'ro unds'; did you mean 'rounds'?"),
    ("empty key", b'"" = 1', "there is no setting ''"),
    ("line break in key", b'"a\\nb" = 1', "there is no setting"),
):
    add(f"toml {name}", running(text=text), says=says)
for config in ("demos", "nowhere.toml", "", ".", "/dev/null/x"):
    add(
        f"config {config!r}",
        lambda world, box, rng, c=config: ["run", c, "--out", str(box / "out")],
        says="is neither a preset",
    )
for arguments in (
    ["--rounds", "x"],
    ["--rounds", "1.5"],
    ["--seed", ""],
    ["--nonsense"],
    ["extra"],
    ["--set"],
):
    add(f"usage run {arguments}", running(*arguments), usage=True)
for arguments in (["nonsense"], ["data", "nonsense"], ["run"], ["predict"], ["report"], ["data", "info"], ["compare"]):
    add(f"usage {arguments}", lambda world, box, rng, arguments=arguments: arguments, usage=True)
for size, value in (("--points", "9"), ("--labels", "1"), ("--features", "x"), ("--seed", "-1")):
    synth = lambda world, box, rng, size=size, value=value: ["data", "synth", str(box / "out"), size, value]  # noqa: E731
    add(f"usage synth {size} {value}", synth, usage=True)
add(
    "synth huge", lambda world, box, rng: ["data", "synth", str(box / "out"), "--points", "1" + "0" * 14], says="points"
)
add("rounds 0", running("--rounds", "0"), says="rounds is 0")
add("algorithm", running("--algorithm", "x"), says="algorithm is 'x'")
add(
    "divergence",
    running(text=toml(learning_rate=1e9, optimizer="sgd", **SMALL).encode()),
    begins=True,
    says="round 1 was given up",
)


# Names that a file must give back.


def round_trip(name):
    """Check that a run under an odd name can be resumed and reported, and its model loaded."""

    def build(world, box, rng):
        out = str(box / "out")
        text = toml(data=str(world.place / "xmc"), rounds=1).replace('"tiny"', name)
        (box / "config.toml").write_text(text, "utf-8")
        arguments = ["run", str(box / "config.toml"), "--out", out]
        for again in (arguments, ["predict", out, "--input", str(world.place / "xmc" / "test.txt")]):
            code, _, stderr = invoke(again)
            assert code == 0, stderr
        return [*arguments, "--resume"]

    return build


for name in ('"a\\tb"', '"\\u007f"', '"line\\nbreak"', '"\\u0000"', '"\\u001b[31m"', '"\\u202e"'):
    add(f"name {name}", running(text=toml().replace('"tiny"', name).encode()), says="name is ")
for name in ('"naïve"', "'quo\"te\\'", '"😀"', "'<script>'", "'[x]$5^^$'"):
    add(f"odd name {name}", round_trip(name), passes=lambda *_: None, must_pass=True)
