"""Conversation text: the attributes that hold it, and the placeholders recorded when it is private.

The keys include those of OpenTelemetry's semantic conventions for generative AI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from rl_insight.schema.json_values import json_object, json_text

SYSTEM_KEYS: Final = ("gen_ai.system_instructions",)
INPUT_KEYS: Final = (
    "messages", "message", "prompt", "prompts", "raw_prompt", "prompt_text", "input_text", "gen_ai.input.messages",
    "gen_ai.prompt",
)  # fmt: skip
OUTPUT_KEYS: Final = (
    "response", "responses", "completion", "completions", "response_text", "output_text", "generated_text",
    "gen_ai.output.messages", "gen_ai.completion",
)  # fmt: skip
ARGUMENT_KEYS: Final = ("tool_arguments", "gen_ai.tool.call.arguments")
RESULT_KEYS: Final = ("tool_result", "gen_ai.tool.call.result")
CAPTURED_TEXT: Final = frozenset({*SYSTEM_KEYS, *INPUT_KEYS, *OUTPUT_KEYS, *ARGUMENT_KEYS, *RESULT_KEYS})
"""Attributes that are recorded only with `recorder.capture_text`, and only for a sample of the sessions."""

FULL_LENGTH: Final = ".characters"
"""Suffix of the attribute with the full length of a truncated text."""
LEFT_OUT: Final = ".left_out"
"""Suffix of the attribute with the number of omitted earlier messages."""

_ANY_KEY = re.compile(f'"(?:{"|".join(map(re.escape, CAPTURED_TEXT))})"\\s*:')
_HIDDEN = re.compile(r"\[(\d+) (characters|items)\]")


def stand_in(value: Any) -> str:
    """Return the placeholder for private text.

    >>> stand_in("What is 2 + 2?"), stand_in(["two", "texts"])
    ('[14 characters]', '[2 items]')
    """
    if isinstance(value, str):
        return f"[{len(value)} characters]"
    return f"[{len(value)} items]" if hasattr(value, "__len__") else f"[{type(value).__name__}]"


def hidden_length(value: Any) -> int | None:
    """Return the length in a placeholder; 0 for a list, whose length in characters is unknown; None for other values.

    >>> hidden_length("[14 characters]"), hidden_length("[2 items]"), hidden_length("four")
    (14, 0, None)
    """
    found = _HIDDEN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    return int(found[1]) if found[2] == "characters" else 0


def without_texts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with text replaced by placeholders.

    >>> without_texts({"tokens": 3, "choices": [{"response": "It is 4."}]})
    {'tokens': 3, 'choices': [{'response': '[8 characters]'}]}
    """
    return {key: stand_in(value) if _is_text(key, value) else _inside(value) for key, value in attributes.items()}


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return without_texts(value)
    return list(map(_inside, value)) if isinstance(value, list) else value


def without_texts_in(attributes: str | None) -> str | None:
    """Do the same for attributes encoded as JSON; None if they are not a JSON object."""
    if attributes is None or _ANY_KEY.search(attributes) is None:
        return attributes
    found = json_object(attributes)
    return None if found is None else json_text(without_texts(found))


def _is_text(key: str, value: Any) -> bool:
    if key not in CAPTURED_TEXT or value is None or isinstance(value, (bool, int, float)):
        return False
    return hidden_length(value) is None
