"""The shape of the project: levels, sizes, docstrings, words, files."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT

LEVELS = {
    0: {
        "checkpoint_names",
        "chinese_data",
        "choice_data",
        "classification_data",
        "common_flags",
        "directories",
        "feature_vectors",
        "labelling_data",
        "masking",
        "metrics",
        "own_data",
        "pretraining_data",
        "pretraining_data_beam",
        "pretraining_shards",
        "pretraining_writer",
        "processors",
        "reading_comprehension",
        "records",
        "squad_answers",
        "squad_data",
        "squad_metrics",
        "tasks",
        "text_files",
        "text_pairs",
        "tokenization",
        "vocabulary_extension",
    },
    1: {
        "choice_ops",
        "dynamic_masking",
        "heads",
        "input_pipeline",
        "labelling_heads",
        "labelling_ops",
        "modeling",
        "ops",
        "optimization",
        "record_pipeline",
        "sparse_attention",
        "tokenization_ops",
    },
    2: {
        "checkpoints",
        "classifier_report",
        "distribution",
        "exporting",
        "feature_extraction",
        "finetuning",
        "mask_filling",
        "pretraining",
        "reports",
        "runs",
        "output_directory",
        "squad_report",
        "squad_serving",
        "training",
    },
}
# Parts of a program that only the named module may import, when it is run.
PARTS_OF = {"vocabulary": "tokenization"}
LEVEL_OF = {name: level for level, names in LEVELS.items() for name in names}
SCRIPT = re.compile(r"(run|create|extract|convert|export)_\w+|serve")
HEAVY = {"tensorflow", "keras", "tensorflow_text", "tf_keras", "official"}

# Written in pieces, so that this file does not hold them.
FORBIDDEN = [
    "TO" + "DO",
    "FIX" + "ME",
    "no" + "qa",
    "NotImplemented" + "Error",
    "type: " + "ignore",
    "x" + "fail",
]
# A path of somebody's machine, but not an address and not a relative path.
MACHINE_PATH = re.compile(
    r"(?<![\w.:/-])/(?:" + "tmp|root|home|work" + r")/[A-Za-z0-9]"
)
# Places that a reader of the project cannot look up.
ELSEWHERE = re.compile(r"\bshar" + r"ed/|\bissue #?\d|\bgoals\.md|\bspec/")


def tracked(*patterns):
    """The files of the repository that match, as paths that still exist."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def modules():
    """The Python files of the root directory."""
    return sorted(ROOT.glob("*.py"))


def parsed(path):
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def is_script(name):
    """Whether a module of the root is a script by its name."""
    return name not in LEVEL_OF and SCRIPT.fullmatch(name) is not None


def imported(nodes):
    """Top names of the modules that the import statements among nodes name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def names(paths):
    """Short names for the parameters of a test."""
    return [path.name for path in paths]


@pytest.mark.parametrize("path", modules(), ids=names(modules()))
def test_imports_point_down(path):
    name = path.stem
    known = name in LEVEL_OF or name in PARTS_OF or is_script(name)
    assert known, (
        f"{path.name} has no level: add a library to LEVELS here, or "
        "name a script by a verb"
    )
    level = LEVEL_OF.get(name, 3)
    ours = {other.stem for other in modules()}
    for target in set(imported(ast.walk(parsed(path)))) & ours:
        if target in PARTS_OF:
            assert PARTS_OF[target] == name, f"{name} imports {target}"
            continue
        assert not is_script(target), f"{name} imports the script {target}"
        assert LEVEL_OF[target] <= level, f"{name} imports {target}, above it"


def test_import_cycles_do_not_exist():
    ours = {path.stem: path for path in modules()}
    arrows = {
        name: set(imported(parsed(path).body)) & set(ours)
        for name, path in ours.items()
    }
    done = set()

    def visit(name, above):
        assert name not in above, f"cycle: {' -> '.join([*above, name])}"
        if name not in done:
            for target in arrows[name]:
                visit(target, [*above, name])
            done.add(name)

    for name in ours:
        visit(name, [])


def light():
    """Modules that must import without TensorFlow: level 0 and scripts."""
    return [p for p in modules() if LEVEL_OF.get(p.stem, 3) in (0, 3)]


@pytest.mark.parametrize("path", light(), ids=names(light()))
def test_no_tensorflow_at_the_head_of_level_0_and_scripts(path):
    heavy_ours = {n for n, level in LEVEL_OF.items() if level in (1, 2)}
    found = set(imported(parsed(path).body)) & (HEAVY | heavy_ours)
    assert not found, f"{path.name} imports {sorted(found)} at its head"


def test_level_0_and_scripts_import_no_tensorflow_when_run():
    stems = [path.stem for path in light()]
    code = (
        "import importlib, sys\n"
        f"for name in {stems!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        # An optional part whose own requirements are not installed here.
        "        assert error.name == 'apache_beam', error\n"
        f"    bad = sorted({HEAVY!r} & set(sys.modules))\n"
        "    assert not bad, f'{name} loads {bad}'\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def functions(tree):
    """Every function of a syntax tree, methods and inner ones included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def python_files():
    """Every Python file but the tests, whose tables may be long."""
    return [p for p in tracked("*.py") if p.parent.name != "tests"]


