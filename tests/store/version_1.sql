-- A run file of store version 1, as its program made it.
CREATE TABLE meta (key VARCHAR, value VARCHAR);
CREATE TABLE processes (
    process INTEGER, process_id VARCHAR, run_id VARCHAR, host VARCHAR, pid BIGINT, project VARCHAR,
    experiment_name VARCHAR, role VARCHAR, rank BIGINT, labels VARCHAR, started_ns BIGINT, heartbeat_s DOUBLE,
    first_seen_ns BIGINT, last_seen_ns BIGINT, last_sent_ns BIGINT, final BOOLEAN,
    clock_offset_ns BIGINT, delay_ns BIGINT, delay_hits INTEGER
);
CREATE TABLE ledger (process INTEGER, low_water BIGINT, above VARCHAR);
CREATE TABLE losses (process INTEGER, kind VARCHAR, reason VARCHAR, count BIGINT);
CREATE TABLE lanes (lane_id INTEGER, process INTEGER, lane VARCHAR);
CREATE TABLE names (name_id INTEGER, name VARCHAR);
CREATE TABLE span_data (
    span_id UBIGINT, trace_high UBIGINT, trace_low UBIGINT, parent_id UBIGINT,
    lane_id INTEGER, name_id INTEGER, depth SMALLINT, start_ns BIGINT, duration_ns BIGINT,
    segment VARCHAR, status VARCHAR, error VARCHAR, step BIGINT, session_id VARCHAR, attributes VARCHAR
);
CREATE TABLE open_span_data (
    span_id UBIGINT, trace_high UBIGINT, trace_low UBIGINT, parent_id UBIGINT,
    lane_id INTEGER, name_id INTEGER, depth SMALLINT, start_ns BIGINT, duration_ns BIGINT,
    segment VARCHAR, status VARCHAR, error VARCHAR, step BIGINT, session_id VARCHAR, attributes VARCHAR
);
CREATE TABLE long_spans (
    span_id UBIGINT, lane_id INTEGER, name_id INTEGER, depth SMALLINT, start_ns BIGINT, duration_ns BIGINT,
    status VARCHAR
);
CREATE TABLE rollup_1s (
    lane_id INTEGER, depth SMALLINT, start_ns BIGINT, end_ns BIGINT, spans UBIGINT, busy_ns DOUBLE,
    errors UBIGINT, longest_ns BIGINT, longest_id UBIGINT, longest_name_id INTEGER
);
CREATE TABLE rollup_10s (
    lane_id INTEGER, depth SMALLINT, start_ns BIGINT, end_ns BIGINT, spans UBIGINT, busy_ns DOUBLE,
    errors UBIGINT, longest_ns BIGINT, longest_id UBIGINT, longest_name_id INTEGER
);
CREATE TABLE rollup_100s (
    lane_id INTEGER, depth SMALLINT, start_ns BIGINT, end_ns BIGINT, spans UBIGINT, busy_ns DOUBLE,
    errors UBIGINT, longest_ns BIGINT, longest_id UBIGINT, longest_name_id INTEGER
);
CREATE TABLE rollup_1000s (
    lane_id INTEGER, depth SMALLINT, start_ns BIGINT, end_ns BIGINT, spans UBIGINT, busy_ns DOUBLE,
    errors UBIGINT, longest_ns BIGINT, longest_id UBIGINT, longest_name_id INTEGER
);
CREATE TABLE event_data (time_ns BIGINT, name VARCHAR, 
    span_id UBIGINT, trace_high UBIGINT, trace_low UBIGINT, lane_id INTEGER,
    step BIGINT, session_id VARCHAR, attributes VARCHAR
);
CREATE TABLE log_data (time_ns BIGINT, level BIGINT, logger VARCHAR, message VARCHAR, 
    span_id UBIGINT, trace_high UBIGINT, trace_low UBIGINT, lane_id INTEGER,
    step BIGINT, session_id VARCHAR, attributes VARCHAR
);
CREATE TABLE series (
    series_id INTEGER, process INTEGER, name VARCHAR, kind VARCHAR, documentation VARCHAR, labels VARCHAR
);
CREATE TABLE sample_data (series_id INTEGER, time_ns BIGINT, value DOUBLE, step BIGINT);
CREATE TABLE histogram_data (
    series_id INTEGER, time_ns BIGINT, step BIGINT, count UBIGINT, sum DOUBLE, min DOUBLE, max DOUBLE,
    codes INTEGER[], counts UBIGINT[]
);
CREATE TABLE sessions (
    session_id VARCHAR, task_id VARCHAR, process_id VARCHAR, rank BIGINT, role VARCHAR, status VARCHAR,
    reason VARCHAR, step BIGINT, model_version VARCHAR, reward DOUBLE, tokens BIGINT,
    submit_ts DOUBLE, enqueue_ts DOUBLE, wait_return_ts DOUBLE, finalized_ts DOUBLE,
    queue_wait_s DOUBLE, runner_wait_s DOUBLE, execution_s DOUBLE, post_wait_s DOUBLE, total_s DOUBLE,
    generate_s DOUBLE, reward_s DOUBLE, toolcall_s DOUBLE,
    rollout_stats VARCHAR, phase_seconds VARCHAR, phases VARCHAR, counters VARCHAR, snapshot_ns BIGINT
);
CREATE TABLE findings (
    finding_id VARCHAR, kind VARCHAR, severity VARCHAR, title VARCHAR, start_ns BIGINT, end_ns BIGINT,
    step BIGINT, lanes VARCHAR, evidence VARCHAR, updated_ns BIGINT
);
CREATE VIEW spans AS
SELECT
    printf('%016x', span_id) AS span_id,
    printf('%016x%016x', trace_high, trace_low) AS trace_id,
    CASE WHEN parent_id = 0 THEN NULL ELSE printf('%016x', parent_id) END AS parent_id,
    name, start_ns + clock_offset_ns AS start_ns,
    CASE WHEN duration_ns < 0 THEN NULL ELSE duration_ns END AS duration_ns,
    segment, status, error, step, session_id, attributes,
    process_id, role, rank, host, lane, depth
