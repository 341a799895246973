"""Shared flags: who owns them, what is checked, how errors end."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from absl import flags
from conftest import ROOT

import common_flags
import directories


def run_code(code, *arguments, **env):
    """Runs a script made of `code` in its own process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",  # code without a file counts as a stranger's
        env=os.environ | {"PYTHONPATH": str(ROOT), **env},
    )


SCRIPT = """
    import sys
    from absl import flags, logging
    import common_flags
    common_flags.define_all_finetuning_flags()
    def main(_):
        {body}
    common_flags.run(main)
    """


def run_main(body, *arguments):
    code = textwrap.dedent(SCRIPT).format(body=body)
    return run_code(code, "--output_dir=unused", *arguments)


def test_help_holds_the_shared_flags():
    result = run_main("pass", "--help")
    for name in ("init_checkpoint", "warmup_proportion", "num_seeds"):
        assert f"--{name}:" in result.stdout
    assert "tensorflow" not in result.stderr


def test_defaults_are_the_original_ones():
    body = (
        "print({n: f.value for n, f in common_flags.FLAGS._flags().items()"
        " if n in dir(common_flags.FLAGS)})"
    )
    result = run_main(body)
    assert result.returncode == 0, result.stderr
    found = eval(result.stdout)
    expected = {
        "do_lower_case": True,
        "max_seq_length": 128,
        "do_train": False,
        "do_eval": False,
        "do_predict": False,
        "train_batch_size": 32,
        "eval_batch_size": 8,
        "predict_batch_size": 8,
        "learning_rate": 5e-5,
        "num_train_epochs": 3.0,
        "warmup_proportion": 0.1,
        "save_checkpoints_steps": 1000,
        "iterations_per_loop": 1000,
        "use_tpu": False,
        "num_tpu_cores": 8,
        "master": None,
    }
    assert expected == {name: found[name] for name in expected}


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--do_lower_case=false", False),
        ("--do_lower_case=False", False),
        ("--nodo_lower_case", False),
        ("--do_lower_case", True),
        ("--do_lower_case=1", True),
    ],
)
def test_a_boolean_can_be_switched_off(flag, value):
    body = "print(common_flags.given('do_lower_case'))"
    assert run_main(body, flag).stdout == f"{value}\n"
    assert run_main(body).stdout == "None\n"


@pytest.mark.parametrize("rest", [["False"], ["--do_train", "no"], ["x", "y"]])
def test_what_is_no_flag_is_refused(rest):
    result = run_main("pass", *rest)
    assert result.returncode == 1
    assert "is not a flag" in result.stderr and "--noflag" in result.stderr


def test_our_errors_are_one_sentence_and_others_keep_their_trace():
    result = run_main("common_flags.check_phases('do_train')")
    assert result.returncode == 1
    assert result.stderr == (
        "-c: Nothing to do: set at least one of --do_train.\n"
    )
    result = run_main("open('no such file')")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    result = run_main("raise ValueError('of a stranger')")
    assert result.returncode == 1 and "Traceback" in result.stderr


def test_log_shows_our_lines_and_strangers_warnings(tmp_path):
    body = """
    import logging as python
    logging.info("stranger's note")
    logging.warning("stranger's warning")
    code = compile("def note(log): log.info('our note')",
        common_flags.HERE / "training.py", "exec")
    exec(code, globals())
    note(logging)
    note(python.getLogger("checkpoints"))
    """.replace("\n    ", "\n        ")
    result = run_main(body)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("our note") == 2
    assert "stranger's warning" in result.stderr
    assert "stranger's note" not in result.stderr
    quiet = run_main(body, "--verbosity=-1")
    assert "our note" not in quiet.stderr


# ------------------------------------------------------------- in this process


@pytest.fixture
def values(monkeypatch):
    """Flags of its own for a test: call with arguments."""
    found = flags.FlagValues()

    def define(*arguments, **defaults):
        for name, (kind, default) in defaults.items():
            getattr(flags, f"DEFINE_{kind}")(
                name, default, "help", flag_values=found
            )
        found(["script", *arguments])
        monkeypatch.setattr(common_flags, "FLAGS", found)
        return found

    return define


def finetuning_flags(values, output_dir, *arguments):
    texts = {name: ("string", None) for name in ("best_metric",)}
    switches = ("do_train", "do_eval", "do_predict", "do_export", "report")
    return values(
        f"--output_dir={output_dir}",
        *arguments,
        output_dir=("string", None),
        original_embedding_clip=("bool", False),
        gradient_accumulation_steps=("integer", 1),
        num_train_epochs=("float", 3.0),
        layer_decay=("float", 1.0),
        num_seeds=("integer", 1),
        eval_steps=("integer", None),
        early_stopping_patience=("integer", None),
        **texts,
        **{name: ("bool", False) for name in switches},
    )


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([], "Nothing to do"),
        (["--do_train", "--num_train_epochs=0"], "--num_train_epochs=0"),
        (["--do_train", "--layer_decay=0"], "--layer_decay=0"),
        (["--do_train", "--num_seeds=2"], "--num_seeds"),
        (["--do_train", "--report"], "--report"),
        (["--do_train", "--eval_steps=5"], "--eval_steps"),
        (["--do_eval", "--best_metric=eval_f1"], "--best_metric"),
        (
            [
                "--do_train",
                "--original_embedding_clip",
                "--gradient_accumulation_steps=2",
            ],
            "--original_embedding_clip",
        ),
    ],
)
def test_flags_that_contradict_each_other(arguments, told, values, tmp_path):
    finetuning_flags(values, tmp_path, *arguments)
    with pytest.raises(ValueError, match=told):
        common_flags.check_finetuning()


