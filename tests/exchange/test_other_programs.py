"""Files of other programs: TensorBoard's and W&B's by their own writers, prime-rl's rows and traces, verl's console."""

import json
import struct
import threading

import pytest

from rl_insight.exchange.importing import formats
from rl_insight.exchange.importing._framings import crc32c

SAMPLES = "SELECT name, step, value FROM samples ORDER BY name, step, value"


@pytest.fixture
def event_writer(tmp_path):
    tensorboard = pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    made = []

    def make(folder="logs/seed1"):
        writer = tensorboard.SummaryWriter(str(tmp_path / folder))
        made.append(writer)
        return writer

    yield make
    for writer in made:
        writer.close()


def event_file(tmp_path):
    (found,) = tmp_path.rglob("events.out.tfevents.*")
    return found


def test_event_files_give_scalars_with_their_steps_and_times(tmp_path, event_writer, import_path, fetch):
    writer = event_writer()
    writer.add_scalar("loss/train", 0.5, global_step=0, walltime=1_767_225_600.25)
    writer.add_scalar("loss/train", float("nan"), global_step=7, walltime=1_767_225_601.0)
    writer.add_text("note", "left out", 1)
    writer.add_histogram("weights", [1.0, 2.0, 3.0], 1)
    writer.add_scalar("grad norm", 2.0, global_step=2**40, walltime=1_767_225_602.0)
    writer.close()
    summary = import_path(tmp_path / "logs")
    assert (summary.records, summary.bad, summary.partial) == (3, 0, 0)
    assert (summary.formats, summary.runs) == ({"tensorboard": 1}, ["seed1"])
    rows = fetch("seed1", "SELECT name, step, value, time_ns FROM samples ORDER BY time_ns")
    assert [row[:2] for row in rows] == [("loss_train", 0), ("loss_train", 7), ("grad_norm", 2**40)]
    assert rows[0][2:] == (0.5, 1_767_225_600_250_000_000)
    assert rows[1][2] != rows[1][2]


def test_each_folder_of_event_files_is_a_run_of_that_name(tmp_path, event_writer, import_path):
    for folder in ("logs", "logs/ppo/seed1", "logs/ppo/seed2"):
        writer = event_writer(folder)
        writer.add_scalar("loss", 1.0, 0)
        writer.close()
    assert sorted(import_path(tmp_path / "logs").runs) == ["logs", "ppo-seed1", "ppo-seed2"]
    (alone,) = (tmp_path / "logs/ppo/seed2").iterdir()
    assert import_path(alone).runs == ["seed2"]


