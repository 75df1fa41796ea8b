"""Settings searched on the validation part: which are tried, by whom, and what came of it."""
