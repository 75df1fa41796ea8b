"""A data format of your own, lines `label,value,value,…`: fedmlh data info DIR --parts own_reader.py --format csv."""

import numpy as np
from scipy.sparse import csr_matrix

import fedmlh


def find(folder, names):
    """Return the files of the training and of the test part."""
    return (("train.csv",), ("test.csv",)) if "train.csv" in names else None


def read_part(path, num_labels):
    """Return points with one label each."""
    table = np.loadtxt(path, delimiter=",", ndmin=2)
    ends = np.arange(len(table) + 1)
    Y = csr_matrix((np.ones(len(table)), table[:, 0].astype(int), ends), shape=(len(table), num_labels))
    return fedmlh.RawPart(csr_matrix(table[:, 1:]), Y)


def read(layout):
    """Return what the files that `find` named say; labels.txt beside them names the labels."""
    names = tuple(layout.labels.read_text().split())
    train, test = (read_part(files[0], len(names)) for files in (layout.train, layout.test))
    return fedmlh.RawFolder(train, test, fedmlh.Labels(names, names))


fedmlh.register("reader", "csv", fedmlh.Reader(find, read))
