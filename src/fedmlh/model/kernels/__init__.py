"""Compiled twins of plain code elsewhere in the package, with its results. They need the extra `fast`."""
