"""What is not said is guessed, shown and asked; what is said or settled by the file is not."""

from pathlib import Path

import pytest

from fedmlh.data.importing.labels import guess_separator
from spreadsheets import Points, import_all, list_left, put, read_points

TWO: Points = [("Olive oil", ["oil", "prices"]), ("Fish quotas", ["fish"])]

#: Content, options, what was guessed, and what it means; None stands for TWO.
GUESSES: dict[str, tuple[str, tuple[str, ...], str, Points | None]] = {
    "all": (
        "id,title,subjects\n1,Olive oil,oil;prices\n2,Fish quotas,fish\n",
        (),
        "--delimiter , --labels subjects --text title --separator ';'",
        None,
    ),
    "the separator": (
        "id;title;subjects\n1;Olive oil;oil|prices\n2;Fish quotas;fish\n",
        ("--text", "title", "--labels", "subjects"),
        "--separator '|'",
        None,
    ),
    "the labels": (
        "Titel\tSachgruppe\tStandort\nOlive oil\toil; prices\tA\nFish quotas\tfish\tB\n",
        ("--text", "Titel"),
        "--labels Sachgruppe --separator ';'",
        None,
    ),
    "the text": (
        "nr|headline|tag\n7|Olive oil|oil, prices\n8|Fish quotas|fish\n",
        ("--labels", "tag", "--delimiter", "|"),
        "--text headline --separator ,",
        None,
    ),
    "title and abstract": (
        "abstract,title,keywords\noil,Olive,oil;prices\nquotas,Fish,fish\n",
        ("--delimiter", ","),
        "--labels keywords --text title --text abstract --separator ';'",
        None,
    ),
    "names that stand twice": (
        "note,note,headline,tags\nx y z w,x y z w,Olive oil,oil;prices\nv,v,Fish quotas,fish\n",
        ("--delimiter", ","),
        "--labels tags --text headline --separator ';'",
        None,
    ),
    "columns by number": (
        "Olive oil,oil;prices\nFish quotas,fish\n",
        ("--no-header",),
        "--delimiter , --labels 2 --text 1 --separator ';'",
        None,
    ),
    "lists": (
        "title,tags\nOlive oil,\"['oil', 'prices']\"\nFish quotas,['fish']\n",
        ("--delimiter", ","),
        "--labels tags --text title --separator list",
        None,
    ),
    "one label per cell": (
        "title,subject\nOlive,oil\nFish quotas,fish\n",
        ("--delimiter", ","),
        "--labels subject --text title --separator ''",
        [("Olive", ["oil"]), ("Fish quotas", ["fish"])],
    ),
    "line breaks": (
        'title,subject\nOlive oil,"oil\nprices"\nFish quotas,fish\n',
        ("--text", "title", "--labels", "subject"),
        "--separator '\\n'",
        None,
    ),
    "URIs": (
        "title,subject\nOlive,http://x.org/1 http://x.org/2\nFish,<http://x.org/3>\n",
        ("--text", "title", "--labels", "subject"),
        "--separator ' '",
        [("Olive", ["http://x.org/1", "http://x.org/2"]), ("Fish", ["http://x.org/3"])],
    ),
    "escaped quotes": (
        'title,subject\n"A \\"big\\" tree, or two",oil;prices\n"Fish",fish\n',
        ("--text", "title", "--labels", "subject", "--separator", ";"),
        "--escape '\\'",
        [('A "big" tree, or two', ["oil", "prices"]), ("Fish", ["fish"])],
    ),
    "quotes that mean nothing": (
        'title\tsubject\n"Olive" and oil\toil\n"Fish\tfish\n',
        ("--text", "title", "--labels", "subject", "--separator", ""),
        "--quote ''",
        [('"Olive" and oil', ["oil"]), ('"Fish', ["fish"])],
    ),
    "single quotes": (
        "title,subject\n'Oil, olive',oil\n'Fish, sea',fish\n",
        ("--text", "title", "--labels", "subject", "--separator", ";"),
        "--quote ''\"'\"''",
        [("Oil, olive", ["oil"]), ("Fish, sea", ["fish"])],
    ),
    "JSON lines": (
        '{"nr": 1, "headline": "Olive oil", "about": ["oil", "prices"]}\n'
        '{"headline": "Fish quotas", "about": ["fish"]}\n',
        (),
        "--labels about --text headline",
        None,
    ),
}


