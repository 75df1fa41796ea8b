"""Compiled twins of plain code elsewhere in the package: the same results, faster. They need the extra `fast`."""
