"""run_classifier.py from the command line, against the original's results."""

import json
import pathlib

import numpy as np
import pytest
from conftest import GOLDEN, run_script

COMMANDS = {
    command["name"]: command
    for command in json.loads((GOLDEN / "e2e" / "commands.json").read_text())
    if command["script"] == "run_classifier.py"
}


def flags_of(command, output_dir):
    flags = {}
    for name, value in command["flags"].items():
        value = value.replace("golden/", f"{GOLDEN}/")
        flags[name] = value.replace("OUT", str(output_dir))
    flags["output_dir"] = str(output_dir)
    return [f"--{name}={value}" for name, value in flags.items()]


def read_results(path):
    lines = pathlib.Path(path).read_text().splitlines()
    return {
        key: float(value)
        for key, value in (line.split(" = ") for line in lines)
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_old_command_gives_old_results(name, tmp_path):
    command = COMMANDS[name]
    run_script("run_classifier.py", *flags_of(command, tmp_path))
    expected = dict(
        line.split(" = ") for line in command["eval_results.txt"].splitlines()
    )
    results = read_results(tmp_path / "eval_results.txt")
    for key, value in expected.items():
        assert results[key] == pytest.approx(float(value), abs=1e-5), key
    expected = command.get("test_results.tsv")
    if expected is None:
        return
    rows = [line.split("\t") for line in expected.splitlines()]
    ours = (tmp_path / "test_results.tsv").read_text().splitlines()
    np.testing.assert_allclose(
        np.array([line.split("\t") for line in ours], float),
        np.array(rows, float),
        atol=1e-5,
    )
