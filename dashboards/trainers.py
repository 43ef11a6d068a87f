"""Dashboards about training: what verl's trainer logs, and the trajectories of agent loops."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.parts import (
    NAMESPACE,
    RUN,
    TRACE,
    Query,
    any_metric,
    choice,
    graph,
    metric,
    new_dashboard,
    number,
    spans_table,
)

_AGENT_RUN = 'project=~"$project",experiment_name=~"$experiment"'
_AGENT_STEP = f'{_AGENT_RUN},global_steps=~"$step"'
_AGENT_LANE = 'span.state_lane_id=~"experiment=.*/sample=$sample/session=$session/traj=$trajectory"'


def spread(name: str) -> list[Query]:
    """Return the lowest, mean and highest value of what verl logs as `name/min`, `name/mean` and `name/max`."""
    return [(metric(f"{name}_{end}"), f"{{{{run_id}}}} {end}") for end in ("min", "mean", "max")]


def lines(names: dict[str, str]) -> list[Query]:
    """Return one line per metric; `names` maps metrics to legends."""
    return [(metric(name), f"{{{{run_id}}}} {title}".strip()) for name, title in names.items()]


def verl() -> dashboard.Dashboard:
    """Return the dashboard of verl's trainer."""
    made = new_dashboard("verl", "verl trainer", "What verl's trainer logs at each step: logger rl_insight.")
    phases = f'{{__name__=~"{NAMESPACE}timing_s_.+",__name__!~".*_(step|min|max|mean)",{RUN}}}'
    for panel in (
        number("Training step", f"max({metric('training_global_step')})", width=6),
        number("Step time", f"max({metric('timing_s_step')})", unit="s", width=6),
        number("Throughput now", f"max({metric('perf_throughput')})", unit="tokens/s", width=6,
               description="Tokens per second per GPU."),
        number("Score now", f"avg({metric('critic_score_mean')})", width=6),
        graph("Score", spread("critic_score")),
        graph("Reward", spread("critic_rewards")),
        graph("Step phases", [(phases, "{{__name__}}")], unit="s", stacked=True),
        graph("Throughput", lines({"perf_throughput": ""}), unit="tokens/s"),
        graph("Model FLOPs utilization", [(any_metric("perf_mfu_.+"), "{{run_id}} {{__name__}}")], unit="percentunit"),
        graph("Time per token", [(any_metric("timing_per_token_ms_.+"), "{{__name__}}")], unit="ms"),
        graph("Policy loss", lines({"actor_pg_loss": "policy", "actor_kl_loss": "KL", "critic_vf_loss": "value"})),
        graph("Entropy", lines({"actor_entropy": ""})),
        graph("Gradient norm", lines({"actor_grad_norm": "actor", "critic_grad_norm": "critic"})),
        graph("KL and clipping", lines({"actor_ppo_kl": "KL", "actor_pg_clipfrac": "clipped"})),
        graph("Advantages", spread("critic_advantages")),
        graph("Learning rate", lines({"actor_lr": "actor", "critic_lr": "critic"})),
        graph("Response length", spread("response_length")),
        graph("Truncated responses", lines({"response_length_clip_ratio": ""}), unit="percentunit"),
        graph("Prompt length", spread("prompt_length")),
        graph("Turns", spread("num_turns")),
        graph("Memory", lines({"perf_max_memory_allocated_gb": "allocated", "perf_max_memory_reserved_gb": "reserved",
                               "perf_cpu_memory_used_gb": "host"}), unit="decgbytes"),
        graph("Sequence balance", [(any_metric("global_seqlen_.+"), "{{__name__}}")]),
        graph("Rollout vs. training probabilities",
              [(any_metric("training_rollout_probs_diff_(mean|max|std)"), "{{run_id}} {{__name__}}")]),
        graph("Staleness", [(any_metric("training_off_policy_trajectory_staleness.*|fully_async_.*stale.*"),
                             "{{run_id}} {{__name__}}")]),
        graph("Validation", [(any_metric("val_.+"), "{{__name__}}")]),
    ):  # fmt: skip
        made.with_panel(panel)
    return made


def agent_loops() -> dashboard.Dashboard:
    """Return the dashboard of trajectories: experiment, sample, session, trajectory, turn."""
    made = new_dashboard(
        "agent-loops",
        "Agent-loop trajectories",
        "From an experiment to its samples, their sessions, the trajectories of a session and their turns.",
        refresh="10s",
    )
    info = f"{NAMESPACE}agent_loop_"
    made.with_variable(choice("step", "Step", f"label_values({info}run_info{{{_AGENT_RUN}}}, global_steps)"))
    made.with_variable(choice("sample", "Sample", f"label_values({info}sample_info{{{_AGENT_STEP}}}, sample)"))
    chosen = f'{_AGENT_STEP},sample=~"$sample"'
    made.with_variable(choice("session", "Session", f"label_values({info}session_info{{{chosen}}}, session)"))
    chosen = f'{chosen},session=~"$session"'
    made.with_variable(choice("trajectory", "Trajectory", f"label_values({info}traj_info{{{chosen}}}, traj)"))

    def counted(kind: str, selector: str) -> str:
        return f"count({info}{kind}_info{{{selector}}}) or vector(0)"

    turns = f'{{span.monitor.trace_source="gateway" && {_AGENT_LANE} && {TRACE}}}'
    tasks = f'{{span.monitor.trace_source="task" && {TRACE}}}'
    whole = f'{{span.monitor.trace_source="session" && {TRACE}}}'
    identity = "span.sample, span.session, span.traj"
    for panel in (
        number("Experiments", counted("run", _AGENT_STEP), width=6),
        number("Samples", counted("sample", _AGENT_STEP), width=6),
        number("Sessions", counted("session", f'{_AGENT_STEP},sample=~"$sample"'), width=6),
        number("Trajectories", counted("traj", chosen), width=6),
        spans_table("Sessions as spans", f"{whole} | select({identity}, span.status, span.num_trajectories)"),
        spans_table("Attempts", f"{tasks} | select({identity}, span.task_name, span.status, span.reward, span.error)"),
        spans_table(
            "Turns",
            f"{turns} | select({identity}, span.turn, span.type, span.tools, span.prompt_tokens, "
            "span.completion_tokens, span.finish_reason, span.status)",
            height=16,
        ),
    ):
        made.with_panel(panel)
    return made
