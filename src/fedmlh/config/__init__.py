"""The settings of a run: sections, presets, and files of settings."""

from fedmlh.config.codecs import list_families, parse_codec
from fedmlh.config.config import Config, parse_setting, presets
from fedmlh.config.section import Section, Setting
from fedmlh.config.sections.data import MAX_SYNTHETIC
from fedmlh.config.settings import SECTIONS, SETTINGS
from fedmlh.config.text import explain_settings

__all__ = [
    "MAX_SYNTHETIC",
    "SECTIONS",
    "SETTINGS",
    "Config",
    "Section",
    "Setting",
    "explain_settings",
    "list_families",
    "parse_codec",
    "parse_setting",
    "presets",
]
