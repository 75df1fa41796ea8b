"""Annif's corpora and vocabularies mean what they mean to Annif."""

from pathlib import Path

import pytest

from command_line import call_apart, invoke
from fedmlh.data.readers.formats import load
from spreadsheets import Points, import_all, list_left, put, read_ids, read_points

X = "http://x.org/"
#: As Annif's users write them, with two concepts of one name and one without a name, which is deprecated.
VOCABULARIES = {
    "v.tsv": f"<{X}1>\tolive oil\t633.85\n<{X}2>\tsea fish\t639\n<{X}3>\tsix\n<{X}4>\tspruce\t\n",
    "plain.tsv": f"{X}1\tolive oil\t633.85\n{X}2\tsea fish\t639\n{X}3\tsix\t\n{X}4\tspruce\t\n",
    "v.csv": (
        f"uri,notation,label_en,label_fi\n{X}1,633.85,olive oil,oliiviöljy\n<{X}2>,639,sea fish,\n{X}3,,six,kuusi\n"
        f"{X}4,,spruce,kuusi\n{X}5,,,\n"
    ),
    "labels.txt": f"{X}1\tolive oil\n{X}2\tsea fish\n{X}3\tsix\n{X}4\tspruce\n",
}
CORPORA = {
    "tsv": f"Pressing olives\t<{X}1>\nCod & herring\t<{X}2> <{X}1>\n",
    "bare.tsv": f"Pressing olives\t{X}1\nCod & herring\t{X}2\t<{X}1>\n",
    "tsv.gz": f"Pressing olives\t<{X}1>\nCod & herring\t<{X}2> <{X}1>\n",
    "csv": f'text,subject_uris\nPressing olives,<{X}1>\n"Cod & herring",{X}2 <{X}1>\n',
    "more.csv": f'document_id,text,subject_uris\n7,Pressing olives,<{X}1>\n8,"Cod & herring",{X}2 <{X}1>\n',
    "jsonl": (
        f'{{"document_id": "7", "text": "Pressing olives", "subjects": [{{"uri": "{X}1"}}]}}\n'
        f'{{"text": "Cod & herring", "subjects": [{{"uri": "{X}2", "label": "fish"}}, {{"uri": "{X}1"}}]}}\n'
    ),
}
POINTS: Points = [("Pressing olives", ["olive oil"]), ("Cod & herring", ["olive oil", "sea fish"])]


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_corpus_and_a_vocabulary_need_no_options(tmp_path: Path, corpus: str, vocabulary: str) -> None:
    files = [put(tmp_path / f"a.{corpus}", CORPORA[corpus]), put(tmp_path / vocabulary, VOCABULARIES[vocabulary])]
    more = ("--language", "en") if vocabulary.endswith(".csv") else ()
    code, out, err = import_all(tmp_path / "out", files[0], "--vocabulary", files[1], *more)
    assert code == 0, out + err
    assert read_points(tmp_path / "out") == POINTS
    # Labels that no record has are not predicted.
    assert (tmp_path / "out/labels.txt").read_text() == f"{X}1\tolive oil\n{X}2\tsea fish\n"


def test_names_in_another_language_fall_back(tmp_path: Path) -> None:
    files = [put(tmp_path / "a.tsv", CORPORA["tsv"]), put(tmp_path / "v.csv", VOCABULARIES["v.csv"])]
    assert import_all(tmp_path / "out", files[0], "--vocabulary", files[1], "--language", "fi")[0] == 0
    assert (tmp_path / "out/labels.txt").read_text() == f"{X}1\toliiviöljy\n{X}2\tsea fish\n"


def test_labels_are_found_by_key_name_notation_or_another_language(tmp_path: Path) -> None:
    corpus = put(tmp_path / "a.csv", f"title,subjects\nA,<{X}1>; sea  fish\nB,oliiviöljy;639;six\nC,kuusia;{X}5\n")
    said = ("--text", "title", "--labels", "subjects", "--separator", ";", "--vocabulary", tmp_path / "v.csv")
    put(tmp_path / "v.csv", VOCABULARIES["v.csv"])
    code, out, err = import_all(tmp_path / "out", corpus, *said, "--language", "en")
    assert code == 0, err
    assert read_points(tmp_path / "out") == [("A", ["olive oil", "sea fish"]), ("B", ["olive oil", "sea fish", "six"])]
    assert f"labels that the vocabulary lacks: 2 left out, 'kuusia' (a.csv, line 4), '{X}5' (a.csv, line 4)" in out
    assert "rows that have no label: left out, since there is nothing to learn from them: 1" in out
    put(corpus, "title,subjects\nA,kuusi\n")
    code, _, err = import_all(tmp_path / "more", corpus, *said, "--language", "en")
    assert (code, "a.csv, line 2: 'kuusi' is the name of several labels of" in err) == (2, True)


