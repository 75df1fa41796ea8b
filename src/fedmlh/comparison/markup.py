"""Parts of pages in HTML; every text in them is shown as it is."""

from collections.abc import Sequence

from fedmlh.display import escape_html


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a line of names above its rows."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape_html(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>"
