"""Language models for studies: what they are told (config), what they read (text), how they are trained (training).

    text = corpus(config)
    base = recipe(config, text)
    train_variants({"relu": base, "identity": base.with_decoder(activation="identity")}, text, run, progress)

`joma.recipes.language.curves` reads what was recorded back.
"""

from joma.recipes.language.config import PAPER, PYTHON, QUICK, TEXTS, LanguageModelConfig, called
from joma.recipes.language.text import corpus, epoch_steps, same_text
from joma.recipes.language.training import KEY_WORDS, Recipe, ensemble, frequency_loss, recipe, train_variants

__all__ = [
    "KEY_WORDS",
    "PAPER",
    "PYTHON",
    "QUICK",
    "TEXTS",
    "LanguageModelConfig",
    "Recipe",
    "called",
    "corpus",
    "ensemble",
    "epoch_steps",
    "frequency_loss",
    "recipe",
    "same_text",
    "train_variants",
]
