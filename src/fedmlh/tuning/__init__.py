"""Search for settings on the validation part: which are tried, which processes train, and the results."""