def test_flags_that_agree(values, tmp_path):
    directory = tmp_path / "new" / "one"
    finetuning_flags(
        values, directory, "--do_train", "--do_eval", "--eval_steps=5"
    )
    common_flags.check_finetuning()
    assert not directory.parent.exists()


def test_output_directory(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert directories.find_output_parent(tmp_path / "a" / "b") == str(tmp_path)
    with pytest.raises(OSError, match="file is no directory"):
        directories.find_output_parent(tmp_path / "file" / "x")
    with pytest.raises(OSError, match="cannot be written"):
        directories.check_output_dir(tmp_path / "file")
    directories.check_output_dir(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OSError, match="no permission for"):
        directories.find_output_parent(tmp_path / "c")


def test_recall_takes_what_was_not_given(values, tmp_path):
    run = {"flags": {"length": 64, "name": "old", "secret": "x"}}
    run["task"] = "ner"
    (tmp_path / "run.json").write_text(json.dumps(run))
    found = values(
        "--name=new",
        length=("integer", 128),
        name=("string", None),
        secret=("string", "mine"),
        init_checkpoint=("string", str(tmp_path / "model.ckpt-3")),
        do_train=("bool", True),
    )
    common_flags.recall(tmp_path, "squad", ("length", "name"))
    assert (found.length, found.name) == (128, "new")
    elsewhere = tmp_path / "elsewhere"
    common_flags.recall(elsewhere, "ner", ("length", "name"))
    assert found.length == 128  # trained anew
    found.do_train = False
    common_flags.recall(elsewhere, "ner", ("length", "name"))
    assert found.length == 64
    found["length"].unparse()
    common_flags.recall(tmp_path, "ner", ("length", "name"))
    assert (found.length, found.name, found.secret) == (64, "new", "mine")
    assert common_flags.given("length") == 64
    assert common_flags.given("secret") is None
    common_flags.recall(tmp_path / "nowhere", "ner", ("length",))
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(ValueError, match="no JSON object"):
        common_flags.recall(tmp_path, "ner", ("length",))
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="run.json:1: not valid JSON"):
        common_flags.recall(tmp_path, "ner", ("length",))


def test_unused_flags_warn_once(values):
    names = {name: ("string", None) for name in common_flags.UNUSED_FLAGS}
    warnings = []
    values("--tpu_zone=a", "--master=b", **names)
    common_flags.warn_of_unused_flags(warnings.append)
    assert warnings == ["--master, --tpu_zone has no effect any more."]


def test_a_text_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file.txt"
    common_flags.write_whole(path, "a\n\u2028b")
    assert path.read_bytes() == "a\n\u2028b".encode()
    with pytest.raises(UnicodeEncodeError):
        common_flags.write_whole(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "a\n\u2028b"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_filter_of_the_log():
    def record(path, level):
        return logging.LogRecord("x", level, str(path), 1, "m", (), None)

    ours, theirs = ROOT / "training.py", "/elsewhere/training.py"
    assert common_flags._is_worth_showing(record(ours, logging.INFO))
    assert common_flags._is_worth_showing(record(theirs, logging.WARNING))
    assert not common_flags._is_worth_showing(record(theirs, logging.INFO))


HOLD = """
    import os, sys, time
    import directories
    directories.hold_directory(sys.argv[1])
    if sys.argv[2] == "fork" and not os.fork():
        print("child", flush=True)
        time.sleep(60)
    print(os.getpid(), flush=True)
    sys.stdin.read()
    """


@pytest.mark.parametrize("kind", ["alone", "fork"])
def test_a_directory_is_held_until_its_process_is_killed(tmp_path, kind):
    code = textwrap.dedent(HOLD)
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        for _ in range(2 if kind == "fork" else 1):
            assert holder.stdout.readline()
        with pytest.raises(OSError, match="another run is writing to .*; wait"):
            directories.hold_directory(tmp_path)
        holder.kill()
        holder.wait()
        directories.hold_directory(tmp_path)  # a forked child still lives
        directories.hold_directory(tmp_path)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate()
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]
    assert run_code(HOLD, str(tmp_path), "alone").returncode == 1


def test_a_directory_without_locks_is_only_warned_of(
    tmp_path, monkeypatch, caplog
):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(directories.fcntl, "flock", refuse)
    directories.hold_directory(tmp_path)
    assert "cannot be locked (Operation not supported)" in caplog.text
