"""A model folder at a site, from what the server sent it after one round."""

from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Dataset, Split
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import LabelCounts
from fedmlh.federated.task import Task
from fedmlh.oneround.choose import Choice
from fedmlh.oneround.corrected import decode_networks
from fedmlh.oneround.exchange import RESULT, SUMS, asks_for_buckets
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.result import open_result
from fedmlh.oneround.terms import Terms
from fedmlh.runs.model_folder import Networks, save_bundle
from fedmlh.runs.one_round.closing import Closing
from fedmlh.runs.rounds import Tell
from fedmlh.sites.site import Site
from fedmlh.storage import read_checked


def make_site_model(site: Site, out: Path, tell: Tell) -> None:
    """Write the model folder `out`: the model that was sent, or the solution of the sums that were sent."""
    if out.exists():
        raise UserError(f"{out} is there already: choose another --out")
    task, agreement = site.agreement.task, site.agreement
    if task.config.training != "one-round" or not (site.folder / RESULT).is_file():
        raise UserError(
            f"site {site.name} has been sent no result of one round: the server sends it at the end of the run"
        )
    seeds, outputs = task.draw_seeds(), task.num_tables * task.num_outputs
    try:
        terms = Terms.decode(memoryview(read_checked(site.folder / SUMS)), task.num_features)
        columns = outputs if asks_for_buckets(task) else task.num_labels
        payload, most = memoryview(read_checked(site.folder / RESULT)), max(1, task.num_labels)
        num_slots = terms.slots(seeds).count
        result = open_result(payload, num_slots, columns, outputs, task.config.point_bits, most)
        networks = decode_networks(result.networks, task.networks.stack.num_parameters) if result.weight else None
    except ValueError as problem:
        raise UserError(f"what the server sent to site {site.name} cannot be used ({problem})") from None
    terms_of = task.config.replace(ridge=result.ridge, count_power=result.power)
    chosen = Task(terms_of, task.num_features, task.num_labels)
    nothing = Split(
        csr_matrix((0, task.num_features), dtype=np.float32), csr_matrix((0, task.num_labels), dtype=np.float32)
    )
    empty = Dataset(
        site.name, nothing, nothing, agreement.labels, agreement.text, first_feature=agreement.first_feature
    )
    linear = result.found
    if not isinstance(linear, Linear):
        tell(f"solving for the sums of {linear.points:,} points")
        none = LabelCounts(np.zeros(task.num_labels, np.int64), 1)
        closing = Closing(chosen, seeds, terms, empty, none, torch.device("cpu"), tell)
        linear = closing.solve(linear, Choice.given(result.ridge, result.power)).model
    beside = None
    if networks is not None:
        beside = Networks(task.networks, task.networks.draw_seeds(), networks.half().numpy(), result.weight)
    save_bundle(out, chosen, seeds, linear, empty, terms, beside)
