"""Transforms of a client's delta on its way into the sum: one list at the client, one at the server.

A transform is added to the federation by adding it to the list.
"""

from fedmlh.config import Config
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.transforms.clipping import Bounds, Clip
from fedmlh.federated.transforms.feedback import ErrorFeedback
from fedmlh.federated.transforms.transform import ClientTransform, ServerTransform


def list_at_client(config: Config) -> list[ClientTransform]:
    """Return what happens to a delta between local training and codec, in order."""
    return [ErrorFeedback()] if make_codec(config.update_codec).feedback else []


def list_at_server(bounds: Bounds, client_id: int) -> list[ServerTransform]:
    """Return what happens to a client's delta between codec and sum, in order."""
    return [Clip(bounds.updates[client_id], bounds.scales)]