def test_a_growing_event_file_is_followed_and_never_doubled(tmp_path, event_writer, new_importer, import_path, fetch):
    writer = event_writer()
    for step in range(9):
        writer.add_scalar("loss", step, step)
    writer.close()
    source = event_file(tmp_path)
    whole = source.read_bytes()
    file = tmp_path / "growing" / source.name
    file.parent.mkdir()
    seen = 0
    for end in range(12, len(whole) // 2, 11):
        file.write_bytes(whole[:end])
        seen = import_path(file, run_id="r").records
        assert seen == 0 or fetch("r", "SELECT count(*) FROM samples") == [(seen,)]
    assert seen > 2
    importer = new_importer(run_id="r")
    stop = threading.Event()
    follower = threading.Thread(target=importer.follow, args=(file.parent, stop, 0.01))
    follower.start()
    with file.open("ab", buffering=0) as stream:
        for start in range(end, len(whole), 7):
            stream.write(whole[start : start + 7])
    stop.set()
    follower.join(30)
    assert fetch("r", SAMPLES) == [("loss", step, float(step)) for step in range(9)]
    assert import_path(file, run_id="r").new_batches == 0


def test_event_files_that_are_cut_or_damaged_keep_what_was_readable(tmp_path, event_writer, import_path, fetch):
    writer = event_writer()
    for step in range(10):
        writer.add_scalar("loss", step, step)
    writer.close()
    file = event_file(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    cut = import_path(file, run_id="cut")
    assert (cut.records, cut.bad, cut.partial) == (9, 0, 1)
    damaged = bytearray(whole)
    damaged[-10] ^= 0xFF
    file.write_bytes(damaged)
    found = import_path(file, run_id="damaged")
    assert (found.records, found.bad) == (9, 1)
    assert "checksum" in found.problems[0]
    (first_length,) = struct.unpack_from("<Q", whole)
    damaged = bytearray(whole)
    damaged[16 + first_length] ^= 0xFF
    file.write_bytes(damaged)
    lost = import_path(file, run_id="lost")
    assert (lost.records, lost.bad) == (0, 1)
    assert "The rest is skipped" in lost.problems[0]


def tensor_event(step, dtype, field, raw):
    """An event as TensorFlow writes it: the scalar is a tensor without dimensions."""
    tensor = bytes((0x08, dtype, field << 3 | 2, len(raw))) + raw
    value = bytes((0x0A, 4)) + b"loss" + bytes((0x42, len(tensor))) + tensor
    summary = bytes((0x0A, len(value))) + value
    event = b"\x09" + struct.pack("<d", 1_767_225_600.0) + bytes((0x10, step, 0x2A, len(summary))) + summary
    header = struct.pack("<Q", len(event))

    def masked(data):
        found = crc32c(data)
        return struct.pack("<I", (((found >> 15) | (found << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    return header + masked(header) + event + masked(event)


def test_scalars_that_are_tensors(tmp_path, import_path, fetch):
    file = tmp_path / "events.out.tfevents.1.host"
    file.write_bytes(
        tensor_event(1, 1, 4, struct.pack("<f", 0.5))
        + tensor_event(2, 1, 5, struct.pack("<f", 0.25))
        + tensor_event(3, 2, 6, struct.pack("<d", 0.125))
        + tensor_event(4, 7, 8, b"text")
        + tensor_event(5, 1, 4, struct.pack("<ff", 1.0, 2.0))
    )
    assert import_path(file, run_id="r").records == 3
    assert fetch("r", SAMPLES) == [("loss", 1, 0.5), ("loss", 2, 0.25), ("loss", 3, 0.125)]


@pytest.fixture(scope="module")
def wandb_run(tmp_path_factory):
    """The file of a run that real W&B wrote offline, long enough for records over several blocks."""
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        run = wandb.init(project="math", name="grpo seed 1", dir=str(folder), config={"lr": 1e-6})
        run.log({"loss": 0.5, "actor": {"lr": 1e-6}, "note": "text", "many": list(range(20_000))})
        run.log({"loss": float("nan"), "ok": True})
        run.log({"loss": 0.25}, step=9)
        run.finish(exit_code=3)
        wandb.teardown()  # ends the process that writes the file
    (file,) = folder.rglob("*.wandb")
    return run.id, file


HISTORY = "SELECT name, step, value FROM samples WHERE name NOT LIKE 'system%' ORDER BY step, name"


def test_offline_runs_of_wandb_keep_names_steps_and_how_they_ended(wandb_run, import_path, fetch, runs):
    run_id, file = wandb_run
    summary = import_path(file)
    ours = f"grpo seed 1-{run_id}"
    assert (summary.bad, summary.partial, summary.runs) == (0, 0, [ours])
    rows = fetch(ours, HISTORY)
    assert [row[:2] for row in rows] == [("actor_lr", 0), ("loss", 0), ("loss", 1), ("ok", 1), ("loss", 9)]
    assert (rows[0][2], rows[1][2], rows[3][2], rows[4][2]) == (1e-6, 0.5, 1.0, 0.25)
    assert rows[2][2] != rows[2][2]
    assert fetch(ours, "SELECT name, attributes FROM events") == [("exit", '{"exit_code":3}')]
    assert fetch(ours, "SELECT project, experiment_name, role FROM processes") == [("math", "grpo seed 1", "wandb")]
    assert import_path(file.parent).new_batches == 0


def test_an_offline_run_that_is_cut_anywhere_is_completed_later(wandb_run, tmp_path, import_path, fetch):
    _, source = wandb_run
    whole = source.read_bytes()
    file = tmp_path / source.name
    for end in (len(whole) // 3, len(whole) - 200, len(whole) - 3):
        file.write_bytes(whole[:end])
        assert import_path(file, run_id="r").partial == 1
    file.write_bytes(whole)
    last = import_path(file, run_id="r")
    assert (last.bad, last.partial) == (0, 0)
    assert len(fetch("r", HISTORY)) == 5
    assert fetch("r", "SELECT count(*) FROM events") == [(1,)]


def test_a_damaged_block_of_an_offline_run_costs_that_block(wandb_run, tmp_path, import_path, fetch):
    _, source = wandb_run
    damaged = bytearray(source.read_bytes())
    damaged[40_000] ^= 0xFF
    file = tmp_path / source.name
    file.write_bytes(damaged)
    summary = import_path(file, run_id="r")
    assert summary.bad == 1
    assert "checksum" in summary.problems[0]
    assert [row[1] for row in fetch("r", HISTORY)][-3:] == [1, 1, 9]


def prime_row(step, **values):
    return {"step": step, "time": 1_767_225_600.0 + (step or 0)} | values


def test_rows_of_prime_rl_keep_steps_and_producers(tmp_path, samples, import_path, fetch):
    file = tmp_path / "run7" / "metrics.jsonl"
    file.parent.mkdir()
    rows = [
        prime_row(3, **{"time/step": 4.5, "reward/all/mean": 0.5}, producer="orchestrator"),
        prime_row(None, **{"inference/running": 8}, producer="orchestrator"),
        prime_row(3, loss=0.25, note="text", producer="trainer"),
        {"step": 4, "time": "late", "loss": 1.0},
    ]
    file.write_bytes(samples.lines(rows))
    summary = import_path(file.parent)
    assert (summary.records, summary.bad, summary.formats, summary.runs) == (3, 1, {"prime-rl": 1}, ["run7"])
    assert fetch("run7", "SELECT name, step, value, role FROM samples ORDER BY name") == [
        ("inference_running", None, 8.0, "orchestrator"),
        ("loss", 3, 0.25, "trainer"),
        ("reward_all_mean", 3, 0.5, "orchestrator"),
        ("time_step", 3, 4.5, "orchestrator"),
    ]


def test_rows_of_prime_rl_are_followed(tmp_path, samples, new_importer, import_path, fetch):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(samples.lines([prime_row(0, loss=1.0)]))
    importer = new_importer(run_id="r")
    stop = threading.Event()
    follower = threading.Thread(target=importer.follow, args=(file, stop, 0.01))
    follower.start()
    for step in range(1, 6):
        with file.open("ab") as stream:
            line = samples.lines([prime_row(step, loss=1.0)])
            stream.write(line[:10])
            stream.flush()
            stream.write(line[10:])
    stop.set()
    follower.join(30)
    assert [row[1] for row in fetch("r", SAMPLES)] == list(range(6))
    assert import_path(file, run_id="r").bad == 0
    assert len(fetch("r", SAMPLES)) == 6


def prime_episode(number, **fields):
    start = 1_767_225_600.0 + number

    def part(begin, end):
        return {"start": start + begin, "end": start + end}

    trace = {
        "id": f"t{number}",
        "timing": {"start": start, "setup": part(0, 1), "agent": part(1, 4), "scoring": part(4, 4.5), "finalize": {}},
        "rewards": {"correct": {"score": 1.0, "weight": 0.5}, "format": {"score": 0.25, "weight": None}},
        "info": {"kind": "train", "dispatch": {"step": 6, "time": start}, "arrival": {"step": 7, "time": start + 5}},
        "nodes": [{"message": {"role": "assistant", "content": "4"}}],
    }
    known = {"id": f"e{number}", "group": {"id": "g1"}, "traces": [trace], "errors": [], "ok": True}
    return known | {"num_output_tokens": 64} | fields


PRIME_SESSIONS = (
    "SELECT session_id, group_id, status, reason, step, reward, tokens, generate_s, total_s FROM sessions ORDER BY 1"
)


def test_traces_of_prime_rl_are_sessions(tmp_path, samples, import_path, fetch):
    folder = tmp_path / "traces"
    folder.mkdir()
    broken = prime_episode(1, ok=False, errors=[{"type": "SandboxError"}], num_output_tokens=None)
    dispatched = {"id": "e9", "traces": [], "errors": [{"type": "Cancelled"}]}
    (folder / "00000.jsonl").write_bytes(samples.lines([prime_episode(0), broken, dispatched]))
    (folder / "index.jsonl").write_bytes(samples.lines([{"line": 1, "id": "e0", "kind": "train", "chunk": 0}]))
    summary = import_path(folder, run_id="r")
    assert (summary.records, summary.bad, summary.formats) == (2, 1, {"prime-rl-traces": 1})
    assert fetch("r", PRIME_SESSIONS) == [
        ("t0", "g1", "accepted", None, 7, 0.75, 64, 3.0, 4.5),
        ("t1", "g1", "failed", "SandboxError", 7, 0.75, None, 3.0, 4.5),
    ]
    spans = fetch("r", "SELECT name, duration_ns FROM spans WHERE session_id = 't0' ORDER BY start_ns, name")
    assert spans == [("session", 4_500_000_000), ("setup", 10**9), ("generate", 3 * 10**9), ("reward", 5 * 10**8)]


def test_an_episode_longer_than_the_format_sample_is_read(tmp_path, samples, import_path, fetch):
    episode = prime_episode(0)
    episode["traces"][0]["nodes"][0]["token_ids"] = list(range(50_000))
    file = tmp_path / "00000.jsonl"
    file.write_bytes(samples.lines([episode, prime_episode(1)]))
    assert file.read_bytes().index(b"\n") > 2**16
    assert import_path(file, run_id="r").formats == {"prime-rl-traces": 1}
    assert [row[0] for row in fetch("r", PRIME_SESSIONS)] == ["t0", "t1"]


def test_a_sealed_trace_of_prime_rl_is_the_one_that_was_followed(tmp_path, samples, import_path, fetch):
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    plain, sealed = tmp_path / "traces" / "00000.jsonl", tmp_path / "traces" / "00000.jsonl.zst"
    plain.parent.mkdir()
    lines = [samples.lines([prime_episode(number)]) for number in range(4)]
    plain.write_bytes(b"".join(lines[:2]))
    assert import_path(plain.parent, run_id="r").new_batches == 1
    frames = [zstandard.ZstdCompressor().compress(b"".join(part)) for part in (lines[:3], lines[3:])]
    seek_table = b"\x5e\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"seek"
    sealed.write_bytes(b"".join([*frames, seek_table]))
    plain.unlink()
    import_path(sealed.parent, run_id="r")
    assert [row[0] for row in fetch("r", PRIME_SESSIONS)] == ["t0", "t1", "t2", "t3"]
    assert fetch("r", "SELECT count(*) FROM spans WHERE session_id = 't0'") == [(4,)]
    sealed.write_bytes(sealed.read_bytes()[:50])
    assert import_path(sealed.parent, run_id="r").new_batches == 0


VERL_LOG = (
    b"ray init kwargs: {'num_cpus': None}\n"
    b"\x1b[36m(TaskRunner pid=811)\x1b[0m 2026-01-01 00:00:00,250 INFO worker: ready\n"
    b"\x1b[36m(TaskRunner pid=811)\x1b[0m step:0 - val-core/openai/gsm8k/reward/mean@1:0.25\n"
    b"(TaskRunner pid=811, ip=10.0.0.7) step:1 - actor/pg_loss:np.float64(-0.5) - timing_s/step:10.5 - "
    b"perf/total_num_tokens:2048\n"
    b"Training Progress:  50%|#####     | 1/2\n"
    b"step:2 - actor/pg_loss:nan - critic/score/mean:1e-3 - timing_s/step:2.0 [repeated 3x across cluster]\n"
)


def test_a_value_whose_step_is_too_large_is_kept_without_it(tmp_path, import_path, fetch):
    file = tmp_path / "train.log"
    file.write_bytes(VERL_LOG + b"step:%d - actor/kl_loss:0.25\n" % (2**57))
    import_path(file)
    assert fetch("train", "SELECT step, value FROM samples WHERE name = 'actor_kl_loss'") == [(None, 0.25)]


def test_the_console_of_verl_gives_steps_and_values(tmp_path, import_path, fetch):
    file = tmp_path / "train.log"
    file.write_bytes(VERL_LOG + b"step:3 - actor/pg_loss:0.")
    summary = import_path(file)
    assert (summary.records, summary.bad, summary.partial) == (3, 0, 1)
    assert (summary.formats, summary.runs) == ({"verl-log": 1}, ["train"])
    rows = fetch("train", SAMPLES)
    assert [row[:2] for row in rows] == [
        ("actor_pg_loss", 1),
        ("actor_pg_loss", 2),
        ("critic_score_mean", 2),
        ("perf_total_num_tokens", 1),
        ("timing_s_step", 1),
        ("timing_s_step", 2),
        ("val_core_openai_gsm8k_reward_mean_1", 0),
    ]
    assert rows[0][2] == -0.5
    begin = 1_767_225_600_250_000_000
    assert fetch("train", "SELECT step, start_ns, duration_ns FROM spans ORDER BY step") == [
        (1, begin, 10_500_000_000),
        (2, begin + 10_500_000_000, 2_000_000_000),
    ]
    file.write_bytes(VERL_LOG + b"step:3 - actor/pg_loss:0.75\n")
    import_path(file)
    assert fetch("train", "SELECT value FROM samples WHERE step = 3") == [(0.75,)]
    assert len(fetch("train", SAMPLES)) == 8


def test_a_log_without_times_begins_at_the_origin(tmp_path, import_path, fetch, samples):
    file = tmp_path / "train.log"
    file.write_bytes(b"step:1 - timing_s/step:1.5\nstep:2 - timing_s/step:1.5\n")
    import_path(file, run_id="r", origin_ns=samples.begin_ns)
    rows = fetch("r", "SELECT start_ns FROM spans ORDER BY step")
    assert rows == [(samples.begin_ns,), (samples.begin_ns + 1_500_000_000,)]


def test_steps_of_torch_s_profiler_are_steps(tmp_path, import_path, fetch):
    event = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#12", "pid": 1, "tid": 1, "ts": 1.0, "dur": 9.0}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [event, event | {"name": "aten::mm"}]}))
    import_path(file, run_id="r")
    assert fetch("r", "SELECT name, step FROM spans ORDER BY name") == [("ProfilerStep#12", 12), ("aten::mm", None)]


@pytest.mark.parametrize(("given", "step"), [(7, 7), ("7", 7), (7.0, 7), (7.5, None), ("late", None), (2**56, None)])
def test_the_step_of_a_trace_is_read_in_any_form(given, step, tmp_path, import_path, fetch):
    event = {"ph": "X", "name": "update", "pid": 1, "tid": 1, "ts": 1.0, "dur": 9.0, "args": {"step": given}}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [event]}))
    import_path(file, run_id="r")
    assert fetch("r", "SELECT step FROM spans") == [(step,)]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b":W&B\xe1\xbe\x00", "wandb"),
        (b'{"step":1,"time":1767225600.5,"loss":0.5}\n', "prime-rl"),
        (b'{"step":1,"time":"noon"}\n', None),
        (b'{"id":"e1","traces":[],"errors":[],"ok":true}\n', "prime-rl-traces"),
        (b'{"version":1,"trace_id":"t1","info":{},"branches":[]}\n', None),
        (b"(TaskRunner pid=7) config:\n", "verl-log"),
        (b"a training step:1 - not at the beginning\n", None),
    ],
)
def test_formats_are_detected_from_content(head, kind):
    assert formats.detect(head) == kind
