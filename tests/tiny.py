"""A run small enough to be repeated dozens of times."""

from fedmlh.config import Config

TINY = Config(
    name="tiny",
    device="cpu",
    synthetic_points=300,
    synthetic_features=60,
    synthetic_labels=40,
    rounds=3,
    local_epochs=1,
    batch_size=40,
    num_tables=2,
    num_buckets=10,
    feature_dim=16,
    hidden_sizes=(8,),
    top_k=(1, 3),
)
