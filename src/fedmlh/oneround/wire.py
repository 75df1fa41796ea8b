"""Sums as bytes: without loss, and close to their entropy.

Slots and labels that do not occur are left out; the others are ordered by how often they occur. So a row's columns
fall into bands, each twice as wide as the one before and about evenly filled. For each row and band the payload has the
number of nonzero cells, then their places, then their values. Each number is coded under a context that both sides know
by then: how often its row and its column occur, which predicts it well.
"""

import struct
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.entropy.coding import decode, encode
from fedmlh.entropy.vectors import by_size, decode_sparse, encode_sparse, octave
from fedmlh.oneround.points import most_square
from fedmlh.oneround.sums import Sums

#: Classes of a row or a column, in powers of 2 of how often it occurs, and the number of bands with contexts.
_CLASSES, _BANDS = 16, 16
#: Classes of the expected value of a cell: of one point in half powers of 2, and of the number of points.
_SIZES, _EXPECTED = 24, 10
#: Parts of each side of the matrix with separate frequencies of signs.
_REGIONS = 8
#: Numbers of a table that a message may claim: a fixed number, and more per byte that is still to come. Sums over a
#: hundred points of seven data sets have at most 2 per byte (experiments/claims.py); the coder would accept 107.
_ANYWAY, _PER_BYTE = 1 << 18, 16
_HEAD = struct.Struct("<QQQB")
_HALF = np.sqrt(0.5)
#: The tolerance of comparisons in double precision.
_SLACK = 1 + 1e-9


@dataclass(frozen=True)
class _Axis:
    """Slots or labels that occur: their places, how often they occur, and their typical values."""

    places: np.ndarray
    often: np.ndarray  # points in which it is not 0, more or less
    typical: np.ndarray  # of the values that are not 0


