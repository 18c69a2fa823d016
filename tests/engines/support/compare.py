# SPDX-License-Identifier: Apache-2.0
"""Answers of an engine, and how far two of them are apart."""
import math
import random
from dataclasses import dataclass, field


@dataclass
class Answer:
    """tokens: what was generated; logprobs: of each of them; cached: prompt tokens that the engine did not compute;
    details: more about those, as the engine tells it."""
    tokens: list
    logprobs: list
    cached: int = 0
    details: dict = field(default_factory=dict)


def prompt(seed, length, vocabulary=512):
    """Token ids, the same for the same seed; none of the special ones."""
    draw = random.Random(f"prompt {seed}")
    return [draw.randrange(10, vocabulary) for _ in range(length)]


def difference(a, b):
    """The largest difference of two answers' log probabilities; infinite where the tokens differ.

    0.0 is what a restore must give against a run that computed the same part of the prompt. Different tokens mean that a difference
    was large enough to change the choice, and say nothing about what comes after it.
    """
    if a.tokens != b.tokens:
        return math.inf
    return max((abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True)), default=0.0)