def test_functions_have_at_most_60_lines_and_modules_700():
    long = []
    for path in python_files():
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > 700:
            long.append(f"{path.name}: {lines} lines")
        for function in functions(parsed(path)):
            size = function.end_lineno - function.lineno + 1
            if size > 60:
                long.append(f"{path.name}: {function.name} has {size} lines")
    assert not long, "\n".join(long)


def public_definitions(tree):
    """Public functions and classes of a module, with methods of the latter."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, kinds[:2]):
                        yield f"{node.name}.{inner.name}", inner


def needs_docstring(name, node):
    """Whether a definition must say what it gives."""
    method = name.rpartition(".")[2]
    if isinstance(node, ast.ClassDef):
        return True
    # Keras calls these; what they do is the business of the class docstring.
    inherited = {"build", "get_config", "from_config", "compute_output_shape"}
    if "." in name and (method.startswith("_") or method in inherited):
        return False
    setter = any(
        isinstance(d, ast.Attribute) and d.attr == "setter"
        for d in node.decorator_list
    )
    return not setter


def test_every_module_and_public_definition_has_a_docstring():
    bare = []
    for path in [*modules(), *sorted((ROOT / "benchmarks").glob("*.py"))]:
        tree = parsed(path)
        if not ast.get_docstring(tree):
            bare.append(f"{path.name}")
        bare += [
            f"{path.name}: {name}"
            for name, node in public_definitions(tree)
            if needs_docstring(name, node) and not ast.get_docstring(node)
        ]
    assert not bare, "no docstring: " + ", ".join(bare)


def text_files():
    """The text files of the project without golden data and the licence."""
    suffixes = {".py", ".md", ".txt", ".toml", ".cfg", ".flags", ".sh", ""}
    kept = []
    for path in tracked():
        parts = path.relative_to(ROOT).parts
        if parts[:2] == ("tests", "golden") or path.name == "LICENSE":
            continue
        if path.suffix in suffixes:
            kept.append(path)
    return kept


def test_forbidden_words_are_absent():
    found = []
    for path in text_files():
        lines = path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, start=1):
            place = f"{path.relative_to(ROOT)}:{number}"
            found += [f"{place}: {w}" for w in FORBIDDEN if w in line]
            if MACHINE_PATH.search(line):
                found.append(f"{place}: a path of one machine")
            if ELSEWHERE.search(line):
                found.append(f"{place}: refers to what is not here")
    assert not found, "\n".join(found)


def test_machine_paths_are_told_from_addresses():
    for bad in ("x = '/" + "tmp/a'", "/" + "home/jo/x", "in /" + "work/b"):
        assert MACHINE_PATH.search(bad)
    for good in ("https://example.org/" + "home/a", "a/" + "work/b", "/usr/a"):
        assert not MACHINE_PATH.search(good)


def test_readme_has_at_most_450_lines():
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("no README.md yet")
    assert readme.read_text(encoding="utf-8").count("\n") <= 450


def test_contributing_opens_with_the_vow():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    first = " ".join(text.split("\n\n")[1].split())
    assert "permanently" in first and "published BERT checkpoints" in first


def test_root_holds_what_the_design_names():
    allowed = {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "pyproject.toml",
        "sample_text.txt",
        ".gitignore",
        ".gitattributes",
    }
    directories = {
        ".ci",
        "benchmarks",
        "docs",
        "recipes",
        "samples",
        "tests",
    }
    odd = set()
    for path in tracked():
        parts = path.relative_to(ROOT).parts
        if len(parts) > 1:
            odd |= {parts[0]} - directories
        elif path.suffix != ".py" and parts[0] not in allowed:
            if not re.fullmatch(r"requirements(-[a-z]+)?\.txt", parts[0]):
                odd.add(parts[0])
    assert not odd
    assert not (ROOT / "utils.py").exists()


def test_the_whole_checkout_stays_small():
    golden = ROOT / "tests" / "golden"
    size = sum(p.stat().st_size for p in golden.rglob("*") if p.is_file())
    assert size <= 12e6, f"tests/golden has {size / 1e6:.1f} MB"


@pytest.mark.parametrize(
    "path",
    [
        *sorted(ROOT.glob("requirements*.txt")),
        ROOT / "benchmarks" / "requirements.txt",
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_each_requirement_has_a_range_and_a_reason(path):
    previous = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "-r")):
            assert previous.startswith("#"), f"{line}: no reason above it"
            assert re.search(r"~=|==|>=.*,<", line), f"{line}: no range"
        previous = line


def flag_definitions():
    """Pairs (flag, file) of every absl flag the root modules define."""
    for path in modules():
        for node in ast.walk(parsed(path)):
            is_call = isinstance(node, ast.Call) and node.args
            if not is_call or not isinstance(node.func, ast.Attribute):
                continue
            first = node.args[0]
            if node.func.attr.startswith("DEFINE_") and isinstance(
                first, ast.Constant
            ):
                yield first.value, pathlib.Path(path).name


def test_libraries_define_a_shared_flag_once():
    places = {}
    for flag, name in flag_definitions():
        if LEVEL_OF.get(name.removesuffix(".py")) is not None:
            places.setdefault(flag, []).append(name)
    assert all(len(files) == 1 for files in places.values()), places
