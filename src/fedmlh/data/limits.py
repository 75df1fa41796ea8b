"""How many features and labels a data set may have."""

from fedmlh.errors import UserError

#: Column numbers are int32 wherever they are stored.
MAX_FEATURES = 2**31 - 1
#: A label costs memory even if no point has it: one absurd number in a file must not take all memory.
MAX_LABELS = 2**24


def check_size(path: object, num_features: int, num_labels: int) -> None:
    """Refuse sizes that no data set has and no memory holds."""
    if not 1 <= num_features <= MAX_FEATURES:
        raise UserError(f"{path}: {num_features:,} features; it should be 1 to {MAX_FEATURES:,}")
    if num_labels < 1:
        raise UserError(f"{path}: 0 labels; it should be 1 to {MAX_LABELS:,}")
    check_labels(path, num_labels)


def check_labels(path: object, num_labels: int) -> None:
    """Refuse more labels than any data set has."""
    if num_labels > MAX_LABELS:
        raise UserError(f"{path}: {num_labels:,} labels; it should be 1 to {MAX_LABELS:,}")
