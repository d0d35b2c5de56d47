"""What a decoder reads and what it must say: statements as rows of tokens and targets, of many members at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.data.samples import streams
from joma.data.statements import Statements
from joma.models.decoder import Decoder

Objective = Literal["next", "any order", "fill the end"]
"""next: a causal decoder says the answer token by token. The other two read both sides of a masked entity: either
entity of a statement is masked in training, or always the last one."""

NOTHING = -1  # the target of a position that is not asked


@dataclass(frozen=True)
class Examples:
    """Rows that are read, (n, length) each: tokens, and targets that are NOTHING where nothing is asked."""

    tokens: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def __add__(self, more: Examples) -> Examples:
        length = max(self.tokens.shape[1], more.tokens.shape[1])
        one, other = self.widened(length), more.widened(length)
        return Examples(torch.cat([one.tokens, other.tokens]), torch.cat([one.targets, other.targets]))

    def widened(self, length: int) -> Examples:
        """With tokens at the end that no causal decoder has seen when it is asked."""
        more = (0, length - self.tokens.shape[1])
        return Examples(F.pad(self.tokens, more), F.pad(self.targets, more, value=NOTHING))


def next_tokens(statements: Statements) -> Examples:
    """Statements for a causal decoder: each token of the answer is asked at the position before it."""
    tokens = statements.tokens
    targets = tokens[:, 1:].clone()
    targets[:, : -statements.answer] = NOTHING
    return Examples(tokens[:, :-1], targets)


def masked(statements: Statements, mask: int, *, end: bool = True) -> Examples:
    """Statements with their last (or first) entity masked, which is asked where it stood."""
    tokens, targets = statements.tokens.clone(), torch.full_like(statements.tokens, NOTHING)
    where = slice(-statements.answer, None) if end else slice(0, statements.answer)
    targets[:, where] = tokens[:, where]
    tokens[:, where] = mask
    return Examples(tokens, targets)


def asked(statements: Statements, objective: Objective, mask: int) -> Examples:
    """Statements with their answers asked."""
    return next_tokens(statements) if objective == "next" else masked(statements, mask)


def trained(statements: Statements, objective: Objective, mask: int) -> Examples:
    """Statements as they are trained on."""
    rows = asked(statements, objective, mask)
    return rows + masked(statements, mask, end=False) if objective == "any order" else rows


def crossed(statements: Statements) -> Statements:
    """Every prompt with every answer, the answers of the first prompt first."""
    count = len(statements)
    prompts, answers = statements.prompt.repeat_interleave(count, 0), statements.target.repeat(count, 1)
    return Statements(torch.cat([prompts, answers], 1), statements.answer)


@dataclass(frozen=True)
class Tables:
    """Examples of every member, padded to one size: (members, n, length)."""

    tokens: Tensor
    targets: Tensor

    @staticmethod
    def of(examples: Sequence[Examples], length: int, device: str) -> Tables:
        rows = max(1, *(len(one) for one in examples))
        wide = [one.widened(length) for one in examples]
        tokens = torch.stack([F.pad(one.tokens, (0, 0, 0, rows - len(one))) for one in wide])
        targets = torch.stack([F.pad(one.targets, (0, 0, 0, rows - len(one)), value=NOTHING) for one in wide])
        return Tables(tokens.to(device), targets.to(device))

    def of_members(self, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.tokens[list(members)], self.targets[list(members)]


def order(counts: Sequence[int], numbers: Sequence[int], *, seed: int, steps: int, batch: int, device: str) -> Tensor:
    """(members, steps, batch): which of its examples a member reads, epoch after epoch in a new order each.

    It depends on nothing but the numbers given, so a resumed run reads what it would have read.
    """
    rows = []
    for count, source in zip(counts, streams(seed, numbers, step=-2), strict=True):
        luck = torch.rand((-(-steps * batch // count)), count, generator=source)
        rows.append(luck.argsort(-1).flatten()[: steps * batch].view(steps, batch))
    return torch.stack(rows).to(device)


AT_ONCE = 2**17  # tokens that all members together read at once while they are measured


def answers(decoder: Decoder, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of every row the log probability of its whole answer, and whether it is the most likely one, (members, n) each.

    Rows without a target are NaN.
    """
    found = []
    size = max(1, AT_ONCE // (decoder.members * tokens.shape[-1]))
    for some, wanted in zip(tokens.split(size, 1), targets.split(size, 1), strict=True):
        scores = decoder(some).log_softmax(-1)
        said = scores.gather(-1, wanted.clamp(min=0)[..., None]).squeeze(-1)
        there = wanted != NOTHING
        right = ((scores.argmax(-1) == wanted) | ~there).all(-1)
        empty = torch.where(there.any(-1), 0.0, torch.nan)
        found.append((torch.where(there, said, 0.0).sum(-1) + empty, right + empty))
    return torch.cat([log for log, _ in found], 1), torch.cat([right for _, right in found], 1)


def means(decoder: Decoder, tables: Mapping[str, Tables], members: Sequence[int]) -> dict[str, Tensor]:
    """Of every kind of statement the mean probability, accuracy and log probability, (members, kinds) each."""
    parts = {"probability": [], "accuracy": [], "log": []}  # type: dict[str, list[Tensor]]
    for table in tables.values():
        log, right = answers(decoder, *table.of_members(members))
        for name, values in (("probability", log.exp()), ("accuracy", right), ("log", log)):
            parts[name].append(values.nanmean(-1))
    return {name: torch.stack(values, -1).float() for name, values in parts.items()}


RANKS = ("beaten", "chosen")


def ranks(log: Tensor, alike: Tensor) -> tuple[Tensor, Tensor]:
    """How many of its rivals a right answer beats, and how often it beats all of them, (members,) each.

    By chance it beats half of them. log: (members, n, n), of every prompt the log probability of every answer; the
    diagonal is right. alike: (members, n, n) bool, which answers are rivals: those to prompts with the same relation.
    """
    own = log.diagonal(dim1=-2, dim2=-1)[..., None]
    rivals = alike & ~torch.eye(log.shape[-1], dtype=torch.bool, device=log.device)
    won = torch.where(rivals, (own > log).double() + 0.5 * (own == log), 0.0)
    asked = alike.diagonal(dim1=-2, dim2=-1)
    all_of_them = ((won.sum(-1) == rivals.sum(-1)) & asked).sum(-1) / asked.sum(-1)
    return won.sum((-2, -1)) / rivals.sum((-2, -1)), all_of_them
