"""`rl-insight sessions`: the sessions of a run, as a table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rl_insight.cli.completion import one_of
from rl_insight.cli.console import say, say_json, say_table, working
from rl_insight.cli.hotspots import say_latest
from rl_insight.cli.opening import AsJson, Run, RunWords, ScopeOption, asked_run, run_or_files, scope_of, scope_text
from rl_insight.sessions.model import PENDING, SORTABLE, STATUSES
from rl_insight.words import seconds_text

_PHASES = 4


def sessions(
    words: RunWords = None,
    run: Run = None,
    scope: ScopeOption = "latest",
    status: Annotated[
        list[str] | None,
        one_of(lambda: STATUSES, help=f"Only this status; may be repeated: {', '.join(STATUSES)}."),
    ] = None,
    order: Annotated[str, one_of(lambda: SORTABLE, help="The field to sort by, largest first.")] = "total_s",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 30,
    transcript: Annotated[
        str | None,
        typer.Option(metavar="SESSION", help="Show one session as a conversation, if its text was captured."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions and where their time went, longest first; or the transcript of one."""
    if transcript is not None:
        with asked_run(*run_or_files(words, run)) as source, working("querying the transcript"):
            found = source.ask("sessions/transcript", session_id=transcript)
        say_json(found) if as_json else say(transcript_text(found))
        return
    chosen = scope_of(scope)
    with asked_run(*run_or_files(words, run)) as source, working("querying sessions"):
        first = last = chosen.step
        if chosen.last_steps is not None:
            first = last = source.ask("summary")["last_step"]
        answer = source.ask(
            "sessions", first_step=first, last_step=last, status=status or None, order=order, limit=limit
        )
    if as_json:
        say_json(answer)
        return
    found, total = answer["sessions"], answer["total"]
    if not found:
        wanted = f"{' or '.join(status)} sessions" if status else "sessions"
        say(f"There are no {wanted} in {scope_text(chosen, source.run_id)}.")
        return
    names = _phase_names(found)
    before, after = ["session", "task", "status", "step", "total", "queue", "runner"], ["post", "reward"]
    phases = [f"{name} time" if name in before + after else name for name in names]
    columns, optional = [*before, *phases, *after], ["task", "runner", "queue", "post", *phases[::-1], "reward", "step"]
    say_table(columns, [_row(session, names) for session in found], whole=["session"], optional=optional)
    if total > len(found):
        say(f"{len(found)} of {total:,} sessions; --limit shows more.")
    say_latest(chosen, first)


def transcript_text(transcript: dict[str, Any]) -> str:
    """Return a transcript as text that is safe to print on a terminal."""
    parts = [_message_text(message) for message in transcript["messages"]] or ["This session has no text."]
    if transcript["messages"] and not transcript["is_captured"]:
        parts.append("The text was not recorded: see recorder.capture_text and recorder.transcripts_per_step.")
    reason = "" if transcript["reason"] is None else f" ({transcript['reason']})"
    reward = "" if transcript["reward"] is None else f", reward {transcript['reward']:.4g}"
    return visible("\n\n".join([*parts, f"{transcript['status']}{reason}{reward}"]))


def _message_text(message: dict[str, Any]) -> str:
    seconds, tokens = message.get("duration_s"), message.get("tokens")
    facts = [
        "" if tokens is None else f"{tokens:,} tokens",
        _seconds(seconds),
        message.get("outcome", "") if message.get("outcome") != "ok" else "",
    ]
    tool = f" {message['tool']}({message.get('arguments') or ''})" if message.get("tool") else ""
    head = f"{message['role']}{tool}  {', '.join(filter(None, facts))}".rstrip()
    text, characters = message.get("text"), message.get("characters", 0)
    if text is None:
        return f"{head}\n[{characters:,} characters]" if characters else head
    more = characters - len(text)
    return "\n".join(filter(None, (head, text, f"[{more:,} more characters]" if more > 0 else "")))


def visible(text: str) -> str:
    r"""Return text with control characters replaced by visible symbols.

    >>> visible("a\x1b[31mb\u202ec")
    'a␛[31mb<U+202E>c'
    """
    return "".join(_sign(one) for one in text)


def _sign(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    number = ord(character)
    return chr(0x2400 + number) if number < 32 else f"<U+{number:04X}>"


def _phase_names(found: list[dict[str, Any]]) -> list[str]:
    """Return the phases that took the most time."""
    seconds: dict[str, float] = {}
    for session in found:
        for name, value in session.get("phase_seconds", {}).items():
            seconds[name] = seconds.get(name, 0.0) + value
    return sorted(seconds, key=lambda name: -seconds[name])[:_PHASES]


def _row(session: dict[str, Any], names: list[str]) -> list[str]:
    seconds = session.get("phase_seconds", {})
    reason = session.get("reason")
    reward = session.get("reward")
    return [
        session["session_id"],
        session.get("task_id") or "",
        session.get("status", PENDING) + ("" if reason is None else f" ({reason.rpartition('.')[2][:30]})"),
        str(session.get("step", "")),
        _seconds(session.get("total_s")),
        _seconds(session.get("queue_wait_s")),
        _seconds(session.get("runner_wait_s")),
        *(_seconds(seconds.get(name)) for name in names),
        _seconds(session.get("post_wait_s")),
        "" if reward is None else f"{reward:.4g}",
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds_text(value)