@pytest.mark.parametrize("case", GUESSES)
def test_a_guess_is_shown_and_written_only_with_yes(tmp_path: Path, case: str) -> None:
    content, options, guessed, meant = GUESSES[case]
    path = put(tmp_path / "a.csv", content)
    code, out, err = import_all(tmp_path / "out", path, *options)
    assert (code, list_left(tmp_path)) == (2, ["a.csv"])
    assert f"guessed: {guessed}\n" in out
    assert "nothing was written: add --yes" in err
    points = TWO if meant is None else meant
    for text, labels in points:
        assert text in out
        assert all(label in out for label in labels)
    code, out, err = import_all(tmp_path / "out", path, *options, "--yes")
    assert code == 0, err
    assert f"guessed: {guessed}\n" in out
    assert read_points(tmp_path / "out") == points


@pytest.mark.parametrize("case", GUESSES)
def test_the_options_that_are_shown_say_the_same(tmp_path: Path, case: str) -> None:
    import shlex

    content, options, guessed, meant = GUESSES[case]
    path = put(tmp_path / "a.csv", content)
    code, out, err = import_all(tmp_path / "out", path, *options, *shlex.split(guessed))
    assert code == 0, out + err
    assert "guessed" not in out
    assert read_points(tmp_path / "out") == (TWO if meant is None else meant)


def test_five_records_are_shown(tmp_path: Path) -> None:
    rows = "".join(f'{n},library {n % 2},"title\n{n} {"long " * 40}",a{n};b\n' for n in range(9))
    path = put(tmp_path / "a.csv", "id,place,title,subjects\n" + rows)
    code, out, _ = import_all(tmp_path / "out", path, "--id", "id", "--site", "place")
    assert code == 2
    shown = [line for line in out.splitlines() if "library" in line]
    assert [line.split("│")[1].strip() for line in shown] == ["2", "4", "6", "8", "10"]
    assert "a4" in shown[4]
    assert "a5" not in out
    assert "\\n" in shown[0]


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["a; b", "c"], ";"),
        (["a | b", "c, d", "e | f"], "|"),
        (["Smith, John; Oil, olive", "Fish, sea"], ";"),
        (["a, b", "c"], ","),
        (["a", "b"], ""),
        (["a\nb"], "\n"),
        (['["a"]', "[]"], "list"),
        (['["a"]', "b"], ""),
        (["http://x.org/1 http://x.org/2", "urn:a:b"], ""),
        (["http://x.org/1 http://x.org/2", "<urn:a:b>"], " "),
        ([], ""),
    ],
)
def test_a_separator_is_what_most_cells_hold(cells: list[str], separator: str) -> None:
    assert guess_separator(cells) == separator


def test_a_mistake_in_the_first_records_is_said_before_a_guess(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "title,subjects\nOlive oil,oil\nFish\n")
    code, out, err = import_all(tmp_path / "out", path)
    assert (code, out) == (2, "")
    assert "a.csv, line 3: has 1 cell, and" in err


def test_the_guess_of_a_second_file_is_asked_as_well(tmp_path: Path) -> None:
    one = put(tmp_path / "a.csv", "title,subjects\nOlive oil,oil\n")
    two = put(tmp_path / "b.csv", "title,subjects\n'Fish, sea',fish\n'Oil, olive',oil\n")
    code, out, _ = import_all(tmp_path / "out", one, two, "--text", "title", "--labels", "subjects", "--separator", ";")
    assert (code, "--quote" in out) == (2, True)
