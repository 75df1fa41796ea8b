"""Training in one round: sums that add up over clients, and a linear solution."""
