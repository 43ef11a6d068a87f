"""Conversation text is removed from attributes in any form."""

from __future__ import annotations

import pytest

from rl_insight.schema.captured_text import without_texts_in


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (None, None),
        ("", ""),
        ('{"tokens":3}', '{"tokens":3}'),
        ("not json", "not json"),
        ('{"response":"It is 4."}', '{"response":"[8 characters]"}'),
        ('{"response" : "It is 4."}', '{"response":"[8 characters]"}'),
        ('{"turn":{"response":"It is 4."}}', '{"turn":{"response":"[8 characters]"}}'),
        ('{"choices":[[{"response":"It is 4."}],9]}', '{"choices":[[{"response":"[8 characters]"}],9]}'),
        ('{"response":"It is 4."', None),
        ('[{"response":"It is 4."}]', None),
    ],
)
def test_texts_are_removed_from_recorded_attributes(recorded, shown):
    assert without_texts_in(recorded) == shown
