"""Compiled twins of plain code elsewhere in the package, with the same results. They need the extra `fast`."""
