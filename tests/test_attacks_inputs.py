"""Attacks by what is read: bombs, numbers out of any sense, and text that is more than text. None of them may work."""

import gzip
import io
import json
import lzma
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, save_npz
from sklearn.feature_extraction.text import HashingVectorizer

from faulty_inputs.world import SETTINGS, invoke, toml, write_sound_data
from fedmlh.config import SETTINGS as KNOWN_SETTINGS
from fedmlh.config import Config
from fedmlh.data.public.archive import unpack
from fedmlh.data.readers.formats import load
from fedmlh.data.text import TOKEN, TextFeatures
from fedmlh.errors import UserError
from fedmlh.evaluation.metrics import ONE, Metrics
from fedmlh.evaluation.questions import Report, read_report, write_report
from fedmlh.federated.messages import QuestionHeader, Rejected

HERE = Path(__file__).parent
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")

# Memory, in a process of its own.

PROBE = """
import json, sys
from pathlib import Path
from fedmlh.errors import UserError
{imports}

def peak():  # VmHWM starts with the program; ru_maxrss would start with what the parent has used
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

base, said, made = peak(), "", None
try:
    made = {action}
except UserError as error:
    said = str(error)
print(json.dumps({{"grown": peak() - base, "said": said, "made": made}}))
"""
LOAD = (
    # What text needs is loaded before memory is counted, and only for text.
    "from fedmlh.data.readers.formats import load; from fedmlh.data.text import TextFeatures\n"
    "if any(Path(sys.argv[1]).glob('*.jsonl*')): TextFeatures.hashing(8).transform(['a warm up'])",
    "[part.X.nnz + part.Y.nnz for part in vars(load(sys.argv[1])).values() if hasattr(part, 'X')]",
)
UNPACK = (
    "from fedmlh.data.public.archive import unpack",
    "unpack(Path(sys.argv[1]), Path(sys.argv[2]), lambda name: name.endswith('.txt'))",
)


def probe(imports: str, action: str, *arguments: object) -> tuple[float, str, Any]:
    """Return by how many MiB the memory of a fresh process grew at most, what it refused with, and what it made."""
    code = PROBE.format(imports=imports, action=action)
    environment = {**os.environ, "FEDMLH_CACHE": "/dev/null/none"}  # no folder, and none can be made there
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = json.loads(done.stdout)
    return found["grown"], found["said"], found["made"]


# 12: archives.


def tar_header(name: str, size: int, kind: bytes = b"0") -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def write_tar_xz(path: Path, *parts: bytes | int) -> None:
    """Write parts of a tar file, packed; a number is a count of MiB of zeros."""
    with lzma.open(path, "wb", preset=0) as file:
        for part in parts:
            for _ in range(part if isinstance(part, int) else 1):
                file.write(bytes(1 << 20) if isinstance(part, int) else part)


def try_to_unpack(archive: Path) -> tuple[float, str]:
    target = archive.parent / "out"
    target.mkdir()
    grown, said, _ = probe(*UNPACK, archive, target)
    assert not said or not list(target.iterdir())
    return grown, said


@needs_proc
@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"X"])
def test_attack_12_a_tar_header_does_not_get_the_memory_that_it_claims(tmp_path: Path, kind: bytes) -> None:
    bomb = tmp_path / "bomb.tar.xz"
    write_tar_xz(bomb, tar_header("h", 256 << 20, kind), 256, tar_header("train.txt", 0), bytes(1024))
    grown, said = try_to_unpack(bomb)
    assert "bomb.tar.xz: " in said
    assert grown < 40


