"""Pre-training data of any size: shard after shard, each from its own text.

The text, all files one after the other, is cut into blocks of bytes; a document
belongs to the block in which the blank line before it lies, and a shard takes
every n-th block. So a shard reads only its own part, and memory follows the
size of a shard, not of the text. A shard is seeded by (seed, number of the
shard): its bytes depend neither on the number of workers nor on the shards
written before it, and a run that was killed goes on with what is missing.
"""

import dataclasses
import glob
import gzip
import hashlib
import json
import logging
import os
import random
import shutil
from collections.abc import Callable
from typing import NamedTuple

import directories
import text_files
from pretraining_data import Corpus, sample_instances
from pretraining_writer import (
    Summary,
    Tools,
    Workers,
    check_instances,
    remove_leftovers,
    write_instance_to_example_files,
)

SHARD_BYTES = 32 << 20  # of text, where --num_shards is not given
_BLOCKS_PER_SHARD = 16  # mix the text of a shard from so many places
_LEAST_BLOCK = 256 << 10
_LONGEST_DOCUMENT = 1 << 20  # longer ones may be cut at a line

_log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """Bytes `start` to `end` of a file, called `name` in messages."""

    path: str
    name: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """Which text goes into which shard.

    files: (path, name in messages, bytes), in order. num_shards: 0 makes one
    for each 32 MB of text. seed: of the whole data set."""

    files: tuple[tuple[str, str, int], ...]
    num_shards: int
    seed: int

    @classmethod
    def of(cls, files, num_shards: int, seed: int) -> "ShardPlan":
        """A plan for these files. Raises ValueError where they are empty."""
        total = sum(size for _, _, size in files)
        if not total:
            names = ", ".join(name for _, name, _ in files)
            raise ValueError(f"no text in {names}")
        return cls(tuple(files), num_shards or -(-total // SHARD_BYTES), seed)

    def pieces(self, shard: int) -> list[Piece]:
        """The parts of files that the shard is made of, in order."""
        total = sum(size for _, _, size in self.files)
        each = total // (self.num_shards * _LEAST_BLOCK)
        blocks = self.num_shards * max(1, min(_BLOCKS_PER_SHARD, each))
        found = []
        for block in range(shard, blocks, self.num_shards):
            first = block * total // blocks
            last = (block + 1) * total // blocks
            offset = 0
            for path, name, size in self.files:
                start = max(first - offset, 0)
                end = min(last - offset, size)
                if start < end:
                    found.append(Piece(path, name, start, end))
                offset += size
        return found

    def random(self, shard: int) -> random.Random:
        """The generator of a shard."""
        return random.Random(f"{self.seed}, shard {shard}")


def shard_name(output_file: str, shard: int, num_shards: int) -> str:
    """The file of a shard: NAME-00003-of-00010, before .tfrecord or .gz."""
    base, ending = output_file, ""
    for suffix in (".gz", ".tfrecord", ".tf_record", ".tfrecords"):
        if base.endswith(suffix):
            base, ending = base[: -len(suffix)], suffix + ending
    return f"{base}-{shard:05d}-of-{num_shards:05d}{ending}"


# --- the text of a shard ----------------------------------------------------


def is_blank_line(line: bytes) -> bool:
    """Whether a line ends a document: Unicode white space only."""
    stripped = line.strip()
    if stripped and 0x20 < stripped[0] < 0x7F:
        return False
    return not stripped.decode("utf-8", "replace").strip()


def document_boundary(file, offset: int) -> int:
    """The place after the first blank line that begins at `offset` or later.

    Where none comes within 1 MB, the beginning of the next line. A later
    offset never gives an earlier place, so two blocks that share a boundary
    neither lose nor repeat a line."""
    if offset <= 0:
        return 0
    file.seek(offset - 1)
    place = offset - 1 + len(file.readline())
    while True:
        line = file.readline()
        if not line or place >= offset + _LONGEST_DOCUMENT:
            return place
        place += len(line)
        if is_blank_line(line):
            return place


def read_pieces(
    pieces: list[Piece], encode_text, open_file: Callable
) -> Corpus:
    """The documents that begin in the pieces, as numbers.

    Raises ValueError with file and line where the text is not UTF-8."""
    corpus = Corpus()
    for path, name, start, end in pieces:
        with open_file(path, "rb") as file:
            start = document_boundary(file, start)
            end = document_boundary(file, end)
            file.seek(start)
            while start < end:
                block = file.read(min(1 << 20, end - start))
                if len(block) < end - start:
                    block += file.readline()
                if not block:
                    break
                try:
                    encoded = encode_text(block, name)
                except ValueError:
                    # Only now is it worth knowing the number of the line.
                    before = _count_lines(file, start)
                    encode_text(block, name, 1 + before)
                    raise
                corpus.add(*encoded)
                start += len(block)
        corpus.end_document()
    return corpus


def _count_lines(file, end: int) -> int:
    """How many lines end before this place."""
    file.seek(0)
    lines = 0
    while end > 0 and (block := file.read(min(1 << 20, end))):
        lines += block.count(b"\n")
        end -= len(block)
    return lines


def write_shard(
    tools: Tools,
    plan: ShardPlan,
    shard: int,
    output_file: str,
    open_file: Callable = open,
) -> Summary:
    """Makes one shard and writes it to `output_file`.

    Raises ValueError where its text gives no instance."""
    options = tools.options
    corpus = read_pieces(plan.pieces(shard), tools.encode_text, open_file)
    summary = Summary()
    advice = (
        f"shard {shard} of {plan.num_shards}, with "
        f"{corpus.num_documents} documents,"
    )
    if not corpus.num_documents:
        if plan.num_shards == 1:
            names = ", ".join(name for _, name, _ in plan.files)
            raise ValueError(f"no text in {names}")
        raise ValueError(f"{advice} is empty. Lower --num_shards")
    summary.add_corpus(corpus, tools.is_chinese)
    rng = plan.random(shard)
    write_instance_to_example_files(
        sample_instances(corpus, options, tools.vocab, rng),
        [output_file],
        rng,
        Workers(tools),
        summary,
    )
    check_instances(summary, advice, options)
    return summary


# --- all shards -------------------------------------------------------------


def create_shards(
    input_files: list[str],
    output_file: str,
    seed: int,
    workers: Workers,
    num_shards: int = 0,
) -> tuple[Summary, list[str]]:
    """Writes all shards that are not there yet; gives counts and files.

    What a killed run with the same settings has finished is kept. Beside the
    output lies `.OUTPUT.progress` until all is done, with the counts of the
    finished shards and compressed input files unpacked.
    Raises ValueError where a shard has no text."""
    directory, name = os.path.split(output_file)
    progress = os.path.join(directory, f".{name}.progress")
    settings = _settings(input_files, workers.tools, seed, num_shards)
    _open_progress(progress, settings)
    try:
        made = _missing_shards(
            input_files, output_file, seed, workers, num_shards, progress
        )
    except ValueError:
        if not glob.glob(_note(glob.escape(progress), None)):
            shutil.rmtree(progress, ignore_errors=True)
        raise
    shutil.rmtree(progress)
    return made


def _missing_shards(
    input_files, output_file, seed, workers, num_shards, progress
):
    """Writes what is missing; gives the counts of all shards, and files."""
    files = [
        _unpacked(path, progress, number)
        for number, path in enumerate(input_files)
    ]
    plan = ShardPlan.of(files, num_shards, seed)
    shards = range(plan.num_shards)
    outputs = [shard_name(output_file, x, plan.num_shards) for x in shards]
    for path in filter(os.path.lexists, outputs):
        text_files.check_output("output_file", path, input_files)
    remove_leftovers(outputs)
    _warn_of_others(output_file, outputs)
    done = {x: _finished(progress, x, outputs[x]) for x in shards}
    missing = [x for x in shards if done[x] is None]
    if len(missing) < len(shards):
        _log.info(
            "%d of %d shards are finished already",
            len(shards) - len(missing),
            len(shards),
        )
    jobs = [(plan, x, outputs[x], progress) for x in missing]
    results = workers.map(_shard_job, jobs)
    for shard, summary in zip(missing, results, strict=True):
        done[shard] = summary
        _log.info("shard %d: %d instances", shard, summary.instances)
    return sum(done.values(), Summary()), outputs


def _warn_of_others(output_file, outputs):
    """Warns where shards of another number lie beside ours."""
    pattern = glob.escape(shard_name(output_file, 0, 1))
    pattern = pattern.replace("-00000-of-00001", "-?????-of-?????")
    others = sorted(set(glob.glob(pattern)) - set(outputs))
    if others:
        _log.warning(
            "%d shards of another run lie beside the output, such as %s; "
            "remove them before you train on a pattern",
            len(others),
            others[0],
        )


def _shard_job(tools, job):
    """The job that writes a shard, and then that it is finished."""
    plan, shard, output, progress = job
    summary = write_shard(tools, plan, shard, output)
    note = {"bytes": os.path.getsize(output), **dataclasses.asdict(summary)}
    with text_files.whole_binary(_note(progress, shard)) as file:
        file.write(json.dumps(note).encode())
    return summary


def _note(progress, shard):
    """Where the counts of a finished shard are; of None, a pattern of all."""
    number = "?????" if shard is None else f"{shard:05d}"
    return os.path.join(progress, f"shard-{number}.json")


def _finished(progress, shard, output) -> Summary | None:
    """The counts of a shard that an earlier run has finished.

    None where its file is gone or has another size than it was given."""
    try:
        with open(_note(progress, shard)) as file:
            note = json.load(file)
        if os.path.getsize(output) != note.pop("bytes", None):
            return None
        return Summary(**note)
    except FileNotFoundError:
        return None


def _settings(input_files, tools, seed, num_shards) -> dict:
    """All that decides on the bytes of the shards."""
    stats = [os.stat(path) for path in input_files]
    tokens = "\n".join(
        f"{token} {index}" for token, index in tools.vocab.items()
    )
    return {
        "input": [
            [path, stat.st_size, stat.st_mtime_ns]
            for path, stat in zip(input_files, stats, strict=True)
        ],
        "options": dataclasses.asdict(tools.options),
        "seed": seed,
        "num_shards": num_shards,
        "casing": [
            tools.tokenizer.do_lower_case,
            tools.tokenizer.strip_accents,
        ],
        "vocabulary": hashlib.sha256(tokens.encode()).hexdigest(),
    }


def _open_progress(progress: str, settings: dict):
    """Makes the directory of notes, new if it belongs to other settings."""
    path = os.path.join(progress, "settings.json")
    os.makedirs(progress, exist_ok=True)
    directories.hold_directory(progress)
    try:
        with open(path) as file:
            if json.load(file) == settings:
                return
        _log.info("the settings have changed: all shards are made again")
    except FileNotFoundError:
        pass
    for name in os.listdir(progress):
        if name != directories.LOCK_FILE:
            os.remove(os.path.join(progress, name))
    with text_files.whole_binary(path) as file:
        file.write(json.dumps(settings).encode())


def _unpacked(path: str, progress: str, number: int) -> tuple[str, str, int]:
    """(path, name, bytes) of a file from whose middle one can read."""
    if not path.endswith(".gz"):
        return path, path, os.path.getsize(path)
    plain = os.path.join(progress, f"input-{number:05d}.txt")
    if not os.path.exists(plain):
        try:
            with gzip.open(path, "rb") as source:
                with text_files.whole_binary(plain) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        except text_files.GZIP_ERRORS as error:
            raise text_files.damaged_gzip(path, error) from None
    return plain, path, os.path.getsize(plain)