def test_without_a_vocabulary_uris_are_the_names(tmp_path: Path) -> None:
    assert import_all(tmp_path / "out", put(tmp_path / "a.tsv", CORPORA["tsv"]))[0] == 0
    assert (tmp_path / "out/labels.txt").read_text() == f"{X}1\n{X}2\n"


def test_json_lines_bring_their_own_names(tmp_path: Path) -> None:
    assert import_all(tmp_path / "out", put(tmp_path / "a.jsonl", CORPORA["jsonl"]))[0] == 0
    assert (tmp_path / "out/labels.txt").read_text() == f"{X}1\n{X}2\tfish\n"


def test_ids_of_a_corpus_are_kept(tmp_path: Path) -> None:
    assert import_all(tmp_path / "out", put(tmp_path / "a.csv", CORPORA["more.csv"]), "--id", "document_id")[0] == 0
    assert read_ids(tmp_path / "out") == ["7", "8"]


@pytest.mark.parametrize(
    ("name", "content", "options", "sentence"),
    [
        ("v.csv", "uri,label_en,label_fi\nx:1,a,b\n", (), "v.csv: has names in en, fi: choose a language (--language)"),
        ("v.csv", "uri,label_en\nx:1,a\n", ("--language", "sv"), "has no names in 'sv': choose one of en (--language)"),
        ("v.csv", "uri,notation\nx:1,7\n", (), "v.csv: has no column of names, such as label_en"),
        ("v.csv", "uri,label_en\nx:1,a\nx:1,b\n", (), "v.csv, line 3: the label 'x:1' stands on a line above"),
        ("v.csv", "uri,label_en\n,a\n", (), "v.csv, line 2: names no label"),
        ("v.csv", 'uri,label_en\nx:1,"a\n', (), 'v.csv, line 2: a cell begins with " here and does not end'),
        ("v.csv", "uri,label_en\n", (), "v.csv: names no label"),
        (
            "v.tsv",
            VOCABULARIES["v.tsv"],
            ("--language", "en"),
            "has names in one language: do not name a language (--language)",
        ),
        ("v.tsv", "<x:1>\ta\n\tb\n", (), "v.tsv, line 2: names no label"),
        ("v.tsv", "", (), "v.tsv: is empty"),
    ],
)
def test_a_vocabulary_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: str, options: tuple[str, ...], sentence: str
) -> None:
    files = [put(tmp_path / "a.tsv", CORPORA["tsv"]), put(tmp_path / name, content)]
    code, out, err = import_all(tmp_path / "out", files[0], "--vocabulary", files[1], *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert list_left(tmp_path) == sorted(["a.tsv", name])


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    lines = [f"text {n}\t<{X}{n}>\n" for n in range(40)]
    lines[20] = "no tab\n"
    code, _, err = import_all(tmp_path / "out", put(tmp_path / "a.tsv", "".join(lines)))
    assert (code, "a.tsv, line 21: should be `text<TAB><uri> <uri>`, and has no tab" in err) == (2, True)


def test_from_a_corpus_to_names_in_predictions(tmp_path: Path) -> None:
    topics = {1: "olive press oil mill", 2: "herring cod net catch", 4: "tree forest needle wood"}
    lines = [f"report {n} on {words}\t<{X}{key}>\n" for n in range(90) for key, words in topics.items()]
    corpus, vocabulary = put(tmp_path / "a.tsv", "".join(lines)), put(tmp_path / "v.tsv", VOCABULARIES["v.tsv"])
    code, _, err = invoke("data", "import", corpus, "--vocabulary", vocabulary, "--out", tmp_path / "data")
    assert code == 0, err
    assert 200 < len(load(tmp_path / "data").train) < 240
    settings = (
        "num_clients=2 clients_per_round=2 num_buckets=3 num_tables=16 hidden_sizes=32 feature_dim=512 partition=iid"
    )
    flags = [part for setting in f"{settings} learning_rate=0.05".split() for part in ("--set", setting)]
    done = call_apart("run", "demo", "--data", tmp_path / "data", "--rounds", 1, *flags, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    code, out, err = invoke("predict", tmp_path / "run", "--text", "herring and cod", "--top", 1)
    assert code == 0, err
    assert "sea fish" in out
    assert f"{X}2" in out