@needs_proc
@pytest.mark.parametrize("size", [0, 1 << 14])
def test_attack_12_many_members_and_headers_count_towards_the_limit(tmp_path: Path, size: int) -> None:
    bomb = tmp_path / "bomb.tar.xz"
    record = b"%d comment=" % size + b"x" * size
    one = tar_header("h", len(record), b"g") + record.ljust(-len(record) % 512 + len(record), b"\0") if size else b""
    one += tar_header("a", 0)
    write_tar_xz(bomb, *[one * (100_000_000 // len(one) // 100)] * 100)
    grown, said = try_to_unpack(bomb)
    assert "more than 100 times its size" in said
    assert grown < 40


def test_attack_12_an_xz_file_that_wants_gigabytes_for_its_dictionary_is_refused(tmp_path: Path) -> None:
    content = bytearray(lzma.compress(tar_header("train.txt", 0) + bytes(1024), preset=0))
    start, size = 12, 4 * (content[12] + 1)  # of the block's header, whose last 4 bytes are its checksum
    at = content.index(b"\x21\x01", start, start + size) + 2
    content[at] = 39  # 3 GiB
    content[start + size - 4 : start + size] = struct.pack("<I", zlib.crc32(content[start : start + size - 4]))
    (tmp_path / "bomb.tar.xz").write_bytes(content)
    with pytest.raises(UserError, match=r"bomb\.tar\.xz: "):
        unpack(tmp_path / "bomb.tar.xz", tmp_path, lambda name: True)


def write_directory_bomb(path: Path, entries: int) -> None:
    """Make a zip file whose directory lists the same empty file again and again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as pack:
        pack.writestr("a.txt", "")
    content = buffer.getvalue()
    start, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    listed = content[start:end] * entries
    count = min(entries, 65535)
    closing = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(listed), start, 0)
    path.write_bytes(content[:start] + listed + closing)


@needs_proc
def test_attack_12_a_zip_directory_of_many_entries_is_not_read(tmp_path: Path) -> None:
    write_directory_bomb(tmp_path / "bomb.zip", 200_000)
    grown, said = try_to_unpack(tmp_path / "bomb.zip")
    assert "bomb.zip: " in said
    assert grown < 40


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_attack_12_a_zip_member_whose_method_has_no_bound_is_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", method) as pack:
        pack.writestr("train.txt", "x")
    with pytest.raises(UserError, match=r"bomb\.zip: .*not deflate"):
        unpack(tmp_path / "bomb.zip", tmp_path, lambda name: True)


@pytest.mark.parametrize("packing", ["", "gz", "bz2", "xz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_attack_12_honest_archives_come_out_whole(tmp_path: Path, packing: str, form: int) -> None:
    rng = np.random.default_rng(0)
    long = "/".join(["folder" * 10] * 3) if form != tarfile.USTAR_FORMAT else "folder"
    files = {
        "train.txt": rng.bytes(3_000_001),
        f"{long}/test.txt": b"",
        f"{long}/{'n' * 90}.txt": b"x" * 512,
        "größe.txt" if form != tarfile.USTAR_FORMAT else "size.txt": b"y" * 513,
    }
    with tarfile.open(tmp_path / "a.tar", f"w:{packing}", format=form, pax_headers={"comment": "of all"}) as bundle:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content))
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo(f"odd{kind.decode()}.txt")
            member.type, member.linkname = kind, "train.txt"
            bundle.addfile(member)
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "a.tar", tmp_path / "out", lambda name: True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        Path(name).name: content for name, content in files.items()
    }


# 14 and 15: text is text.

#: Steers a terminal, a line or the direction of reading.
CONTROLS = [chr(code) for code in (*range(32), *range(127, 160), 0x061C, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF)]
CONTROLS += [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xD800, 0xDFFF, 0xE0041)]
EVIL = "[/x]$5^^$\x1b[31m\x1b]0;owned\x07\x9b2J\u202e"


def assert_harmless(*outputs: str) -> None:
    for output in outputs:
        assert not {character for character in CONTROLS if character in output} - {"\n"}


def test_attack_14_a_report_shows_odd_names_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sound_data(tmp_path / "sound")
    odd = "[/x]$5^^$ 😀 <i>" + "long " * 30
    shutil.copytree(tmp_path / "sound" / "xmc", tmp_path / odd)
    shutil.copytree(tmp_path / "sound" / "xmc", tmp_path / "plain")
    Path("config.toml").write_text(toml(rounds=1))
    for name, data in (("a", odd), ("b", "plain")):
        code, _, stderr = invoke(["run", "config.toml", "--data", data, "--out", name])
        assert code == 0, stderr
    code, stdout, stderr = invoke(["report", "a", "b"], plots=True)
    assert code == 0, stderr
    assert "P@1, %" in stdout
    page = Path("report.html").read_text("utf-8")
    assert "[/x]$5^^$ 😀 &lt;i&gt;" in page
    assert "<i>" not in page


def test_attack_14_figures_take_any_name_literally(tmp_path: Path) -> None:
    from fedmlh.reproduction.figures.drawing import Drawing

    drawing = Drawing(1, 1)
    panel = drawing.panels[0][0]
    for name in ("_hidden", "$5^^$", "a $x$ b \\$", "\x1b[31m", "名前 😀", "\ud800"):
        panel.plot([1, 10], [1, 10], label=name)
        panel.set(title=f"{name}\nof two lines", xlabel=name, ylabel=name, xscale="log")
        panel.text(1, 1, name)
        drawing.legend(panel, columns=2)
        figure = drawing.finish("a", "b", "c")
        assert figure.svg.startswith(b"<?xml")


def test_attack_14_every_number_of_a_config_has_a_range_that_makes_sense() -> None:
    unbounded = [
        name
        for name, setting in KNOWN_SETTINGS.items()
        if name not in ("label_seeds", "feature_seeds")
        and not setting.part
        and setting.at_most is None
        and isinstance(setting.default, int | float | tuple)
        and not isinstance(setting.default, bool)
    ]
    assert unbounded == []


@pytest.mark.parametrize(
    "setting",
    [
        "top_k=[1000000000000]",
        "top_k=[10001]",
        f"top_k={list(range(1, 200))}",
        "propensity_a=1e15",
        "propensity_b=1e15",
        "num_clients=1000000000",
        "rounds=1000000000000",
        "batch_size=1000000000000",
        "local_epochs=1000000000000",
        "synthetic_points=1000000000000",
        "synthetic_features=1000000000000",
        "synthetic_labels=1000000000000",
        "num_buckets=1000000000000",
        "hidden_sizes=[1000000000]",
        f"hidden_sizes={[8] * 1000}",
        f"label_seeds={[1] * 100_000}",
        "learning_rate=1e15",
        "prox_mu=1e15",
        "loss_tau=1e15",
        "dirichlet_alpha=1e15",
        "server_learning_rate=1e15",
        "server_tau=1e15",
        'name="a\\u0000b"',
        'name="a\\u001b[31mb"',
        'data="a\\u0000b"',
        'data="a\\u202eb"',
    ],
)
def test_attack_14_a_setting_out_of_any_sense_is_refused_by_its_name(setting: str) -> None:
    values = {**SETTINGS, **tomllib.loads(setting)}
    with pytest.raises(UserError) as caught:
        Config.from_mapping(values, "here")
    said = str(caught.value)
    assert said.startswith(f"here: {setting.partition('=')[0]} ")
    assert len(said) < 400
    assert_harmless(said)


@pytest.mark.parametrize(
    "text",
    [
        "rounds" + ".a" * 3000 + " = 1",
        "hidden_sizes = [{a" + ".a" * 3000 + " = 1}]",
        "algorithm = 0x" + "f" * 10_000,
        "name = 0o" + "7" * 10_000,
        "learning_rate = 0b" + "1" * 10_000,
        "x" * 60_000 + " = 1",
    ],
    ids=lambda text: text[:20],
)
def test_attack_14_a_value_that_cannot_even_be_shown_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Config.from_toml(text, "here")
    assert len(str(caught.value)) < 200


# The bound of each real number is there to be reached: what training makes of it is a result or a sentence.
REALS = [name for name, setting in KNOWN_SETTINGS.items() if isinstance(setting.default, float)]


@pytest.mark.parametrize("name", REALS)
@pytest.mark.parametrize("end", ["at_least", "at_most"])
def test_attack_14_the_ends_of_every_range_run_or_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, end: str
) -> None:
    monkeypatch.chdir(tmp_path)
    value = getattr(KNOWN_SETTINGS[name], end)
    if value is None:
        pytest.fail(f"{name} has no {end}")
    needs: dict[str, dict[str, object]] = {
        "server_tau": {"server_optimizer": "adam"},
        "server_beta2": {"server_optimizer": "adam"},
        "server_momentum": {"server_optimizer": "momentum"},
        "loss_tau": {"loss": "balanced-bce"},
        "budget_mib": {"sizes": "auto"},
        "dirichlet_alpha": {"partition": "dirichlet"},
    }
    own = {"synthetic_points": 50, "synthetic_labels": 20, "synthetic_features": 50, "rounds": 1, **needs.get(name, {})}
    Path("config.toml").write_text(toml(**{**own, name: float(value)}))
    code, stdout, stderr = invoke(["run", "config.toml", "--out", "out"])
    assert code in (0, 2)
    assert "Traceback" not in stdout + stderr
    assert code == 0 or stderr.count("fedmlh: ") == 1


def test_attack_15_label_names_do_not_steer_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sound_data(tmp_path)
    names = [
        f"k{i}\tname {character!a}{character}{EVIL}" for i, character in enumerate("\x00\x08\x1b\x7f\x85\x9b\u2028")
    ]
    names += [f"k{i}{EVIL}\tname" for i in range(len(names), 12)]
    (tmp_path / "jsonl" / "labels.txt").write_text("\n".join(names) + "\n", "utf-8", newline="")
    for part in ("trn", "tst"):
        lines = [{"text": f"word{i % 7} word0", "labels": [names[i % 12].partition("\t")[0]]} for i in range(40)]
        (tmp_path / "jsonl" / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("config.toml").write_text(toml(data=str(tmp_path / "jsonl"), rounds=1))
    code, stdout, stderr = invoke(["run", "config.toml", "--out", "out"])
    assert code == 0, stderr
    assert_harmless(stdout, stderr)
    code, stdout, stderr = invoke(["predict", "out", "--text", f"word0 {EVIL}", "--top", "12"])
    assert code == 0, stderr
    assert_harmless(stdout, stderr)
    assert r"[/x]$5^^$\x1b[31m\x1b]0;owned\x07\x9b2J\u202e" in stdout
    # JSON stays JSON, and tells the names as they are.
    code, stdout, stderr = invoke(["predict", "out", "--input", str(tmp_path / "jsonl" / "tst.jsonl"), "--top", "12"])
    assert code == 0, stderr
    assert_harmless(stdout, stderr)
    predicted = {label["key"] for line in stdout.splitlines() for label in json.loads(line)["predicted_labels"]}
    assert predicted == {name.partition("\t")[0] for name in names}


def test_attack_15_config_keys_and_folder_names_do_not_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(f"{json.dumps('a' + EVIL)} = 1\n", "utf-8")
    code, stdout, stderr = invoke(["run", "config.toml"])
    assert code == 2
    assert_harmless(stdout, stderr)
    write_sound_data(tmp_path)
    odd = "[|x]$5^^$ :warning: [red]"
    (tmp_path / "xmc").rename(odd)
    train = Path(odd, "train.txt").read_bytes()
    Path(odd, "train.txt").write_bytes(train[:-1])  # calls for a note that names the file
    for arguments in (
        ["data", "info", odd],
        ["data", "info", odd, "--json"],
        ["data", "convert", odd, odd + "\x1b[2J"],
    ):
        code, stdout, stderr = invoke(arguments)
        assert code == 0, stderr
        assert_harmless(stdout, stderr)
        assert "--json" in arguments or odd in stdout
    for path in (EVIL.replace("/", "|"), odd + "\x1b[2J", "nowhere\x1b[2J"):
        code, stdout, stderr = invoke(["data", "info", path])
        assert code == 2
        assert_harmless(stdout, stderr)


def test_attack_15_enrolments_do_not_steer_the_terminal(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    federation = tmp_path / "federation"
    shutil.copytree(HERE / "golden" / "folders" / "federation", federation)
    path = federation / "enrolled" / "site-0.json"
    good = json.loads(path.read_text())
    for change in ({EVIL: 1}, {"sites": EVIL}, {"algorithm": [EVIL]}):
        path.write_text(json.dumps({**good, "terms": {**good["terms"], **change}}))
        code, stdout, stderr = invoke(["federation", "status", str(federation)])
        assert code == 2
        assert_harmless(stdout, stderr)
    for field in ("site", "public_key", "examples"):
        path.write_text(json.dumps({**good, field: EVIL}))
        code, stdout, stderr = invoke(["federation", "status", str(federation)])
        assert_harmless(stdout, stderr)
    federation.joinpath("server", "outcome.json").write_text(json.dumps({"problem": EVIL}))
    path.write_text(json.dumps(good))
    code, stdout, stderr = invoke(["federation", "status", str(federation)])
    assert code == 0, stderr
    assert_harmless(stdout, stderr)


def test_attack_15_a_console_shows_markup_and_escapes_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.table import Table

    from fedmlh.cli import terminal

    stream = io.StringIO()
    console = terminal.PlainConsole(file=stream, force_terminal=True, color_system=None, width=200)
    monkeypatch.setattr(terminal, "errors", console)
    table = Table(f"head {EVIL}")
    table.add_row(f"cell {EVIL}", style="bold")
    console.print(table)
    console.print(f"line :warning: {EVIL}", style="dim", soft_wrap=True)
    with terminal.progress() as bar:
        bar.add_task(f"task {EVIL}", total=3)
        bar.refresh()
    shown = stream.getvalue()
    escaped = r"[/x]$5^^$\x1b[31m\x1b]0;owned\x07\x9b2J\u202e"
    for place in ("head", "cell", "line :warning:", "task"):
        assert f"{place} {escaped}" in shown
    assert "\x1b[31m" not in shown
    assert "\x1b]" not in shown


def test_attack_15_every_control_character_is_shown_and_ordinary_text_stays() -> None:
    from fedmlh.display import escape_html, make_printable

    for code in range(sys.maxunicode + 1):
        character, category = chr(code), unicodedata.category(chr(code))
        if character in CONTROLS or category in ("Cc", "Cs", "Zl", "Zp"):
            shown = make_printable(f"a{character}b")
            assert shown.isascii()
            assert shown.isprintable()
        elif not category.startswith("C") or character in "\u200c\u200d":
            assert make_printable(character) == character
    assert escape_html("<a href='x' b=\"y\">&\x1b") == "&lt;a href=&#x27;x&#x27; b=&quot;y&quot;&gt;&amp;\\x1b"


# 18: data files.

NEWLINE = b"\n"
SOUND_LINE = '{"text": "word", "labels": ["a"]}\n'


def write_csr(path: Path, rows: int, columns: int, nnz: int, fill: Callable[[int], np.ndarray] | None = None) -> None:
    """Make a CSR matrix of zeros, all of whose entries are in its first row."""
    indptr = np.full(rows + 1, nnz, np.int32)
    indptr[0] = 0
    data = np.zeros(nnz, np.float32) if fill is None else fill(nnz)
    arrays = {"shape": np.array([rows, columns]), "data": data, "indices": np.zeros(nnz, np.int32), "indptr": indptr}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in {"format": np.array(b"csr"), **arrays}.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)


def npz_folder(folder: Path, **changes: Callable[[Path], None]) -> Path:
    """Write a sound folder of four files, some of them with other content."""
    folder.mkdir()
    for name in ("X.trn", "Y.trn", "X.tst", "Y.tst"):
        changes.get(name.replace(".", "_"), lambda path: write_csr(path, 2, 1, 1))(folder / f"{name}.npz")
    return folder


@needs_proc
@pytest.mark.parametrize(
    "bomb",
    [
        {"X_trn": lambda path: write_csr(path, 2, 1, 20_000_000)},
        {"X_trn": lambda path: write_csr(path, 40_000_000, 1, 1)},
        {"Y_tst": lambda path: write_csr(path, 2, 1, 20_000_000, lambda count: np.ones(count, np.float32))},
    ],
    ids=["entries", "rows", "labels"],
)
def test_attack_18_an_npz_of_zeros_is_refused_before_it_is_unpacked(
    tmp_path: Path, bomb: dict[str, Callable[[Path], None]]
) -> None:
    folder = npz_folder(tmp_path / "data", **bomb)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4_000_000
    grown, said, _ = probe(*LOAD, folder)
    assert "times its size" in said
    assert grown < 40


@needs_proc
def test_attack_18_a_huge_directory_of_an_npz_is_not_read(tmp_path: Path) -> None:
    folder = npz_folder(tmp_path / "data", X_trn=lambda path: write_directory_bomb(path, 200_000))
    grown, said, _ = probe(*LOAD, folder)
    assert "X.trn.npz: " in said
    assert grown < 40


@needs_proc
@pytest.mark.parametrize("name", ["indptr", "indices", "data"])
def test_attack_18_arrays_that_do_not_fit_each_other_are_refused_by_their_headers(tmp_path: Path, name: str) -> None:
    def lie(path: Path) -> None:
        # Noise that is read by nobody, so that no ratio gives the bomb away.
        noise = np.random.default_rng(0).random(2_000_000, np.float32)
        write_csr(path, 2, 1, len(noise), lambda count: noise)
        sizes = {"indptr": 40_000_000, "indices": 40_000_000, "data": 40_000_000}
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.zeros(sizes[name], np.float32 if name == "data" else np.int32))
        members[f"{name}.npy"] = buffer.getvalue()
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for member, stored in members.items():
                archive.writestr(member, stored)

    grown, said, _ = probe(*LOAD, npz_folder(tmp_path / "data", X_trn=lie))
    assert "X.trn.npz: " in said
    assert name in said or "indices" in said
    assert grown < 40


def gzip_parts(path: Path, *parts: tuple[bytes, int]) -> None:
    """Pack pieces, each repeated as often as given, as well as they can be packed."""
    with gzip.GzipFile(path, "wb", 6, mtime=0) as file:
        for piece, times in parts:
            block = max(1, (1 << 20) // len(piece))
            for _ in range(times // block):
                file.write(piece * block)
            file.write(piece * (times % block))


TEXT_BOMBS: dict[str, tuple[str, tuple[tuple[bytes, int], ...]]] = {
    "one endless word": ("jsonl", ((b'{"text":"', 1), (b"a", 60_000_000), (b'","labels":["a"]}\n', 1))),
    "one endless text": ("jsonl", ((b'{"text":"', 1), (b"aa ", 20_000_000), (b'","labels":["a"]}\n', 1))),
    "no end of a line": ("jsonl", ((b" ", 60_000_000),)),
    "blank lines": ("jsonl", ((b" " * 30 + b"\n", 2_000_000),)),
    "labels of a point": ("jsonl", ((b'{"text":"a","labels":["aa"', 1), (b',"aa"', 12_000_000), (b"]}\n", 1))),
    "empty points": ("jsonl", ((b'{"text":"","labels":["a"]}\n', 2_000_000),)),
    "empty lists": ("jsonl", ((b'{"text":"a","labels":["a"],"x":[[]', 1), (b",[]", 20_000_000), (b"]}\n", 1))),
    "points without anything": ("xmc", ((b"200000000 1 1\n", 1), (b"\n", 60_000_000))),
    "one endless point": ("xmc", ((b"1 1 1\n0", 1), (b" 0:1", 15_000_000), (b"\n", 1))),
    "svmlight": ("svm", ((b"0 1:1\n", 10_000_000),)),
}


@needs_proc
@pytest.mark.parametrize("name", TEXT_BOMBS)
def test_attack_18_a_packed_text_of_repetitions_is_refused_while_it_is_read(tmp_path: Path, name: str) -> None:
    kind, parts = TEXT_BOMBS[name]
    names, sound = {
        "jsonl": (("trn.jsonl.gz", "tst.jsonl.gz"), SOUND_LINE),
        "xmc": (("train.txt.gz", "test.txt.gz"), "1 1 1\n0 0:1\n"),
        "svm": (("train.svm.gz", "test.svm.gz"), "0 1:1\n"),
    }[kind]
    gzip_parts(tmp_path / names[0], *parts)
    gzip_parts(tmp_path / names[1], (sound.encode(), 1))
    assert (tmp_path / names[0]).stat().st_size < 1_000_000
    grown, said, _ = probe(*LOAD, tmp_path)
    assert names[0] in said
    assert grown < 300


@needs_proc
def test_attack_18_a_line_without_end_is_refused_in_any_text_file(tmp_path: Path) -> None:
    write_sound_data(tmp_path)
    for folder, name in (
        ("jsonl", "trn.jsonl"),
        ("jsonl", "labels.txt"),
        ("xmc", "train.txt"),
        ("xmc", "filter_labels_train.txt"),
        ("svmlight", "train.svm"),
    ):
        path = tmp_path / folder / name
        good = path.read_bytes()
        path.write_bytes(good + b"1" * 9_000_000)
        with pytest.raises(UserError, match=rf"{name}, line {good.count(NEWLINE) + 1}: is longer than"):
            load(tmp_path / folder)
        path.write_bytes(good)
    (tmp_path / "xmc" / "train.txt").write_bytes(b"1 1 1\n" + b"1" * 300_000_000)
    grown, said, _ = probe(*LOAD, tmp_path / "xmc")
    assert "train.txt, line 2: is longer than" in said
    assert grown < 40


@needs_proc
@pytest.mark.parametrize("kind", ["xmc", "svm", "npz"])
def test_attack_18_one_large_number_does_not_make_millions_of_labels(tmp_path: Path, kind: str) -> None:
    if kind == "npz":
        for part in ("trn", "tst"):
            save_npz(tmp_path / f"X.{part}.npz", csr_matrix(np.ones((1, 1), np.float32)))
            save_npz(tmp_path / f"Y.{part}.npz", csr_matrix(([1.0], ([0], [0])), (1, 2**24), np.float32))
    else:
        text = {"xmc": f"1 1 {2**24}\n0 0:1\n", "svm": f"{2**24 - 1} 1:1\n"}[kind]
        for part in ("train", "test"):
            (tmp_path / f"{part}.{'txt' if kind == 'xmc' else 'svm'}").write_text(text)
    grown, said, _ = probe(*LOAD, tmp_path)
    assert "16,777,216 labels" in said
    assert grown < 40


def write_large(folder: Path, kind: str) -> int:
    """Write honest data of a few million entries; return the bytes of its arrays."""
    rng = np.random.default_rng(0)
    n, d, p, words = 40_000, 50_000, 1000, 60
    columns = np.sort(rng.integers(0, d, (n, words)), axis=1)
    labels = rng.integers(0, p, (n, 3))
    labels[0] = p - 1
    if kind == "npz":
        values = rng.random(n * words, np.float32)
        for part in ("trn", "tst"):
            X = csr_matrix((values, columns.ravel().astype(np.int32), np.arange(0, n * words + 1, words)), (n, d))
            save_npz(folder / f"X.{part}.npz", X)
            Y = csr_matrix((np.ones(3 * n, np.float32), labels.ravel(), np.arange(0, 3 * n + 1, 3)), (n, p))
            save_npz(folder / f"Y.{part}.npz", Y)
        return 2 * n * (8 * words + 3 * 8 + 8)
    train, test = {"xmc": ("train.txt", "test.txt"), "svm": ("train.svm", "test.svm")}.get(
        kind, ("trn.jsonl", "tst.jsonl")
    )
    lines = []
    for own, point in zip(labels.tolist(), columns.tolist(), strict=True):
        if kind == "jsonl":
            text = " ".join(f"w{word}" for word in point)
            lines.append(json.dumps({"text": text, "labels": [f"l{label}" for label in own]}))
        else:
            lines.append(",".join(map(str, own)) + " " + " ".join(f"{word + 1}:0.25" for word in point))
    for name in (train, test):
        head = f"{n} {d + 1} {p}\n" if kind == "xmc" else ""
        (folder / name).write_text(head + "\n".join(lines) + "\n")
    return 2 * n * (8 * words * (2 if kind == "jsonl" else 1) + 3 * 8 + 8)


@needs_proc
@pytest.mark.parametrize("kind", ["npz", "xmc", "svm", "jsonl"])
def test_attack_18_reading_takes_at_most_three_times_the_arrays_that_it_makes(tmp_path: Path, kind: str) -> None:
    size = write_large(tmp_path, kind) / 2**20
    # Texts are kept until all are read.
    texts = sum(path.stat().st_size for path in tmp_path.iterdir()) / 2**20 if kind == "jsonl" else 0
    grown, said, made = probe(*LOAD, tmp_path)
    assert (said, len(made)) == ("", 2)
    assert grown < 3 * (size + texts) + 60


@given(st.lists(st.text() | st.sampled_from(["ab", "AB ab", "ß_x", "İx 12", "a-bc_de"]), min_size=1, max_size=5))
def test_attack_18_words_that_come_one_by_one_are_those_of_a_list(texts: list[str]) -> None:
    plain = HashingVectorizer(
        n_features=64, token_pattern=TOKEN.pattern, ngram_range=(1, 2), alternate_sign=False, dtype=np.float32
    )
    found, expected = TextFeatures.hashing(64).transform(texts), csr_matrix(plain.transform(texts))
    assert np.array_equal(found.toarray(), expected.toarray())


# 18: clients.

DIVIDE = """
import numpy as np
from scipy.sparse import csr_matrix
from fedmlh.config import Config
from fedmlh.data.dataset import Split
from fedmlh.data.division import divide
from fedmlh.data.partition import fit_partition
from fedmlh.randomness import generator

rng, n, p = np.random.default_rng(0), 20_000, 2000
Y = csr_matrix((np.ones(n, np.float32), rng.integers(0, p, n), np.arange(n + 1)), (n, p))
train = Split(Y[:, :10], Y)
"""


@needs_proc
@pytest.mark.parametrize("partition", ["iid", "dirichlet", "paper-text"])
def test_attack_18_more_clients_than_points_are_refused_before_they_take_memory(partition: str) -> None:
    action = "len(divide(train, Config(partition=sys.argv[1], num_clients=int(sys.argv[2]))).shards)"
    grown, said, _ = probe(DIVIDE, action, partition, 1_000_000)
    assert "num_clients" in said
    assert grown < 40


@needs_proc
@pytest.mark.parametrize("partition", ["dirichlet", "paper-text"])
def test_attack_18_many_clients_take_memory_by_their_number_not_by_clients_times_points(partition: str) -> None:
    config = "Config(partition=sys.argv[1], num_clients=15_000)"
    action = f"len(fit_partition({config}, train, generator(0, 'x'))(train, generator(0, 'y')))"
    grown, said, made = probe(DIVIDE, action, partition)
    assert (said, made) == ("", 15_000)
    assert grown < 80


@pytest.mark.parametrize("alpha", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("clients", [1, 7, 300])
def test_attack_18_partitions_are_those_of_their_plain_rules(
    clients: int, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmlh.config import Config
    from fedmlh.data import partition
    from fedmlh.data.dataset import Split
    from fedmlh.data.partition import fit_partition
    from fedmlh.randomness import generator

    monkeypatch.setattr(partition, "BLOCK_NUMBERS", 1000, raising=False)
    Y = csr_matrix((np.random.default_rng(1).random((400, 60)) < 0.05).astype(np.float32))
    train, counts = Split(Y, Y), np.bincount(Y.indices, minlength=60)

    def plain_dirichlet() -> list[np.ndarray]:
        cumulative = generator(0, "x").dirichlet(np.full(clients, alpha), 60).cumsum(axis=1)
        rng = generator(0, "y")
        draws, owners = rng.random(400), rng.integers(0, clients, 400)
        for row in range(400):
            own = Y.indices[Y.indptr[row] : Y.indptr[row + 1]]
            if len(own):
                reached = (draws[row] > cumulative[own[np.argmax(counts[own])]]).sum()
                owners[row] = min(int(reached), clients - 1)
        return [np.flatnonzero(owners == client) for client in range(clients)]

    def plain_text() -> list[np.ndarray]:
        frequent = np.flatnonzero(counts / 400 >= 0.04)
        owners = generator(0, "x").integers(0, clients, len(frequent))
        belongs = np.zeros((clients, 400), bool)
        for label, owner in zip(frequent, owners, strict=True):
            belongs[owner] |= Y[:, label].toarray()[:, 0] > 0
        rest = np.flatnonzero(~belongs.any(axis=0))
        for client, rows in enumerate(np.array_split(generator(0, "y").permutation(rest), clients)):
            belongs[client, rows] = True
        return [np.flatnonzero(rows) for rows in belongs]

    for name, plain in (("dirichlet", plain_dirichlet), ("paper-text", plain_text)):
        config = Config(partition=name, num_clients=clients, clients_per_round=1)
        config = config.replace(dirichlet_alpha=alpha, frequent_threshold=0.04)
        fitted = fit_partition(config, train, generator(0, "x"))
        for _ in range(2):  # a rule may be applied again
            given = fitted(train, generator(0, "y"))
            assert len(given) == clients
            assert all(np.array_equal(a, b) for a, b in zip(given, plain(), strict=True))


# 18: files that are not data.


@needs_proc
def test_attack_18_a_config_is_not_read_beyond_what_a_config_can_be(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"#" * 300_000_000)
    grown, said, _ = probe(
        "from fedmlh.config import Config", "Config.load(sys.argv[1]).name", tmp_path / "config.toml"
    )
    assert "config.toml" in said
    assert grown < 40


# 19: reports of sites.

KS = (1, 3, 5)
QUESTION = QuestionHeader("run", "config", 7, 1, 0, [], [], 0)


def measure(
    ks: tuple[int, ...], points: int, labels: int, seed: int, skill: float, frequent: bool = False
) -> dict[str, list[int]]:
    """Return what a site measures: random labels, and a ranking that knows some of them."""
    rng = np.random.default_rng(seed)
    Y = (rng.random((points, labels)) < rng.random()).astype(np.float32)
    scores = rng.random((points, labels)) + skill * Y
    top = np.argsort(-scores, axis=1)[:, : max(ks)]
    top = np.pad(top, ((0, 0), (0, max(ks) - top.shape[1])), constant_values=-1)
    metrics = Metrics(ks, np.full(labels, frequent), np.ones(labels))
    for half in (slice(0, points // 2), slice(points // 2, None)):
        metrics.add(top[half], csr_matrix(Y[half]))
    return metrics.sums()


def read(sums: object, number: object = 7, question: QuestionHeader = QUESTION, ks: tuple[int, ...] = KS) -> Report:
    message = write_report(question, Report(sums, number))  # type: ignore[arg-type]
    return read_report(message, question, ks, max_points=100, rounds=10)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True).map(lambda ks: tuple(sorted(ks))),
    st.integers(1, 100),
    st.integers(1, 60),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),  # with a threshold of 0 all labels are frequent
)
def test_attack_19_honest_sums_pass(
    ks: tuple[int, ...], points: int, labels: int, seed: int, skill: float, frequent: bool
) -> None:
    sums = measure(ks, points, labels, seed, skill, frequent)
    assert read(sums, ks=ks).sums == sums


def inflated(sums: dict[str, list[int]]) -> Iterable[tuple[str, int, int]]:
    """Yield every single number, a little and a lot above what all the others allow."""
    (points,) = sums["points"]
    for name, numbers in sums.items():
        for place, value in enumerate(numbers):
            for more in (points * ONE + 1, 2**80, 2**200):
                yield name, place, value + more
            yield name, place, -1


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 60), st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0]))
def test_attack_19_each_single_number_that_cannot_be_is_refused(points: int, seed: int, skill: float) -> None:
    sums = measure(KS, points, 20, seed, skill)
    for name, place, value in inflated(sums):
        changed = {**sums, name: [value if i == place else number for i, number in enumerate(sums[name])]}
        with pytest.raises(Rejected, match="malformed"):
            read(changed)


def test_attack_19_sums_that_contradict_each_other_are_refused() -> None:
    sums = measure(KS, 60, 20, 3, 0.3)
    assert read(sums).sums == sums
    last = {name: numbers[-1] for name, numbers in sums.items()}
    for name, numbers in {
        # More at the end of the ranking than further up, and other than the hits that psp counts.
        "recall_infrequent": sums["recall_infrequent"][::-1],
        "psp_infrequent": sums["psp_infrequent"][::-1],
        "psp_best": sums["psp_best"][::-1],
        "precision_infrequent": sums["precision_infrequent"][::-1],
        "recall_frequent": [0, 0, ONE],
        "precision_frequent": sums["precision_infrequent"],
        "ndcg_infrequent": [*sums["ndcg_infrequent"][:2], 60 * ONE + 1],
        "precision_paper_infrequent": [*sums["precision_infrequent"][:2], last["precision_infrequent"] - 1],
    }.items():
        with pytest.raises(Rejected, match="malformed"):
            read({**sums, name: numbers})
    none = {name: [0] * len(numbers) for name, numbers in sums.items()} | {"k": list(KS), "points": [60]}
    assert read(none).sums == none
    for name in ("recall_infrequent", "ndcg_infrequent", "precision_paper_infrequent"):
        with pytest.raises(Rejected, match="malformed"):
            read({**none, name: [0, 0, 1]})


def test_attack_19_the_round_of_a_report_is_one_that_was_asked_for() -> None:
    sums = measure(KS, 10, 20, 0, 0.3)
    alone = replace(QUESTION, alone=1)
    assert read(sums, 7).round == 7
    assert [read(sums, number, alone).round for number in (1, 4, 10)] == [1, 4, 10]
    for number in (0, 6, 8, 2**200, -7, 7.0, True, "7", None):
        with pytest.raises(Rejected, match="malformed"):
            read(sums, number)
    for number in (0, 11, 2**200, -1, 1.0, True):
        with pytest.raises(Rejected, match="malformed"):
            read(sums, number, alone)
