"""Sections and settings: what a section declares for all its settings, and each setting for itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, dataclass_transform

#: Largest number of hash functions, and so of seeds in a list.
MAX_TABLES = 1024
#: Classes of fields, as `section` declared them.
DECLARED: dict[type, "Section"] = {}
_Fields = TypeVar("_Fields")
_AGREED = {
    "always": "All sites must agree on these settings.",
    "rounds": "For training in rounds, all sites must agree on these settings.",
    "one-round": "For training in one round, all sites must agree on these settings.",
    "never": "Sites need not agree on these settings.",
}
_EFFECT = {
    "": "",
    "rounds": " They matter to networks only.",
    "one-round": " They matter to training in one round only.",
}


@dataclass(frozen=True)
class Section:
    """What all settings of a section have in common."""

    name: str
    #: One sentence that says what the section is about.
    title: str
    #: The training for which all sites must agree on it.
    agreed: Literal["always", "rounds", "one-round", "never"] = "never"
    #: Whether a resumed run may change it.
    free: bool = False
    #: Whether each real site sets it for itself, when it is prepared.
    own: bool = False
    #: The training in which it has an effect; empty for both. Networks beside a linear model count as "rounds".
    training: Literal["", "rounds", "one-round"] = ""
    #: Whether all methods of a comparison have the first one's values, or values of their own.
    common: Literal["always", "unless swept", "never"] = "never"

    def is_agreed(self, training: str) -> bool:
        """Say whether all sites must agree on this section for that training."""
        return self.agreed in ("always", "one-round" if training == "one-round" else "rounds")

    @property
    def meaning(self) -> str:
        """Return who must agree on the settings, whether a resumed run may change them, and where they matter."""
        agreed = "Each real site sets them for itself." if self.own else _AGREED[self.agreed]
        resumed = "A resumed run may change them." if self.free else "A resumed run must keep them."
        return f"{agreed} {resumed}{_EFFECT[self.training]}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a setting declares for itself."""

    #: One sentence that explains it.
    help: str
    at_least: float | None = None
    at_most: float | None = None
    #: How many numbers or names a list may have.
    count: int = MAX_TABLES
    #: The kind of part that it names, and words that it may have instead of a name.
    part: str = ""
    also: tuple[str, ...] = ()
    #: The value that leaves the choice to the data.
    open: Any = None
    #: With sizes "auto": always chosen, or changed where that is needed.
    sized: Literal["", "chosen", "changed"] = ""
    #: The training in which it has an effect, if its section does not say so.
    training: Literal["", "rounds", "one-round"] = ""
    #: It has an effect only with these values of other settings (`needs`), or none with these (`idle_with`).
    needs: Mapping[str, Any] = field(default_factory=dict)
    idle_with: Mapping[str, Any] = field(default_factory=dict)
    #: Whether it follows from something else that sites agree on.
    implied: bool = False
    #: Whether real sites train with the default only.
    simulation_only: bool = False
    #: Whether it only makes sense among several clients: a client that trains alone has the default.
    for_others: bool = False
    #: Whether it tells methods apart; the name and the seed of a run do not.
    compared: bool = True
    #: Whether all methods of a comparison have the first one's value, if the section says something else.
    common: Literal["", "always", "unless swept", "never"] = ""


@dataclass(frozen=True, kw_only=True)
class Setting(Facts):
    """A setting: its name, type and default, its section, and its facts."""

    name: str
    type: Any
    default: Any
    section: Section

    def is_idle(self, values: Any) -> bool:
        """Say whether the setting has no effect on a run with these values."""
        once, training = values.training == "one-round", self.training or self.section.training
        if training == "one-round" and not once:
            return True
        # Networks beside a linear model: `correct` sets their rounds, and their sizes follow from the data.
        if training == "rounds" and once and (not values.correct or self.sized == "chosen" or self.name == "rounds"):
            return True
        if any(getattr(values, name) != value for name, value in self.needs.items()):
            return True
        return bool(self.idle_with) and all(getattr(values, name) == value for name, value in self.idle_with.items())


def option(default: Any, help: str, **facts: Any) -> Any:
    """Return a field with its default, the sentence that explains it, and facts (see `Facts`)."""
    return field(default=default, metadata={"facts": Facts(help=help, **facts)})


@dataclass_transform(frozen_default=True, kw_only_default=True)
def section(name: str, title: str, **meaning: Any) -> Callable[[type[_Fields]], type[_Fields]]:
    """Declare a class of fields to be a section."""

    def declare(fields: type[_Fields]) -> type[_Fields]:
        # A config has its own methods: made here, they would cost time and never be called.
        made = dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)(fields)
        DECLARED[made] = Section(name, title, **meaning)
        return made

    return declare
