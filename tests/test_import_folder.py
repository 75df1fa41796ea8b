"""What an import writes: parts that do not move, sites, ids, notes on what was left out; and all of it or nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import invoke
from fedmlh.data.importing.points import is_test
from fedmlh.data.readers.formats import load
from spreadsheets import import_all, list_left, put, read_ids, read_points

SAID = ("--text", "title", "--labels", "subjects", "--separator", ";")
HEAD = "id,library,title,subjects\n"


def write_rows(count: int, start: int = 0) -> str:
    return "".join(f"{n},{'north' if n % 3 else 'south'},title {n},a{n % 4};b{n % 5}\n" for n in range(start, count))


def read_parts(folder: Path) -> dict[str, list[dict[str, object]]]:
    return {
        part: [json.loads(line) for line in (folder / f"{part}.jsonl").read_text().splitlines()]
        for part in ("trn", "tst")
    }


def imported(path: Path, *arguments: object) -> Path:
    out = path.parent / f"out{len(list_left(path.parent))}"
    code, shown, err = invoke("data", "import", path, *SAID, *arguments, "--out", out)
    assert code == 0, err
    assert f"next: fedmlh run recommended --data {out}" in shown
    return out


# Parts.


def test_parts_depend_on_the_record_and_the_seed_alone(tmp_path: Path) -> None:
    few = read_parts(imported(put(tmp_path / "few.csv", HEAD + write_rows(200)), "--id", "id"))
    many = read_parts(imported(put(tmp_path / "many.csv", HEAD + write_rows(400)), "--id", "id"))
    assert len(few["trn"]) + len(few["tst"]) == 200
    assert 20 < len(few["tst"]) < 60
    for part in few:
        assert [record for record in many[part] if int(str(record["id"])) < 200] == few[part]
    other = read_parts(imported(tmp_path / "few.csv", "--id", "id", "--seed", 1))
    assert {str(record["id"]) for record in other["tst"]} != {str(record["id"]) for record in few["tst"]}


def test_parts_are_the_same_on_every_machine() -> None:
    assert [n for n in range(30) if is_test(str(n), 0.2, 0)] == [17, 18, 25]
    assert [n for n in range(30) if is_test(str(n), 0.2, 7)] == [2, 6, 11, 14, 18, 22, 24, 27]


def test_with_ids_the_id_decides(tmp_path: Path) -> None:
    rows = "".join(f"{n},,Annual report,a{n}\n" for n in range(60))
    parts = read_parts(imported(put(tmp_path / "a.csv", HEAD + rows), "--id", "id"))
    assert [record["id"] for record in parts["tst"]] == [str(n) for n in range(60) if is_test(str(n), 0.2, 0)]


def test_a_part_has_its_share_and_equal_texts_share_a_part() -> None:
    drawn = [is_test(f"record {n}", 0.2, 0) for n in range(20_000)]
    assert 0.19 < sum(drawn) / len(drawn) < 0.21
    assert not any(is_test(f"record {n}", 0.0, 0) for n in range(100))


def test_without_ids_the_text_decides(tmp_path: Path) -> None:
    rows = "".join(f"{n},title {n % 50},a{n}\n" for n in range(200))
    parts = read_parts(imported(put(tmp_path / "a.csv", "id,title,subjects\n" + rows)))
    train, test = ({record["text"] for record in parts[part]} for part in ("trn", "tst"))
    assert len(train) + len(test) == 50
    assert not train & test


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, "nan"])
def test_a_share_that_is_none_is_refused(tmp_path: Path, share: object) -> None:
    path = put(tmp_path / "a.csv", HEAD + write_rows(10))
    code, _, err = invoke("data", "import", path, *SAID, "--test", share, "--out", tmp_path / "out")
    assert (code, list_left(tmp_path)) == (2, ["a.csv"])
    assert "it should be from 0 below 1 (--test)" in err


def test_a_part_without_records_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", HEAD + write_rows(3))
    code, _, err = invoke("data", "import", path, *SAID, "--test", 0.0001, "--out", tmp_path / "out")
    assert (code, list_left(tmp_path)) == (2, ["a.csv"])
    assert "none of the 3 records falls into the test part, a share of 0.0001: choose another seed or share" in err
    code, _, err = invoke("data", "import", path, *SAID, "--test", 0.9999, "--out", tmp_path / "out")
    assert "all 3 records fall into the test part" in err
    code, out, _ = import_all(tmp_path / "out", path, *SAID)
    assert (code, (tmp_path / "out/tst.jsonl").read_text()) == (0, "")
    assert "there is no test part" in out


# Sites and ids.


def test_each_site_is_a_folder_and_all_name_the_same_labels(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", HEAD + write_rows(300))
    whole, apart = imported(path), imported(path, "--site", "library")
    assert list_left(apart) == ["north", "south"]
    one, sites = load(whole), load(apart)
    assert sites.site_names == ("north", "south")
    assert (len(sites.train), len(sites.test)) == (len(one.train), len(one.test))
    assert [load(apart / name).labels for name in sites.site_names] == [one.labels] * 2
    assert sum(len(load(apart / name).train) for name in sites.site_names) == len(one.train)


def test_the_command_that_is_named_next_runs(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", HEAD + write_rows(300))
    code, out, err = invoke("data", "import", path, *SAID, "--site", "library", "--out", tmp_path / "out")
    assert code == 0, err
    (command,) = [line.removeprefix("next: fedmlh ") for line in out.splitlines() if line.startswith("next: ")]
    assert "2 sites (training + test points): north" in out
    run, preset, *rest = command.split()
    assert (run, preset) == ("run", "recommended")
    quick = ["--set", "training=one-round", "--set", "correct=0"]
    code, _, err = invoke(run, preset, *quick, *rest, "--out", tmp_path / "run")
    assert code == 0, err
    assert "2 clients (the data's sites)" in err


def test_sites_may_use_the_same_ids(tmp_path: Path) -> None:
    content = "id,library,title,subjects\n1,north,A,a\n1,south,B,b\n"
    code, _, err = import_all(
        tmp_path / "out", put(tmp_path / "a.csv", content), *SAID, "--id", "id", "--site", "library"
    )
    assert code == 0, err
    assert [read_ids(tmp_path / "out" / name) for name in ("north", "south")] == [["1"], ["1"]]


def test_ids_are_kept(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", HEAD + write_rows(4) + " x 1 ,north,more,c\n")
    import_all(tmp_path / "out", path, *SAID, "--id", "id")
    assert read_ids(tmp_path / "out") == ["0", "1", "2", "3", "x 1"]


# Several files.


def test_files_of_several_forms_make_one_set(tmp_path: Path) -> None:
    files = [
        put(tmp_path / "a.csv", "title,subjects\nOlive oil,oil;prices\n"),
        put(tmp_path / "b.tsv.gz", "subjects\tyear\ttitle\nfish\t1999\tFish quotas\n"),
        put(tmp_path / "c.jsonl", '{"title": "Trees", "subjects": ["trees"]}\n'),
    ]
    code, out, err = import_all(tmp_path / "out", *files, *SAID)
    assert code == 0, err
    assert "of 3 rows in 3 files, 4 labels" in out
    assert [text for text, _ in read_points(tmp_path / "out")] == ["Olive oil", "Fish quotas", "Trees"]
    code, _, err = import_all(tmp_path / "more", files[0], put(tmp_path / "d.csv", "title,labels\na,b\n"), *SAID)
    assert (code, "d.csv, line 1: has no column 'subjects'" in err) == (2, True)


def test_an_export_that_overlaps_another_one_counts_once(tmp_path: Path) -> None:
    files = [put(tmp_path / "a.csv", HEAD + write_rows(20)), put(tmp_path / "b.csv", HEAD + write_rows(30, 10))]
    code, out, _ = import_all(tmp_path / "out", *files, *SAID, "--id", "id")
    assert code == 0
    assert read_ids(tmp_path / "out") == [str(n) for n in range(30)]
    assert "rows that repeat another row: each record counts once: 10" in out


# What is said, and what is left.


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    content = "id,title,subjects\n1,A,a\n1,A,b\n1,A,b\n2,B,\n3,,c\n4,D,d\n4,D,d\n"
    code, out, _ = import_all(tmp_path / "out", put(tmp_path / "a.csv", content), *SAID, "--id", "id")
    assert code == 0
    assert out.splitlines()[:5] == [
        f"{tmp_path / 'out'}: 2 training and 0 test points of 7 rows in 1 file, 3 labels, 1.5 per point",
        "rows that continue the row above, which has the same id: their labels were put together: 1",
        "rows that repeat another row: each record counts once: 2",
        "rows that have no label: left out, since there is nothing to learn from them: 1",
        "rows that have no text: left out: 1",
    ]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", HEAD + write_rows(100))
    out = imported(path)
    before = {entry.name: entry.read_bytes() for entry in out.iterdir()}
    code, _, err = import_all(out, path, *SAID)
    assert (code, f"{out}: is there already and not empty" in err) == (2, True)
    assert {entry.name: entry.read_bytes() for entry in out.iterdir()} == before
    (tmp_path / "empty").mkdir()
    assert import_all(tmp_path / "empty", path, *SAID)[0] == 0


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none.csv", "there is no such file"), (tmp_path, "is not a file")):
        code, _, err = import_all(tmp_path / "out", path, *SAID)
        assert (code, f"{path}: {problem}" in err) == (2, True)


def test_a_gzip_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv.gz", HEAD + write_rows(2000))
    path.write_bytes(path.read_bytes()[:-100])
    code, _, err = import_all(tmp_path / "out", path, *SAID)
    assert (code, list_left(tmp_path)) == (2, ["a.csv.gz"])
    assert "a.csv.gz: cannot be read" in err


def test_nothing_that_training_needs_is_imported() -> None:
    code = (
        "import sys; import fedmlh.data.importing.folder; "
        "print(*{'torch', 'scipy', 'sklearn', 'numba', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
