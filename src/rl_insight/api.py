"""The public functions: the bound methods of one default monitor."""

from rl_insight.monitor import default_monitor

init = default_monitor.init
finish = default_monitor.finish
close = default_monitor.close
flush = default_monitor.flush
get_status = default_monitor.get_status

metric_count = default_monitor.metric_count
metric_gauge = default_monitor.metric_gauge
metric_histogram = default_monitor.metric_histogram
metric_value = default_monitor.metric_value
metric_distribution = default_monitor.metric_distribution

trace_state = default_monitor.trace_state
trace_op = default_monitor.trace_op
trace_span = default_monitor.trace_span
trace_event = default_monitor.trace_event
log = default_monitor.log

session = default_monitor.session
phase = default_monitor.phase
task = default_monitor.task
current_session = default_monitor.current_session

set_step = default_monitor.set_step
step = default_monitor.step
inject = default_monitor.inject
attach = default_monitor.attach
