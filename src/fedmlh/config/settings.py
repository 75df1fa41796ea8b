"""All settings: the sections as one flat, frozen record, and a catalogue of the settings."""

import dataclasses
from dataclasses import dataclass
from typing import get_type_hints

from fedmlh.config.section import DECLARED, Section, Setting
from fedmlh.config.sections.data import Clients, Dataset, Synthetic, Text
from fedmlh.config.sections.run import Afterwards, Budget, Run, Setup
from fedmlh.config.sections.server import Evaluation, Linear, Server, Validation
from fedmlh.config.sections.task import Learning, Local, Messages, Networks, Sums


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Settings(  # a dataclass begins with the fields of its last base
    Run,
    Budget,
    Evaluation,
    Validation,
    Afterwards,
    Linear,
    Sums,
    Server,
    Messages,
    Local,
    Networks,
    Learning,
    Clients,
    Synthetic,
    Text,
    Dataset,
    Setup,
):
    """The values of all settings, as `config.num_tables`."""


def _list_settings() -> dict[str, Setting]:
    hints, found = get_type_hints(Settings), {}
    for entry in dataclasses.fields(Settings):
        (section,) = (DECLARED[base] for base in DECLARED if entry.name in base.__annotations__)
        facts = vars(entry.metadata["facts"])
        found[entry.name] = Setting(
            name=entry.name, type=hints[entry.name], default=entry.default, section=section, **facts
        )
    return found


#: Every setting by its name, section after section.
SETTINGS = _list_settings()
#: Every section by its name.
SECTIONS: dict[str, Section] = {setting.section.name: setting.section for setting in SETTINGS.values()}
