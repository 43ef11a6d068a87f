"""`rl-insight sessions`: the sessions of a run, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rl_insight.cli.completion import complete_words
from rl_insight.cli.console import say, say_json, say_table, working
from rl_insight.cli.hotspots import duration_text, say_latest
from rl_insight.cli.opening import AsJson, DataDir, Run, ScopeOption, asked_run, scope_of, scope_text
from rl_insight.errors import ConfigError
from rl_insight.sessions.model import FIELDS, OBJECTS, PENDING, STATUSES

_PHASES = 4
_SORTABLE = tuple(name for name in FIELDS if name not in OBJECTS)


def sessions(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files to look at instead of a run.")] = None,
    run: Run = None,
    scope: ScopeOption = "latest",
    status: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only of this status; may be repeated: {', '.join(STATUSES)}.",
            autocompletion=complete_words(lambda: STATUSES),
        ),
    ] = None,
    order: Annotated[
        str,
        typer.Option(help="A field to sort by, the largest first.", autocompletion=complete_words(lambda: _SORTABLE)),
    ] = "total_s",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 30,
    transcript: Annotated[
        str | None, typer.Option(metavar="SESSION", help="Show one session as a conversation, where text was captured.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions and where their time went, the longest first; or the transcript of one."""
    if transcript is not None:
        with asked_run(data_dir, run, paths or ()) as source, working("asking for the transcript"):
            told = source.ask("sessions/transcript", session_id=transcript)
        say_json(told) if as_json else say(transcript_text(told))
        return
    chosen = scope_of(scope)
    _check(status or [], order)
    with asked_run(data_dir, run, paths or ()) as source, working("asking for sessions"):
        first = last = chosen.step
        if chosen.last_steps is not None:
            newest = source.ask("sessions", order="step", limit=1, detail="brief")["sessions"]
            first = newest[0].get("step") if newest else None
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
    columns = ["session", "task", "status", "step", "total", "queue", "runner", *names, "post", "reward"]
    optional = ["task", "runner", "queue", "post", *names[::-1], "reward", "step"]
    say_table(columns, [_row(session, names) for session in found], whole=["session"], optional=optional)
    if total > len(found):
        say(f"{len(found)} of {total:,} sessions; --limit shows more.")
    say_latest(chosen, first)


def transcript_text(told: dict[str, Any]) -> str:
    """Return a transcript for a terminal, which what is in it cannot control."""
    parts = [_message_text(message) for message in told["messages"]] or ["There are no texts in this session."]
    if told["messages"] and not told["is_captured"]:
        parts.append("The texts were not recorded: see recorder.capture_text and recorder.transcripts_per_step.")
    reason = "" if told["reason"] is None else f" ({told['reason']})"
    reward = "" if told["reward"] is None else f", reward {told['reward']:.4g}"
    return visible("\n\n".join([*parts, f"{told['status']}{reason}{reward}"]))


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
    r"""Return text with a sign for every character that a terminal would obey.

    >>> visible("a\x1b[31mb\u202ec")
    'a␛[31mb<U+202E>c'
    """
    return "".join(_sign(one) for one in text)


def _sign(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    number = ord(character)
    return chr(0x2400 + number) if number < 32 else f"<U+{number:04X}>"


def _check(status: list[str], order: str) -> None:
    unknown = [one for one in status if one not in STATUSES]
    if unknown:
        raise ConfigError(f"status {unknown[0]!r} is unknown: it must be one of {', '.join(STATUSES)}.")
    if order not in _SORTABLE:
        raise ConfigError(f"cannot sort by {order!r}: choose one of {', '.join(_SORTABLE)}.")


def _phase_names(found: list[dict[str, Any]]) -> list[str]:
    """Return the phases that took most of the time."""
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
    return "" if value is None else duration_text(value * 1e9)