FROM span_data JOIN lanes USING (lane_id) JOIN names USING (name_id) JOIN processes USING (process);
CREATE VIEW open_spans AS
SELECT
    printf('%016x', span_id) AS span_id,
    printf('%016x%016x', trace_high, trace_low) AS trace_id,
    CASE WHEN parent_id = 0 THEN NULL ELSE printf('%016x', parent_id) END AS parent_id,
    name, start_ns + clock_offset_ns AS start_ns,
    CASE WHEN duration_ns < 0 THEN NULL ELSE duration_ns END AS duration_ns,
    segment, status, error, step, session_id, attributes,
    process_id, role, rank, host, lane, depth
FROM open_span_data JOIN lanes USING (lane_id) JOIN names USING (name_id) JOIN processes USING (process);
CREATE VIEW events AS
SELECT time_ns + clock_offset_ns AS time_ns, name,
    CASE WHEN span_id = 0 THEN NULL ELSE printf('%016x', span_id) END AS span_id,
    step, session_id, attributes, process_id, role, rank, lane
FROM event_data JOIN lanes USING (lane_id) JOIN processes USING (process);
CREATE VIEW logs AS
SELECT time_ns + clock_offset_ns AS time_ns, level, logger, message,
    CASE WHEN span_id = 0 THEN NULL ELSE printf('%016x', span_id) END AS span_id,
    step, session_id, attributes, process_id, role, rank, lane
FROM log_data JOIN lanes USING (lane_id) JOIN processes USING (process);
CREATE VIEW samples AS
SELECT name, kind, series.labels AS labels, time_ns + clock_offset_ns AS time_ns, value, step,
    process_id, role, rank
FROM sample_data JOIN series USING (series_id) JOIN processes USING (process);
CREATE VIEW histograms AS
SELECT name, series.labels AS labels, time_ns + clock_offset_ns AS time_ns, step, count, sum, min, max,
    codes, counts, process_id, role, rank
FROM histogram_data JOIN series USING (series_id) JOIN processes USING (process);
INSERT INTO meta VALUES ('rolled_up_rows', '0');
INSERT INTO meta VALUES ('schema_version', '1');
