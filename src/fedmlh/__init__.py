"""Federated extreme classification: FedMLH and FedAvg from data files to a model one can query."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedmlh.errors import explain_missing

if TYPE_CHECKING:
    from fedmlh.config import Config as Config
    from fedmlh.data.dataset import Dataset as Dataset
    from fedmlh.data.dataset import Labels as Labels
    from fedmlh.data.dataset import Split as Split
    from fedmlh.data.readers.formats import load as load
    from fedmlh.data.readers.layout import Reader as Reader
    from fedmlh.data.readers.raw import RawFolder as RawFolder
    from fedmlh.data.readers.raw import RawPart as RawPart
    from fedmlh.data.synthetic import synthesize as synthesize
    from fedmlh.engines.run import run as run
    from fedmlh.errors import UserError as UserError
    from fedmlh.estimators import FedAvgClassifier as FedAvgClassifier
    from fedmlh.estimators import FedMLHClassifier as FedMLHClassifier
    from fedmlh.model.losses import Loss as Loss
    from fedmlh.model.losses import Positives as Positives
    from fedmlh.parts import load_parts as load_parts
    from fedmlh.parts import register as register
    from fedmlh.serving.predictor import Model as Model

_PUBLIC = {
    "Config": "fedmlh.config",
    "Dataset": "fedmlh.data.dataset",
    "FedAvgClassifier": "fedmlh.estimators",
    "FedMLHClassifier": "fedmlh.estimators",
    "Labels": "fedmlh.data.dataset",
    "Loss": "fedmlh.model.losses",
    "Model": "fedmlh.serving.predictor",
    "Positives": "fedmlh.model.losses",
    "RawFolder": "fedmlh.data.readers.raw",
    "RawPart": "fedmlh.data.readers.raw",
    "Reader": "fedmlh.data.readers.layout",
    "Split": "fedmlh.data.dataset",
    "UserError": "fedmlh.errors",
    "load": "fedmlh.data.readers.formats",
    "load_parts": "fedmlh.parts",
    "register": "fedmlh.parts",
    "run": "fedmlh.engines.run",
    "synthesize": "fedmlh.data.synthetic",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    # Imported when asked for: `fedmlh --help` and a mistyped command need not wait for torch.
    if name in _PUBLIC:
        try:
            return getattr(import_module(_PUBLIC[name]), name)
        except ModuleNotFoundError as error:
            if (sentence := explain_missing(error.name)) is None:
                raise
            raise ModuleNotFoundError(f"fedmlh.{name}: {sentence}", name=error.name) from None
    raise AttributeError(f"module 'fedmlh' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
