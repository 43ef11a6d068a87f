"""Transcripts: which sessions' text is recorded, how much of it, and the resulting conversation."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager

import msgspec
import pytest

import rl_insight as insight
from rl_insight.sessions.transcript import TextSource, transcript
from rl_insight.store import RunStore, queries
from rl_insight.testing import FakeClock, capture

CAPTURED = {"recorder": {"capture_text": True, "transcripts_per_step": 2}}


@contextmanager
def recording(**recorder):
    """Capture text; the clock stands still unless it is advanced."""
    with capture({"recorder": {**CAPTURED["recorder"], **recorder}}, clock=FakeClock()) as captured:
        yield captured


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with RunStore(tmp_path_factory.mktemp("run") / "run.duckdb", min_free_bytes=0, create=True) as opened:
        yield opened


@pytest.fixture
def read(store):
    """Return a function that stores the batches of a capture and reads the transcript of a session."""

    def read_one(captured, session_id, **options):
        captured.flush()
        process = msgspec.structs.replace(captured.process, process_id=uuid.uuid4().hex)
        store.commit([msgspec.structs.replace(batch, process=process) for batch in captured._transport.batches])
        with store.reader() as cursor:
            return queries.session_transcript(cursor, session_id, **options)

    yield read_one
    with store.writing() as connection:
        for table in ("span_data", "open_span_data", "event_data", "sessions"):
            connection.execute(f"DELETE FROM {table}")


def sample(session_id, *, step=1, answer="4", reward=None, status="accepted", fails=False):
    """Record one sample with a turn and a tool call."""
    try:
        with insight.session("task", session_id=session_id, step=step, prompt="What is 2 + 2?") as session:
            with insight.phase("generate", tokens=5) as turn:
                turn.set_attribute("response", "I calculate.")
            with insight.phase("toolcall", tool="calculator", tool_arguments={"expression": "2+2"}) as call:
                call.set_attribute("tool_result", "4")
            with insight.phase("generate", tokens=7) as turn:
                turn.set_attribute("response", answer)
                if fails:
                    raise RuntimeError("no answer")
            session.finalize(status, reward=reward)
    except RuntimeError:
        pass


def texts_of(captured):
    """Return the sessions whose answers were recorded."""
    captured.flush()
    found = {span.session_id for span in captured.spans if "I calculate." in json.dumps(span.attributes)}
    return found | {event.session_id for event in captured.events if event.name == "rl_insight.texts"}


def test_a_session_is_read_back_as_a_conversation(read):
    with recording() as captured:
        sample("one", reward=1.0)
        found = read(captured, "one")
    assert [(one.role, one.text) for one in found.messages] == [
        ("user", "What is 2 + 2?"),
        ("assistant", "I calculate."),
        ("tool", "4"),
        ("assistant", "4"),
    ]
    call = found.messages[2]
    assert (call.tool, json.loads(call.arguments)) == ("calculator", {"expression": "2+2"})
    assert [one.tokens for one in found.messages] == [None, 5, None, 7]
    assert (found.reward, found.status, found.is_captured, found.is_cut) == (1.0, "accepted", True, False)


def test_turns_say_how_long_they_took(read):
    clock = FakeClock()
    with (
        capture(CAPTURED, clock=clock) as captured,
        insight.session(session_id="s"),
    ):
        with insight.phase("generate", prompt="hello") as turn:
            clock.advance(1.5)
            turn.set_attribute("response", "hi")
        found = read(captured, "s")
    asked, answered = found.messages
    assert (asked.duration_s, answered.duration_s, answered.outcome) == (None, 1.5, "ok")
    assert answered.at_ts - asked.at_ts == 1.5


def test_without_capture_a_transcript_has_lengths_alone(read):
    with capture() as captured:
        sample("one")
        found = read(captured, "one")
    assert not found.is_captured
    assert [(one.role, one.text, one.characters) for one in found.messages] == [
        ("user", None, 14),
        ("assistant", None, 12),
        ("tool", None, 1),
        ("assistant", None, 1),
    ]


def test_an_unknown_session_has_no_transcript(read):
    with recording() as captured:
        sample("one")
        assert read(captured, "other") is None


def test_the_first_sessions_of_each_step_are_recorded():
    with recording() as captured:
        for step in (1, 2):
            for number in range(5):
                sample(f"{step}/{number}", step=step, reward=0.5)
        assert texts_of(captured) == {"1/0", "1/1", "2/0", "2/1"}


def test_sessions_without_a_step_are_sampled_by_minute():
    clock = FakeClock()
    with capture(CAPTURED, clock=clock) as captured:
        for minute in range(2):
            for number in range(5):
                sample(f"{minute}/{number}", step=None)
            clock.advance(60)
        assert texts_of(captured) == {"0/0", "0/1", "1/0", "1/1"}


def test_texts_of_failed_sessions_are_recorded_up_to_as_many_again(read):
    with recording() as captured:
        for number in range(3):
            sample(f"good/{number}")
        for number in range(4):
            sample(f"bad/{number}", fails=True)
        assert texts_of(captured) == {"good/0", "good/1", "bad/0", "bad/1"}
        found = read(captured, "bad/0")
    assert [(one.role, one.text) for one in found.messages][:3] == [
        ("user", "What is 2 + 2?"),
        ("assistant", "I calculate."),
        ("tool", "4"),
    ]
    assert found.status == "failed"


def test_the_turn_that_failed_is_recorded_in_any_case(read):
    with recording(transcripts_per_step=0) as captured:
        sample("bad", answer="the end", fails=True)
        found = read(captured, "bad")
    assert [one.text for one in found.messages if one.role == "assistant"] == [None, "the end"]


def test_texts_of_the_lowest_and_highest_reward_are_recorded():
    with recording(transcripts_per_step=2) as captured:
        for number, reward in enumerate((0.5, 0.5, 0.5, 0.4, 0.45, 0.9, 0.8)):
            sample(str(number), reward=reward)
        assert texts_of(captured) == {"0", "1", "3", "5"}


def test_texts_of_a_session_that_ends_long_after_its_turns_are_still_recorded():
    with recording() as captured:
        for number in range(2):
            sample(str(number))
        session = insight.session(session_id="late", step=1).submit()
        with session.use(), insight.phase("generate", response="I calculate."):
            pass
        assert texts_of(captured) == {"0", "1"}
        session.finalize("failed", "verifier")
        assert texts_of(captured) == {"0", "1", "late"}


def test_other_processes_follow_the_owner_of_a_session():
    with recording(transcripts_per_step=1) as captured:
        headers = []
        for number in range(2):
            with insight.session(session_id=f"remote/{number}", step=1):
                headers.append(dict(insight.inject()))
    assert ["rl_insight.text=1" in one["baggage"] for one in headers] == [True, False]
    with recording(transcripts_per_step=5) as captured:
        for one in headers:
            with insight.attach(one), insight.phase("generate", response="I calculate."):
                pass
        assert texts_of(captured) == {"remote/0"}


def test_nothing_is_said_about_texts_without_capture(insight_capture):
    with insight.session(session_id="s"):
        assert "rl_insight.text" not in insight.inject()["baggage"]


def test_texts_of_a_session_end_at_its_limit(read):
    with recording(max_transcript_characters=1000) as captured:
        with insight.session(session_id="s", step=1):
            for _ in range(3):
                with insight.phase("generate", response="x" * 400):
                    pass
        found = read(captured, "s")
    assert [(len(one.text or ""), one.characters) for one in found.messages] == [(400, 400), (400, 400), (0, 400)]


def test_a_text_that_was_cut_has_its_full_length(read):
    with recording() as captured:
        with insight.session(session_id="s", prompt="y" * 100_000):
            pass
        found = read(captured, "s")
    (message,) = found.messages
    assert (len(message.text), message.characters) == (65_536, 100_000)
    assert captured.losses["attributes/cut"] >= 1


def test_a_long_conversation_keeps_its_last_messages(read):
    messages = [{"role": "user", "content": f"{number} " + "z" * 20_000} for number in range(10)]
    messages.append({"role": "user", "content": "w" * 200_000})
    with recording(max_transcript_characters=10_000_000) as captured:
        with insight.session(session_id="s", messages=messages):
            pass
        found = read(captured, "s")
    assert [one.text[:2] for one in found.messages] == ["9 ", "ww"]
    assert found.messages[0].left_out == 9
    assert (len(found.messages[1].text), found.messages[1].characters) == (32_768, 200_000)


def test_an_answer_is_bounded(read):
    with recording() as captured:
        sample("one", answer="a" * 1000)
        found = read(captured, "one", max_characters=60)
    assert found.is_cut
    assert sum(len(one.text or "") + len(one.arguments or "") for one in found.messages) == 60
    assert found.characters > 1000


def test_records_of_sessions_hold_no_texts(only_record):
    with recording() as captured:
        sample("one")
        record = only_record(captured)
    assert "I calculate." not in json.dumps(record)
    assert record["phases"]["generate"][0]["payload"] == {"tokens": 5, "response": "[12 characters]"}


def test_secrets_are_redacted_from_texts_too(read):
    with recording() as captured:
        with insight.session(session_id="s", prompt="use sk-abcdefghijklmnopqrstuvwxyz123456"):
            pass
        found = read(captured, "s")
    assert "abcdefghij" not in found.messages[0].text


ODD = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b[0m \x00 \x07",
    "\u202egnp.exe\u202c",
    "x" * 64_000,
    "half a pair \ud83d and \udc00",
]


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_arrive_as_they_are(read, text):
    with recording() as captured:
        with insight.session(session_id="s", prompt=text):
            pass
        found = read(captured, "s")
    assert found.messages[0].text == text.encode("utf-8", "backslashreplace").decode()


# -- what frameworks and OpenTelemetry record


def turn(start, end, **attributes):
    return TextSource(name="generate", start_ts=start, end_ts=end, outcome="ok", attributes=attributes)


def said(*sources):
    return [(one.role, one.text) for one in transcript(sources)]


def test_a_conversation_that_every_turn_repeats_is_shown_once():
    first = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"}]
    second = [*first, {"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3 + 3?"}]
    assert said(
        turn(1, 2, messages=first, response="4"),
        turn(3, 4, messages=second, response="6"),
    ) == [
        ("system", "Be short."),
        ("user", "2 + 2?"),
        ("assistant", "4"),
        ("user", "And 3 + 3?"),
        ("assistant", "6"),
    ]


def test_a_message_that_is_sent_twice_is_shown_twice():
    first = [{"role": "user", "content": "again"}]
    second = [*first, {"role": "assistant", "content": "a"}, {"role": "user", "content": "again"}]
    assert said(turn(1, 2, messages=first, response="a"), turn(3, 4, messages=second, response="a")) == [
        ("user", "again"),
        ("assistant", "a"),
        ("user", "again"),
        ("assistant", "a"),
    ]


def test_a_prompt_that_repeats_the_conversation_as_text_is_continued():
    assert said(
        turn(1, 2, prompt="<user>2 + 2?", response="<call>2+2"),
        turn(3, 4, prompt="<user>2 + 2?<call>2+2<result>4", response="It is 4."),
    ) == [("user", "<user>2 + 2?"), ("assistant", "<call>2+2"), ("user", "<result>4"), ("assistant", "It is 4.")]


def test_what_a_session_says_at_its_end_is_not_reported_again():
    session = TextSource(
        name="session", start_ts=0, end_ts=9, attributes={"prompt": "q", "response": "a"}, is_session=True
    )
    assert said(session, turn(1, 2, response="a")) == [("user", "q"), ("assistant", "a")]
    assert said(session) == [("user", "q"), ("assistant", "a")]


def test_openai_tool_calls_are_read():
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"query": "rl"}'}}]},
        {"role": "tool", "name": "search", "content": "three results"},
        {"role": "assistant", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {}}]},
    ]  # fmt: skip
    found = transcript([turn(1, 2, completion=messages)])
    assert [(one.role, one.tool, one.text) for one in found] == [
        ("assistant", "search", ""),
        ("tool", "search", "three results"),
        ("assistant", None, "See\n[image_url]"),
    ]
    assert found[0].arguments == '{"query": "rl"}'


GEN_AI = {
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be short."}]),
    "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}]),
    "gen_ai.output.messages": json.dumps(
        [
            {
                "role": "assistant",
                "parts": [
                    {"type": "text", "content": "I look."},
                    {"type": "tool_call", "id": "1", "name": "weather", "arguments": {"city": "Paris"}},
                ],
                "finish_reason": "tool_call",
            }
        ]
    ),
    "gen_ai.usage.output_tokens": 12,
}


def test_messages_of_opentelemetry_are_read():
    tool = {
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.arguments": '{"city":"Paris"}',
        "gen_ai.tool.call.result": "rain",
    }
    found = transcript([turn(1, 2, **GEN_AI), turn(3, 4, **tool)])
    assert [(one.role, one.tool, one.text) for one in found] == [
        ("system", None, "Be short."),
        ("user", None, "Weather?"),
        ("assistant", None, "I look."),
        ("assistant", "weather", ""),
        ("tool", "weather", "rain"),
    ]
    assert found[2].tokens == 12
    assert json.loads(found[3].arguments) == {"city": "Paris"}


@pytest.mark.parametrize(("given", "tokens"), [("12", 12), (12.0, 12), (-12, None), ("many", None), (True, None)])
def test_a_number_of_tokens_is_read_in_any_form(given, tokens):
    (_, answer) = transcript([turn(1, 2, prompt="hello", response="hi", output_tokens=given)])
    assert answer.tokens == tokens


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.prompt": "hello", "gen_ai.completion": "hi"},
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hello", "gen_ai.completion.0.content": "hi"},
        {
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": "hello",
            "llm.output_messages.0.message.content": "hi",
        },
    ],
    ids=["texts", "OpenLLMetry", "OpenInference"],
)
def test_older_conventions_are_read(attributes):
    assert said(turn(1, 2, **attributes)) == [("user", "hello"), ("assistant", "hi")]


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("gen_ai.user.message", {"content": "hello"}, ("user", "hello")),
        ("gen_ai.choice", {"body": '{"index":0,"message":{"content":"hi"}}'}, ("assistant", "hi")),
        ("gen_ai.content.prompt", {"gen_ai.prompt": "hello"}, ("user", "hello")),
        ("gen_ai.content.completion", {"gen_ai.completion": "hi"}, ("assistant", "hi")),
    ],
)
def test_events_of_opentelemetry_are_read(name, attributes, expected):
    assert said(TextSource(name=name, start_ts=1, attributes=attributes, is_event=True)) == [expected]


@pytest.mark.parametrize(
    "value", ["[", "{}", "[1, 2]", [None], [{}], {"role": 7}, {"tool_calls": [3]}, [[[[["deep"]]]]], 7, True, ""]
)
@pytest.mark.parametrize("key", ["prompt", "gen_ai.input.messages", "tool_arguments", "gen_ai.completion"])
def test_values_of_any_shape_are_survived(key, value):
    for message in transcript([turn(1, 2, **{key: value})]):
        assert message.role
