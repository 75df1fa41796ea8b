"""The data sets: the paper's own and their stand-ins if a folder has them, else the built-in one."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.source import open_dataset
from fedmlh.errors import UserError
from fedmlh.reproduction.paper import SHAPES, Shape

#: Folders, with the preset of each, small ones first; a folder with the name of a preset is the paper's own set.
KNOWN = {
    "eurlex-4k": "eurlex-4k",
    "EurLex-EuroVoc-titles-4K": "eurlex-4k",
    "wiki10-31k": "wiki10-31k",
    "CiteULike-T-46K": "wiki10-31k",
    "TIBKAT-GND-en-21K": "wiki10-31k",
    "amazontitles-131k": "amazontitles-131k",
    "wikiseealsotitles-320k": "wikiseealsotitles-320k",
}
BUILT_IN = "built-in"


@dataclass(frozen=True)
class Source:
    """A data set, and the preset of the paper with which it is run."""

    name: str
    preset: str
    folder: str = ""  # empty: synthetic data of the preset's sizes
    #: Changes to the preset; only tests have some, to make everything smaller.
    settings: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def shape(self) -> Shape:
        """Return what the paper says about the data set of this preset."""
        return SHAPES[self.preset]

    @property
    def kind(self) -> str:
        """Return how figures on it compare with the paper's: original, stand-in or synthetic."""
        if not self.folder:
            return "synthetic"
        return "original" if self.name == self.preset else "stand-in"

    @property
    def config(self) -> Config:
        """Return the config of the paper's FedMLH on this set."""
        return Config.load(self.preset).replace(data=self.folder, **self.settings)

    def open(self) -> Dataset:
        """Return the data itself."""
        return open_dataset(self.config)


def find_sources(root: Path | None) -> list[Source]:
    """Return the sets in a folder for which there is a preset; without a folder, the built-in data."""
    if root is None:
        return [Source(BUILT_IN, "eurlex-4k")]
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: --data names the folder that holds the data sets")
    found = [
        Source(name, preset, str((root / name).resolve())) for name, preset in KNOWN.items() if (root / name).is_dir()
    ]
    if not found:
        raise UserError(f"{root} has none of the folders {', '.join(KNOWN)}: name the folder that holds some of them")
    return found


def paper_shapes() -> list[Source]:
    """Return synthetic data of exactly the paper's sizes: for memory, bytes and time, never for accuracy."""
    return [Source(preset, preset) for preset in SHAPES]
