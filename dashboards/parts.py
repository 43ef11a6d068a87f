"""Shared parts of the dashboards: variables, selectors, and panels with common settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, tempo, timeseries
from grafana_foundation_sdk.builders import statetimeline as state_timeline
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import tempo as tempo_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

NAMESPACE = "rl_insight_monitor_"
RUN = 'project=~"$project",experiment_name=~"$experiment",run_id=~"$run"'
"""Selects the runs of the variables."""
PROCESS = f'{RUN},role=~"$role",rank=~"$rank"'
"""Selects the processes of the variables, for metrics with labels for processes."""
TRACE = (
    'resource.project=~"$project" && resource.experiment_name=~"$experiment" && resource.run_id=~"$run" '
    '&& resource.role=~"$role"'
)
"""The same for spans."""

NEWEST = " with (most_recent=true)"
"""Ends a search for the newest traces; without it Tempo returns any."""

PROMETHEUS = models.DataSourceRef(type_val="prometheus", uid="prometheus")
TEMPO = models.DataSourceRef(type_val="tempo", uid="tempo")
TAG = "rl-insight"
ALL = models.VariableOption(selected=True, text="All", value="$__all")

Query = tuple[str, str]
"""An expression and its legend."""


def metric(name: str, selector: str = RUN) -> str:
    """Return a metric of ours with a selector.

    >>> metric("steps_total", 'run_id="r"')
    'rl_insight_monitor_steps_total{run_id="r"}'
    """
    return f"{NAMESPACE}{name}{{{selector}}}"


def any_metric(names: str, selector: str = RUN) -> str:
    """Return whichever of several metrics exists; `names` is a regular expression of names without the namespace."""
    return f'{{__name__=~"{NAMESPACE}({names})",{selector}}}'


def quantiles(buckets: str | Sequence[str], by: str = "") -> list[Query]:
    """Return the quantiles of a histogram, given its buckets; of several histograms, the first that exists is used."""
    grouping = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    choices = [buckets] if isinstance(buckets, str) else buckets
    rates = " or ".join(f"sum by ({grouping}) (rate({bucket}[$__rate_interval]))" for bucket in choices)
    return [
        (f"histogram_quantile({q}, {rates})", f"{legend}p{name}")
        for q, name in ((0.5, "50"), (0.95, "95"), (0.99, "99"))
    ]


def new_dashboard(name: str, title: str, description: str, *, refresh: str = "5s") -> dashboard.Dashboard:
    """Return an empty dashboard with our variables and links."""
    made = (
        dashboard.Dashboard(f"RL-Insight / {title}")
        .uid(f"rl-insight-{name}")
        .description(description)
        .tags([TAG])
        .refresh(refresh)
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(
            dashboard.DashboardLink("RL-Insight")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
    )
    seen = f"{NAMESPACE}process_last_seen_timestamp_seconds"
    run = 'project=~"$project",experiment_name=~"$experiment"'
    made.with_variable(choice("project", "Project", f"label_values({seen}, project)"))
    made.with_variable(
        choice("experiment", "Experiment", f'label_values({seen}{{project=~"$project"}}, experiment_name)')
    )
    made.with_variable(choice("run", "Run", f"label_values({seen}{{{run}}}, run_id)"))
    made.with_variable(choice("role", "Role", f"label_values({seen}{{{RUN}}}, role)"))
    made.with_variable(choice("rank", "Rank", f'label_values({seen}{{{RUN},role=~"$role"}}, rank)'))
    return made


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a variable whose values come from Prometheus; all of them are selected at first."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(PROMETHEUS)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(ALL)
    )


def _targets(queries: Sequence[Query], *, exemplars: bool = False) -> list[Any]:
    return [
        prometheus.Dataquery()
        .expr(expression)
        .legend_format(legend)
        .ref_id(chr(ord("A") + position))
        .exemplar(exemplars)
        .range()
        for position, (expression, legend) in enumerate(queries)
    ]


def graph(
    title: str,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    percent: bool = False,
    exemplars: bool = False,
    description: str = "",
) -> timeseries.Panel:
    """Return a graph over time."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .targets(_targets(queries, exemplars=exemplars))
        .unit(unit)
        .span(width)
        .height(height)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(common_models.VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )
    if percent:
        panel.min(0).max(1)
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return panel


def number(
    title: str,
    expression: str,
    *,
    unit: str = "short",
    width: int = 4,
    warn: float | None = None,
    alarm: float | None = None,
    description: str = "",
) -> stat.Panel:
    """Return one large number; yellow from `warn` on, red from `alarm` on."""
    steps = [models.Threshold(color="green", value=None)]
    steps += [models.Threshold(color="yellow", value=warn)] if warn is not None else []
    steps += [models.Threshold(color="red", value=alarm)] if alarm is not None else []
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .targets(_targets([(expression, "")]))
        .unit(unit)
        .span(width)
        .height(4)
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )


def durations_over_time(title: str, bucket: str, *, width: int = 12, height: int = 9) -> heatmap.Panel:
    """Return a heat map of a histogram, given its buckets; its points link to traces."""
    target = (
        prometheus.Dataquery()
        .expr(f"sum by (le) (increase({bucket}[$__rate_interval]))")
        .format(PromQueryFormat.HEATMAP)
        .legend_format("{{le}}")
        .ref_id("A")
        .exemplar(True)
        .range()
    )
    return (
        heatmap.Panel()
        .title(title)
        .datasource(PROMETHEUS)
        .with_target(target)
        .span(width)
        .height(height)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .filter_values(heatmap.FilterValueRange().le(1e-9))
    )


