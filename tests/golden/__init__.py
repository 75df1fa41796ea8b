"""What runs gave, to the bit, before anything else was changed: hashes, and small folders of every kind."""