@dataclass(frozen=True)
class _Cells:
    """The cells that may be nonzero, row by row: the columns of each band of a row."""

    rows: np.ndarray  # of each pair (row, band)
    starts: np.ndarray
    widths: np.ndarray
    contexts: np.ndarray

    @classmethod
    def lay_out(cls, rows: _Axis, columns: _Axis, above_diagonal: bool) -> "_Cells":
        num_rows, num_columns = len(rows.places), len(columns.places)
        edges = np.append(2 ** np.arange((num_columns + 1).bit_length()) - 1, num_columns)
        edges = edges[: np.searchsorted(edges, num_columns) + 1]
        first = np.arange(num_rows)[:, None] + 1 if above_diagonal else np.zeros((num_rows, 1), np.int64)
        starts = np.maximum(edges[None, :-1], first)
        widths = edges[None, 1:] - starts
        row, band = np.nonzero(widths > 0)
        often = np.minimum(octave(rows.often), _CLASSES - 1)
        contexts = often[row] * _BANDS + np.minimum(band, _BANDS - 1)
        return cls(row, starts[row, band], widths[row, band], contexts.astype(np.uint8))

    def find(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the pair (row, band) of each cell; pairs and cells come in the order of rows and columns."""
        most = np.int64((self.starts + self.widths).max(initial=0))
        return np.asarray(np.searchsorted(self.rows * most + self.starts, rows * most + columns, side="right") - 1)


def encode_sums(sums: Sums, bits: int) -> bytes:
    """Return the payload of a message."""
    diagonal, counts = sums.diagonal, sums.counts(bits)
    totals = sums.totals >> bits
    slots, labels = _order_slots(diagonal, totals), _order_labels(counts)
    head = _HEAD.pack(sums.points, sums.num_slots, len(counts), bits)
    numbers = [
        encode_sparse(diagonal),
        encode(_fold(totals[diagonal > 0]), by_size(diagonal[diagonal > 0])),
        encode_sparse(counts),
    ]
    gram, cross = sums.gram[1:, 1:][slots.places][:, slots.places], sums.cross[1:][slots.places][:, labels.places]
    gram.setdiag(0)
    tables = [
        _encode_table(gram, slots, slots, sums.points, True),
        _encode_table(cross, slots, labels, sums.points, False),
    ]
    return b"".join([head, *numbers, *tables])


def decode_sums(
    payload: memoryview, points: int, num_slots: int, num_outputs: int, bits: int, most: int = 1, cells: int = 2**62
) -> Sums:
    """Return the sums over `points` points, of at most `cells` cells; raise ValueError if no points can have them.

    `most`: how often a point can have one of the outputs; more than once only where an output is a bucket of labels.
    """
    if len(payload) < _HEAD.size or _HEAD.unpack_from(payload) != (points, num_slots, num_outputs, bits):
        raise ValueError("it is about other points, slots, labels or bits")
    rest = payload[_HEAD.size :]
    diagonal, rest = decode_sparse(rest, num_slots)
    if diagonal.sum(dtype=np.float64) > points * most_square(bits) * _SLACK:
        raise ValueError("its squares are more than points of length 1 have")
    present = np.flatnonzero(diagonal)
    folded, rest = decode(rest, by_size(diagonal[present]))
    totals = np.zeros(num_slots, np.int64)
    totals[present] = _unfold(folded)
    if (totals.astype(np.float64) ** 2 > points * diagonal.astype(np.float64) * _SLACK).any():
        raise ValueError("the sum of a slot is larger than its squares allow")
    counts, rest = decode_sparse(rest, num_outputs)
    if counts.max(initial=0) > points * most:
        raise ValueError("a label has more points than there are")
    slots, labels = _order_slots(diagonal, totals), _order_labels(counts)
    gram, rest = _decode_table(rest, slots, slots, points, True, cells)
    cross, rest = _decode_table(rest, slots, labels, points, False, cells - len(gram[0]))
    if len(rest):
        raise ValueError("bytes follow its end")
    squares, known = diagonal[slots.places].astype(np.float64), counts[labels.places].astype(np.float64)
    _check_cells(gram, squares, squares)
    _check_cells(cross, squares, known if most == 1 else known**2)
    return _assemble(points, diagonal, totals, counts, (slots, labels), (gram, cross), bits)


def read_points(payload: memoryview) -> int:
    """Return the number of points that a payload states for its sums; raise ValueError if it states none."""
    if len(payload) < _HEAD.size:
        raise ValueError("it has no head")
    return int(_HEAD.unpack_from(payload)[0])


def _check_cells(table: "_Table", rows: np.ndarray, columns: np.ndarray) -> None:
    """Refuse a product of two columns of points that exceeds what their squares allow."""
    row, column, values = table
    if (values.astype(np.float64) ** 2 > rows[row] * columns[column] * _SLACK).any():
        raise ValueError("a sum of products is larger than the squares allow")


_Table = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, columns, values


def _encode_table(matrix: csr_matrix, rows: _Axis, columns: _Axis, points: int, above: bool) -> bytes:
    matrix = matrix.tocsr()
    matrix.sort_indices()
    row, column = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices.astype(np.int64)
    kept = matrix.data != 0
    if above:
        kept &= column > row
        # What lies below the diagonal of the ordered slots lies above it in the mirror image.
        mirrored = (matrix.data != 0) & (column < row)
        row, column = np.append(row[kept], column[mirrored]), np.append(column[kept], row[mirrored])
        values = np.append(matrix.data[kept], matrix.data[mirrored])
        order = np.lexsort((column, row))
        row, column, values = row[order], column[order], values[order]
    else:
        row, column, values = row[kept], column[kept], matrix.data[kept]
    cells = _Cells.lay_out(rows, columns, above)
    pair = cells.find(row, column)
    filled = np.bincount(pair, minlength=len(cells.rows))
    first = np.flatnonzero(np.append(True, np.diff(pair) != 0)) if len(pair) else np.zeros(0, np.int64)
    gaps = np.diff(column, prepend=-1) - 1
    gaps[first] = (column - cells.starts[pair])[first]
    open_ = (filled < cells.widths)[pair]
    signed = bool((values < 0).any())
    parts = [
        bytes([signed]),
        encode(filled, cells.contexts),
        encode(gaps[open_], _by_density(cells, filled, pair[open_])),
        encode(np.abs(values) - 1, _by_expectation(rows, columns, row, column, points)),
    ]
    if signed:
        regions = _by_region(row, column, len(rows.places), len(columns.places))
        parts.append(encode((values < 0).astype(np.int64), regions))
    return b"".join(parts)


def _decode_table(
    payload: memoryview, rows: _Axis, columns: _Axis, points: int, above: bool, most: int
) -> tuple[_Table, memoryview]:
    if len(payload) < 1 or payload[0] > 1:
        raise ValueError("it ends too early, or a sign is neither there nor missing")
    signed, rest = payload[0], payload[1:]
    _check_claim(len(rows.places) * (len(columns.places) + 1).bit_length(), rest)
    cells = _Cells.lay_out(rows, columns, above)
    filled, rest = decode(rest, cells.contexts)
    if (filled > cells.widths).any() or filled.sum() > most:
        raise ValueError("it has more cells than there is room for")
    _check_claim(int(filled.sum()), rest)
    pair = np.repeat(np.arange(len(filled)), filled)
    open_ = (filled < cells.widths)[pair]
    gaps = np.zeros(len(pair), np.int64)
    gaps[open_], rest = decode(rest, _by_density(cells, filled, pair[open_]))
    if (gaps > cells.widths[pair]).any():
        raise ValueError("a cell lies outside its band")
    steps = np.cumsum(gaps + 1)
    first = np.cumsum(filled) - filled
    before = np.concatenate([[0], steps])[first]
    column = cells.starts[pair] + steps - before[pair] - 1
    if (column >= (cells.starts + cells.widths)[pair]).any():
        raise ValueError("a cell lies outside its band")
    row = cells.rows[pair]
    values, rest = decode(rest, _by_expectation(rows, columns, row, column, points))
    values += 1
    if signed:
        negative, rest = decode(rest, _by_region(row, column, len(rows.places), len(columns.places)))
        values = np.where(negative > 0, -values, values)
    return (row, column, values), rest


def _check_claim(count: int, rest: memoryview) -> None:
    """Refuse to allocate far more numbers than honest sums put into these bytes."""
    if count > _ANYWAY + _PER_BYTE * len(rest):
        raise ValueError(f"{len(rest):,} bytes claim {count:,} cells, more than sums over points have")


def _assemble(
    points: int,
    diagonal: np.ndarray,
    totals: np.ndarray,
    counts: np.ndarray,
    axes: tuple[_Axis, _Axis],
    tables: tuple[_Table, _Table],
    bits: int,
) -> Sums:
    """Put the cells back to the places of their slots and labels."""
    slots, labels = (axis.places + place for axis, place in zip(axes, (1, 0), strict=True))
    (row, column, values), (slot, label, crossed) = tables
    row, column = slots[row], slots[column]
    on = np.arange(len(diagonal)) + 1
    size = len(diagonal) + 1
    gram_rows = np.concatenate([[0], np.zeros(len(on), np.int64), on, np.minimum(row, column)])
    gram_columns = np.concatenate([[0], on, on, np.maximum(row, column)])
    gram_values = np.concatenate([[points << (2 * bits)], totals << bits, diagonal, values])
    cross_rows = np.concatenate([np.zeros(len(counts), np.int64), slots[slot]])
    cross_columns = np.concatenate([np.arange(len(counts)), labels[label]])
    cross_values = np.concatenate([counts << bits, crossed])
    return Sums(
        points,
        _matrix(gram_values, gram_rows, gram_columns, (size, size)),
        _matrix(cross_values, cross_rows, cross_columns, (size, len(counts))),
    )


def _matrix(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> csr_matrix:
    matrix = csr_matrix((values, (rows, columns)), shape=shape, dtype=np.int64)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _order_slots(diagonal: np.ndarray, totals: np.ndarray) -> _Axis:
    """Return the slots that occur, the most frequent first, estimated from sums and sums of squares."""
    places = np.flatnonzero(diagonal)
    squares, sums = diagonal[places].astype(np.float64), np.abs(totals[places]).astype(np.float64)
    sums = np.maximum(sums, 1)
    often = np.clip(sums * sums / squares, 1, None)
    order = np.argsort(-often, kind="stable")
    return _Axis(places[order], often[order], (squares / sums)[order])


def _order_labels(counts: np.ndarray) -> _Axis:
    places = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return _Axis(places, counts[places].astype(np.float64), np.ones(len(places)))


def _by_density(cells: _Cells, filled: np.ndarray, pair: np.ndarray) -> np.ndarray:
    return np.asarray(np.minimum(_half_octave(cells.widths[pair] / filled[pair]), 255), np.uint8)


def _by_expectation(rows: _Axis, columns: _Axis, row: np.ndarray, column: np.ndarray, points: int) -> np.ndarray:
    size = np.clip(_half_octave(rows.typical[row] * columns.typical[column]), 0, _SIZES - 1)
    together = np.clip(octave(2 * rows.often[row] * columns.often[column] / max(points, 1)), 0, _EXPECTED - 1)
    return np.asarray(size * _EXPECTED + together, np.uint8)


def _by_region(row: np.ndarray, column: np.ndarray, num_rows: int, num_columns: int) -> np.ndarray:
    height, width = row * _REGIONS // max(num_rows, 1), column * _REGIONS // max(num_columns, 1)
    return np.asarray(height * _REGIONS + width, np.uint8)


def _half_octave(values: np.ndarray) -> np.ndarray:
    """Return ⌊2 log2⌋ of each value, or nearly so, but the same on every machine; 0 for those below 1."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.maximum(2 * (exponent - 1) + (mantissa >= _HALF), 0))


def _fold(values: np.ndarray) -> np.ndarray:
    """Map whole numbers of both signs to whole numbers from 0."""
    return np.where(values < 0, -2 * values - 1, 2 * values)


def _unfold(values: np.ndarray) -> np.ndarray:
    return np.where(values & 1, -(values >> 1) - 1, values >> 1)
