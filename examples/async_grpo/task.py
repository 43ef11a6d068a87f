"""The task: small sums and products, answered with two digits, with or without the help of a calculator.

A sum can be answered directly. A product needs the calculator, which costs a little. The policy knows neither rule.
"""

from dataclasses import dataclass

import numpy as np

ANSWER_LENGTH = 2
TOOL_COST = 0.05
KINDS = ("add", "multiply")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question.

    >>> Prompt("multiply", 7, 8).expression, Prompt("multiply", 7, 8).answer
    ('7*8', (5, 6))
    """

    kind: str
    left: int
    right: int

    @property
    def expression(self) -> str:
        """The question as text, which is also the input of the calculator."""
        return f"{self.left}{'+' if self.kind == 'add' else '*'}{self.right}"

    @property
    def answer(self) -> tuple[int, ...]:
        """The correct digits."""
        return digits(self.left + self.right if self.kind == "add" else self.left * self.right)


def digits(number: int) -> tuple[int, ...]:
    """Return a number as the two digits of an answer.

    >>> digits(7)
    (0, 7)
    """
    return number // 10, number % 10


def random_prompt(rng: np.random.Generator) -> Prompt:
    """Draw a question."""
    return Prompt(str(rng.choice(KINDS)), int(rng.integers(10)), int(rng.integers(10)))


def reward(prompt: Prompt, answer: tuple[int, ...], tool_calls: int) -> float:
    """Score an answer: the fraction of correct digits, minus the cost of the tool.

    >>> reward(Prompt("add", 2, 2), (0, 4), tool_calls=0), reward(Prompt("add", 2, 2), (0, 5), tool_calls=1)
    (1.0, 0.45)
    """
    right = sum(given == wanted for given, wanted in zip(answer, prompt.answer, strict=True))
    return right / ANSWER_LENGTH - TOOL_COST * tool_calls
