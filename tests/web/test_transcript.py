"""The transcript of a session: readable, searchable, and harmless whatever the text contains."""

from __future__ import annotations

import pytest

from rl_insight.monitor import Monitor

pytestmark = pytest.mark.xdist_group("web")

RUN = "transcripts"
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> & \x1b[31mred\x1b[0m \x07 \u202egpj.exe"
)
SHOWN = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> & red ␇ ⟨U+202E⟩gpj.exe"
ENDLESS = "x" * 64_000


@pytest.fixture(scope="module")
def recorded(server):
    monitor = Monitor()
    settings = {"server": {"url": server.url}, "recorder": {"capture_text": True, "transcripts_per_step": 3}}
    monitor.init("web", "transcripts", settings, run_id=RUN, role="rollout", rank=0)
    with monitor.session("sum", session_id="plain", step=1, prompt="What is 21 + 21?") as session:
        with monitor.phase("generate", tokens=12) as turn:
            turn.set_attribute("response", "Let me calculate that.")
        with monitor.phase("toolcall", tool="calculator", tool_arguments={"expression": "21 + 21"}) as call:
            call.set_attribute("tool_result", "forty-two")
        with monitor.phase("generate", tokens=5, response="It is 42."):
            pass
        session.finalize("accepted", reward=1.0, tokens=17)
    with monitor.session("bad", session_id="hostile", step=1, prompt=HOSTILE):
        with monitor.phase("generate", response=ENDLESS):
            pass
        with monitor.phase("generate", response="half a pair \ud83d"):
            pass
        with monitor.phase("toolcall", tool=HOSTILE, tool_arguments=HOSTILE, tool_result="y" * 70_000):
            pass
    with monitor.session("more", session_id="sampled", step=1, prompt="in the sample"):
        pass
    with monitor.session("more", session_id="beyond", step=1, prompt="not in the sample"):
        pass
    monitor.finish()
    return RUN


@pytest.fixture
def transcript(page, recorded):
    """Open a session; returns its transcript."""

    def open_it(session_id):
        page.goto(f"/?view=sessions&run={recorded}&session={session_id}")
        found = page.get_by_role("region", name="Transcript")
        found.wait_for()
        return found

    return open_it


def messages(transcript):
    return transcript.locator(".transcript-message")


def test_a_session_reads_as_a_conversation(transcript):
    found = transcript("plain")
    assert messages(found).locator(".transcript-role").all_inner_texts() == ["User", "Assistant", "Tool", "Assistant"]
    assert "What is 21 + 21?" in messages(found).nth(0).inner_text()
    assert "12 tokens" in messages(found).nth(1).inner_text()
    assert "Reward 1" in found.locator(".transcript-end").inner_text()
    call = messages(found).nth(2)
    assert not call.get_by_text("forty-two").is_visible()
    call.locator("summary").press("Enter")
    call.get_by_text("forty-two").wait_for()
    assert '"expression"' in call.inner_text()


def test_search_marks_and_unfolds_what_it_finds(transcript, page):
    found = transcript("plain")
    search = found.get_by_role("searchbox", name="Search in the transcript")
    search.fill("FORTY")
    found.locator("mark", has_text="forty").wait_for()
    assert found.get_by_role("status").inner_text() == "1 of 1 messages"
    search.fill("21")
    found.get_by_text("1 of 2 messages").wait_for()
    search.press("Enter")
    found.get_by_text("2 of 2 messages").wait_for()
    search.fill("nothing like it")
    found.get_by_text("not found").wait_for()


def test_the_whole_transcript_can_be_copied(transcript, page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    found = transcript("plain")
    found.get_by_role("button", name="Copy transcript").click()
    found.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith("[user]\nWhat is 21 + 21?")
    assert copied.endswith("[accepted, reward 1]")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_hostile_texts_are_only_ever_text(transcript, page, width, scheme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    found = transcript("hostile")
    for summary in found.locator("summary").all():
        summary.click()
    first = messages(found).nth(0).locator(".transcript-text")
    assert first.inner_text() == SHOWN
    assert found.locator("script, img, iframe, a[href^='javascript']").count() == 0
    assert page.evaluate("() => window.hacked") is None
    endless = messages(found).nth(1)
    endless.get_by_role("button", name="Show all 64,000 characters").click()
    assert endless.locator(".transcript-text").evaluate("one => one.textContent.length") == 64_000
    assert "half a pair" in messages(found).nth(2).inner_text()
    assert "Truncated: 65,536 of 70,000 characters were recorded." in messages(found).nth(3).inner_text()
    for element in (endless, messages(found).nth(3), found):
        assert element.evaluate("one => one.scrollWidth <= one.clientWidth"), "it is wider than its place"


def test_a_session_beyond_the_sample_says_why_there_is_nothing(page, recorded):
    page.goto(f"/?view=sessions&run={recorded}&session=beyond")
    page.get_by_text("the session is not in the sample of its step").wait_for()
