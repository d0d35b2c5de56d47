"""The options of `joma run STUDY`: the fields of its config, typed, plus where the results go."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import tyro

if TYPE_CHECKING:
    from joma.claims.contract import Study

Config = TypeVar("Config")


@dataclass(frozen=True)
class Chosen(Generic[Config]):
    """What the user asked for; the words below an option are its help."""

    config: tyro.conf.OmitArgPrefixes[Config]
    scale: Literal["quick", "paper"] = "quick"
    """Preset that the options start from."""
    out: Path = Path("joma-out")
    """Folder for runs and report."""
    json: str | None = None
    """File for the findings as JSON; - for standard output."""
    fresh: bool = False
    """Run again what is already recorded."""


def parse(study: Study, arguments: list[str]) -> Chosen[Any]:
    """Read options for `study`. A misspelt or mistyped one ends the program with a sentence and the nearest name."""
    scale = _scale(study, arguments)
    default = Chosen(study.preset(scale), scale)
    typed = cast(Any, Chosen)[type(default.config)]
    chosen: Chosen[Any] = tyro.cli(
        typed, prog=f"joma run {study.name}", description=study.title, args=arguments, default=default
    )
    return chosen


def _scale(study: Study, arguments: list[str]) -> Literal["quick", "paper"]:
    """The preset must be known before the options, because it is what they differ from."""
    first = argparse.ArgumentParser(prog=f"joma run {study.name}", add_help=False, allow_abbrev=False)
    first.add_argument("--scale", choices=("quick", "paper"), default="quick")
    scale: Literal["quick", "paper"] = first.parse_known_args(arguments)[0].scale
    return scale