def listing(
    title: str,
    columns: Sequence[tuple[str, str, str]],
    *,
    width: int = 24,
    height: int = 12,
    hidden: Sequence[str] = (),
    description: str = "",
) -> table.Panel:
    """Return a table with one row for each label set; columns are (title, expression, unit)."""
    panel = table.Panel().title(title).description(description).datasource(PROMETHEUS).span(width).height(height)
    names = {}
    for position, (name, expression, unit) in enumerate(columns):
        reference = chr(ord("A") + position)
        names[f"Value #{reference}"] = name
        panel.with_target(
            prometheus.Dataquery().expr(expression).ref_id(reference).instant().format(PromQueryFormat.TABLE)
        )
        panel.override_by_name(name, [models.DynamicConfigValue(id_val="unit", value=unit)])
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    excluded = dict.fromkeys(["Time", "__name__", *hidden], True)
    organize = {"excludeByName": excluded, "renameByName": names}
    return panel.with_transformation(models.DataTransformerConfig(id_val="organize", options=organize))


def spans_target(query: str, limit: int, *, spans_each: int = 100) -> tempo.TempoQuery:
    """Return a search in Tempo for spans."""
    return (
        tempo.TempoQuery()
        .query(query + NEWEST)
        .query_type("traceql")
        .table_type(tempo_models.SearchTableType.SPANS)
        .limit(limit)
        .spss(spans_each)
        .ref_id("A")
        .datasource(TEMPO)
    )


def spans_table(title: str, query: str, *, limit: int = 100, height: int = 10, description: str = "") -> table.Panel:
    """Return a table of spans; each links to its trace."""
    return (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(TEMPO)
        .with_target(spans_target(query, limit))
        .span(24)
        .height(height)
    )


_COLORS = (
    (r"idle|wait|queue|pause|pending", "#5a5f6b"),
    (r"rollout|generat|decode|sample", "#3274d9"),
    (r"prefill|prompt", "#8ab8ff"),
    (r"reward|score|judge|verif|grade", "#e0b400"),
    (r"tool|env|sandbox|action|step_env", "#fa6400"),
    (r"log_?prob|ref|advantage|value|critic", "#8f3bb8"),
    (r"update|train|actor|optim|backward|forward|loss", "#37872d"),
    (r"sync|weight|broadcast|refit|publish", "#b877d9"),
    (r"save|load|checkpoint|init|resume", "#806eb7"),
    (r"eval|valid|test", "#00868b"),
    (r"error|fail|abort|cancel|timeout", "#c4162a"),
)
"""Patterns of common state names, and the color of each kind; the first pattern that matches a name wins."""
_OTHER_COLORS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#ca95e5", "#56a64b", "#ff7383", "#1fa3a3", "#a16d28")


def state_colors() -> list[models.RegexMap]:
    """Return value mappings that give each state one color on all lanes: by its kind, else by its first letter."""
    patterns = [(f"/{pattern}/i", color) for pattern, color in _COLORS]
    letters = "abcdefghijklmnopqrstuvwxyz"
    size = -(-len(letters) // len(_OTHER_COLORS))
    for position, color in enumerate(_OTHER_COLORS):
        patterns.append((f"/^[{letters[position * size : (position + 1) * size]}]/i", color))
    patterns.append(("/./", "#8e8e8e"))
    return [
        models.RegexMap(
            models.DashboardRegexMapOptions(
                pattern=pattern, result=models.ValueMappingResult(color=color, index=position)
            )
        )
        for position, (pattern, color) in enumerate(patterns)
    ]


def interval_steps(lane: str, state: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the transformations from spans to the intervals of each lane, with their true ends.

    Versions of Grafana call a span's fields `time` and `duration`, or show them as `Start time` and `Duration`. A
    state timeline takes a second field of times for the ends.
    """

    def calculated(alias: str, mode: str, **options: Any) -> tuple[str, dict[str, Any]]:
        return "calculateField", {"alias": alias, "mode": mode, "replaceFields": False, **options}

    times = ["Start time", "End time"]
    return [
        ("organize", {"renameByName": {"time": "Start time", "duration": "Duration"}, "excludeByName": {}}),
        calculated("Milliseconds", "binary", binary={"left": "Duration", "operator": "/", "right": "1000000"}),
        calculated("End time", "reduceRow", reduce={"reducer": "sum", "include": ["Start time", "Milliseconds"]}),
        ("convertFieldType", {"conversions": [{"targetField": name, "destinationType": "time"} for name in times]}),
        ("filterFieldsByName", {"include": {"names": [*times, lane, *state]}}),
        ("sortBy", {"sort": [{"field": "Start time", "desc": False}]}),
        ("partitionByValues", {"fields": [lane], "keepFields": False, "naming": {"asLabels": True}}),
    ]


def lanes(
    title: str, query: str, *, lane: str, state: Sequence[str], height: int = 20, description: str = ""
) -> state_timeline.Panel:
    """Return what each lane does over time, from spans.

    Args:
        title: of the panel.
        query: the search.
        lane: the field of a span that holds its lane.
        state: the names of the field that holds what the lane does, as different versions of Grafana have it.
        height: of the panel.
        description: of the panel.
    """
    panel = (
        state_timeline.Panel()
        .title(title)
        .description(description)
        .datasource(TEMPO)
        .with_target(spans_target(query, 2000))
        .mappings(list(state_colors()))
        .span(24)
        .height(height)
        .merge_values(True)
        .show_value(common_models.VisibilityMode.AUTO)
        .row_height(0.9)
        .per_page(40)
        .display_name(f"${{__field.labels.{lane}}}")
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color("#8e8e8e"))
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    for name, options in interval_steps(lane, state):
        panel.with_transformation(models.DataTransformerConfig(id_val=name, options=options))
    return panel
