"""The producer: the calls that training code makes. Each one checks its arguments and appends to a buffer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from itertools import islice
from typing import Any, TypeVar, overload

from rl_insight.recorder.context import ContextScope, current_step, get_span, get_step, integer_of, step_of
from rl_insight.recorder.decorators import NoState, SpanMaker, traced
from rl_insight.recorder.lanes import State
from rl_insight.recorder.losses import MAX_NAME, short_text, shown
from rl_insight.recorder.propagation import Attachment, inject
from rl_insight.recorder.recorder import EVENT, LOG, CounterEvent, GaugeEvent, HistogramEvent, Recorder
from rl_insight.recorder.run_config import KEYS_PER_EVENT, MAX_KEYS, flat_keys
from rl_insight.recorder.session_producer import SessionProducer
from rl_insight.recorder.spans import NO_SPAN, NoSpan, Span
from rl_insight.schema.names import CONFIG_EVENT, DURATION_SEGMENT, STATE_SEGMENT
from rl_insight.schema.tables import LAST_TIME_NS

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
LabelMaker = Callable[[Any], Mapping[str, Any]]


class Producer(SessionProducer):
    """Records metrics, states, spans, sessions, events and logs; nearly free while `_recorder` is None.

    No method blocks on I/O, and none raises because of monitoring.
    """

    # -- metrics

    def metric_count(self, /, name: str, amount: float = 1.0, documentation: str = "", **labels: Any) -> None:
        """Add to a counter.

        >>> metric_count("rollouts_total", worker="0")
        >>> metric_count("tokens", 512, documentation="Tokens generated", model="policy")

        Args:
            name: Exposed as ``<namespace>_<name>``, ending in ``_total``.
            amount: Negative amounts are rejected and counted, with one warning.
            documentation: A one-sentence description.
            labels: Values become strings.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        if amount.__class__ is not float and amount.__class__ is not int:
            number = _number(recorder, name, amount)
            if number is None:
                return
            amount = number
        step = get_step()
        metrics = recorder.metrics
        metrics.append(CounterEvent(name, amount, labels, documentation, recorder.step if step is None else step))
        if len(metrics) > recorder.watermark:
            recorder.relieve(metrics, "metrics", recorder.max_metrics)

    def metric_gauge(self, /, name: str, value: float, documentation: str = "", **labels: Any) -> None:
        """Set a gauge. Every value is kept with its timestamp, including NaN and infinities.

        >>> metric_gauge("reward_mean", 0.73, worker="0")
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        if value.__class__ is not float and value.__class__ is not int:
            number = _number(recorder, name, value)
            if number is None:
                return
            value = number
        step = get_step()
        metrics = recorder.metrics
        metrics.append(
            GaugeEvent(name, value, labels, documentation, recorder.step if step is None else step, recorder.now())
        )
        if len(metrics) > recorder.watermark:
            recorder.relieve(metrics, "metrics", recorder.max_metrics)

    def metric_histogram(self, /, name: str, value: float, documentation: str = "", **labels: Any) -> None:
        """Add a value to a distribution. Quantiles are accurate for any unit, without configuring buckets.

        >>> metric_histogram("step_latency_ms", 42.5, worker="0")
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        if value.__class__ is not float and value.__class__ is not int:
            number = _number(recorder, name, value)
            if number is None:
                return
            value = number
        step = get_step()
        metrics = recorder.metrics
        metrics.append(HistogramEvent(name, value, labels, documentation, recorder.step if step is None else step))
        if len(metrics) > recorder.watermark:
            recorder.relieve(metrics, "metrics", recorder.max_metrics)

    def _record_gauges(self, values: Iterable[tuple[str, float, str]], labels: dict[str, Any]) -> None:
        """Set several gauges (name, value, documentation) with the same labels and timestamp; see `metric_gauge`."""
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        step = get_step()
        if step is None:
            step = recorder.step
        now = recorder.now()
        metrics = recorder.metrics
        metrics.extend(
            [GaugeEvent(name, value, labels, documentation, step, now) for name, value, documentation in values]
        )
        if len(metrics) > recorder.watermark:
            recorder.relieve(metrics, "metrics", recorder.max_metrics)
            while len(metrics) > recorder.max_metrics:  # each call makes room for one
                recorder.relieve(metrics, "metrics", recorder.max_metrics)

    metric_value = metric_gauge
    metric_distribution = metric_histogram

    # -- states and spans

    def trace_state(self, /, state_name: str, state_lane_id: str | None = None, **labels: Any) -> State | NoState:
        """Show a state on a lane while the `with` block, or each call of the decorated function, runs.

        A lane shows one state at a time. Entering the same state again joins the running interval; a different state on
        a busy lane becomes a child of the running one.

        >>> with trace_state("rollout", state_lane_id="trainer_0", step=10):
        ...     pass
        >>> @trace_state("update", "trainer_0")
        ... def update(batch): ...

        Args:
            state_name: The state of the lane.
            state_lane_id: The lane; that of the process if omitted.
            labels: Attributes of the interval.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return NoState(self, "trace_state", (state_name, state_lane_id), labels)
        if state_lane_id is not None and (state_lane_id.__class__ is not str or len(state_lane_id) > MAX_NAME):
            state_lane_id = short_text(state_lane_id)
        return State(recorder, state_name, labels, STATE_SEGMENT, state_lane_id, self)

    def trace_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        start_time_ns: int | None = None,
        end_time_ns: int | None = None,
        lane: str | None = None,
    ) -> Span | NoSpan:
        """Record an interval: a `with` block or, if both times are given, one that has already ended.

        >>> with trace_span("generate", {"tokens": 512}) as span:
        ...     span.set_attribute("finish_reason", "stop")
        >>> _ = trace_span(name="prefill", start_time_ns=1_000, end_time_ns=2_000, attributes={"batch": 8})

        Args:
            name: The operation.
            attributes: JSON-compatible values; others are converted with `str()`.
            start_time_ns: Wall-clock nanoseconds (`time.time_ns()`) of a finished span.
            end_time_ns: Its end.
            lane: The timeline lane; defaults to the attribute `state_lane_id`, or the lane of the parent.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return NO_SPAN
        try:
            own = {**attributes} if attributes else None
        except Exception:  # noqa: BLE001  # not a mapping, or a user's mapping that raises
            own = None
            recorder.losses.refuse(
                "attributes",
                "not_a_mapping",
                f"the attributes of trace_span({short_text(name)!r}) were dropped: they are not a mapping.",
                topic=short_text(name),
            )
        if lane is None and own is not None and "state_lane_id" in own:
            lane = own["state_lane_id"]
        if lane is not None and lane.__class__ is not str:
            lane = short_text(lane)
        span = Span(recorder, name, own, DURATION_SEGMENT, lane)
        if start_time_ns is None and end_time_ns is None:
            return span
        return self._record_finished(recorder, span, _time(start_time_ns), _time(end_time_ns))

    def _record_finished(
        self, recorder: Recorder, span: Span, start_ns: int | None, end_ns: int | None
    ) -> Span | NoSpan:
        if start_ns is None or end_ns is None:
            name = short_text(span.name)
            recorder.losses.refuse(
                "spans",
                "bad_time",
                f"trace_span({name!r}) was refused: start_time_ns and end_time_ns must both be integers.",
                topic=name,
            )
            return NO_SPAN
        span.begin(get_span())
        span.start = start_ns - recorder.clock.offset_ns
        span.end = max(end_ns - recorder.clock.offset_ns, span.start) or 1  # 0 means that it has not ended
        return span

    @overload
    def trace_op(self, name: FunctionT) -> FunctionT: ...
    @overload
    def trace_op(
        self, name: str | None = None, extra_labels: LabelMaker | None = None, **static_labels: Any
    ) -> Callable[[FunctionT], FunctionT]: ...
    def trace_op(self, name: Any = None, extra_labels: LabelMaker | None = None, **static_labels: Any) -> Any:
        """Record a span for each call of a function, method, coroutine, generator or async generator.

        A generator's span covers its iteration. An exception closes the span as `error` (a cancellation as
        `cancelled`) and propagates unchanged.

        >>> @trace_op("update_model", stage="optimizer")
        ... def update(batch): ...
        >>> @trace_op(extra_labels=lambda self: {"worker": self.rank})
        ... def generate(self, prompts): ...

        Args:
            name: The name of the span; the function's `__qualname__` if omitted.
            extra_labels: Called with the first positional argument, if any; returns more labels.
            static_labels: Labels of every call.
        """
        if callable(name) or isinstance(name, (staticmethod, classmethod)):
            return self.trace_op()(name)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"trace_op takes a name, not {type(name).__name__}. Write @trace_op('update').")
        if extra_labels is not None and not callable(extra_labels):
            raise TypeError("trace_op's extra_labels must be callable: it is called with the first argument.")

        def decorate(function: Any) -> Any:
            if isinstance(function, (staticmethod, classmethod)):
                return type(function)(decorate(function.__func__))
            if isinstance(function, type):
                raise TypeError(
                    f"trace_op decorates functions, not the class {function.__name__}: decorate its methods."
                )
            if not callable(function):
                raise TypeError(f"trace_op decorates functions, not {type(function).__name__}.")
            return traced(function, self._span_maker(name or _qualified_name(function), extra_labels, static_labels))

        return decorate

    def _span_maker(self, name: str, extra_labels: LabelMaker | None, static_labels: dict[str, Any]) -> SpanMaker:
        def make_span(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Span | NoSpan:
            recorder = self._recorder
            if recorder is None and (recorder := self._join()) is None:
                return NO_SPAN
            if extra_labels is None or not args:
                return Span(recorder, name, static_labels)
            try:
                labels = {**static_labels, **extra_labels(args[0])}
            except Exception as error:  # noqa: BLE001  # a user's callable may raise anything
                recorder.losses.refuse(
                    "labels",
                    "extra_labels_failed",
                    f"extra_labels of {name!r} raised {type(error).__name__} ({short_text(error)}): left out.",
                    topic=name,
                    category=RuntimeWarning,
                )
                labels = static_labels
            return Span(recorder, name, labels)

        return make_span

    # -- instants

    def trace_event(self, name: str, /, **attributes: Any) -> None:
        """Record an instant on the current span, session and lane.

        >>> trace_event("weights_received", version=7)
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        recorder.record_point(EVENT, 0, name, attributes)

    def alert(self, title: str, text: str = "", level: str = "warning") -> None:
        """Raise a finding of the run, and notify the receivers of the server's `alerts`.

        >>> alert("reward service is down", "no answer for a minute", "critical")

        Args:
            title: One sentence.
            text: Details.
            level: `info`, `warning` or `critical`.
        """
        self.trace_event("alert", title=title, text=text, level=level)

    def log(self, level: int | str, message: str, /, **fields: Any) -> None:
        """Record a log line with the current span, session, step and lane.

        >>> log("warning", "reward is NaN", sample=17)

        Args:
            level: A number or a name, as in the `logging` module.
            message: The line.
            fields: Structured data of the line.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        recorder.record_point(LOG, _level(level), message, fields)

    # -- the run

    def record_config(self, config: Any, /) -> None:
        """Record the configuration of the run, which the page shows and compares with those of other runs.

        >>> record_config({"algorithm": "grpo", "actor": {"lr": 1e-6}})

        Calls are merged; the latest value of a key wins. Values of keys that look like secrets are redacted. At most
        4,000 keys are recorded, and the first 2,000 characters of a string.

        Args:
            config: A mapping, a dataclass instance, an OmegaConf `DictConfig` or a namespace.
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        try:
            keys = list(islice(flat_keys(config), MAX_KEYS + 1))
        except Exception as error:  # noqa: BLE001  # properties and interpolations of users may raise anything
            recorder.losses.refuse(
                "configs", "unreadable", f"record_config() was refused: {type(error).__name__}: {error}"
            )
            return
        if len(keys) > MAX_KEYS:
            recorder.losses.refuse("configs", "too_many", f"record_config() kept only the first {MAX_KEYS} keys.")
        for first in range(0, min(len(keys), MAX_KEYS), KEYS_PER_EVENT):
            part = dict(keys[first : min(first + KEYS_PER_EVENT, MAX_KEYS)])
            recorder.record_point(EVENT, 0, CONFIG_EVENT, part)

    # -- context

    def set_step(self, step: int) -> None:
        """Set the training step of everything this process records from now on.

        >>> set_step(7)
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return
        number = step_of(step)
        if number is None:
            recorder.losses.refuse(
                "steps", "bad_step", f"set_step({shown(step)}) was refused: a step must be an integer below 2**56."
            )
            return
        recorder.step = number
        if recorder.step_marks is not None:
            recorder.mark_step(number)

    def step(self, number: int) -> ContextScope[None] | NoSpan:
        """Set the training step of everything recorded inside a `with` block, including in tasks it starts.

        >>> with step(7):
        ...     metric_gauge("reward_mean", 0.73)
        """
        recorder = self._recorder
        if recorder is None and (recorder := self._join()) is None:
            return NO_SPAN
        valid = step_of(number)
        if valid is None:
            recorder.losses.refuse(
                "steps", "bad_step", f"step({shown(number)}) was refused: a step must be an integer below 2**56."
            )
            return NO_SPAN
        if recorder.step_marks is not None:
            recorder.mark_scope(valid)
        return ContextScope({current_step: valid}, None)

    def inject(self, carrier: MutableMapping[str, str] | None = None) -> MutableMapping[str, str]:
        """Write the current span, step, session and task into a carrier, as W3C `traceparent` and `baggage`.

        >>> headers = inject({"content-type": "application/json"})
        """
        recorder = self._recorder
        try:
            if recorder is None:
                return inject(carrier)
            return inject(
                carrier,
                default_step=recorder.step,
                takes_text=None if recorder.texts is None else recorder.takes_text,
            )
        except Exception:  # noqa: BLE001  # a read-only carrier must not stop training
            if recorder is not None:
                recorder.losses.refuse(
                    "contexts", "bad_carrier", f"cannot write headers to a {type(carrier).__name__}."
                )
            return {} if carrier is None else carrier

    def attach(self, carrier: Mapping[str, str]) -> Attachment:
        """Continue the context of a carrier, from now on or for a `with` block.

        >>> with attach({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}):
        ...     with trace_span("handle"):
        ...         pass
        """
        attachment = Attachment(carrier)
        texts = None if self._recorder is None else self._recorder.texts
        if texts is not None and attachment.session_id is not None and attachment.takes_text is not None:
            texts.decide(attachment.session_id, is_taken=attachment.takes_text)
        return attachment


def _number(recorder: Recorder, name: Any, value: Any) -> float | None:
    """Convert a value (NumPy and Torch scalars, Fractions) to a float; None if that is impossible."""
    try:
        return float(value)
    except Exception:  # noqa: BLE001  # a user's __float__ may raise anything
        recorder.losses.refuse(
            "metrics",
            "not_a_number",
            f"metric {short_text(name)!r} got a value of type {type(value).__name__}, not a number.",
            topic=short_text(name),
        )
        return None


def _time(value: Any) -> int | None:
    """Return a wall-clock time in nanoseconds; None if the value is not one."""
    if value.__class__ is int and 0 <= value < LAST_TIME_NS:  # nearly all calls end here
        return value
    number = integer_of(value)
    return number if number is not None and 0 <= number < LAST_TIME_NS else None


def _level(level: int | str) -> int:
    if isinstance(level, str):
        number = logging.getLevelName(level.upper())
        return number if isinstance(number, int) else logging.INFO
    return level if isinstance(level, int) else logging.INFO


def _qualified_name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
