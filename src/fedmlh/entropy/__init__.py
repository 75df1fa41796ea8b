"""Whole numbers as bytes, without loss and close to their entropy."""
