"""The shards of `create_pretraining_data.py --streaming` as a Beam pipeline.

Every shard is an element, made by the same function from the same part of the
text as on one machine, so its bytes are the same on any runner. Input and
output may lie wherever Beam's file systems reach; the vocabulary is a local
file and travels with the pipeline. The runner's machines need these modules
(Beam's `--setup_file` or an image) and `requirements-beam.txt`.
"""

import dataclasses
import io
import json
import os
import shutil
import tempfile

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

import tokenization
from pretraining_data import Options
from pretraining_shards import ShardPlan, shard_name, write_shard
from pretraining_writer import Summary, Tools


def open_file(path: str, mode: str = "rb"):
    """Opens a file of any of Beam's file systems, as it is."""
    del mode  # always bytes
    return FileSystems.open(
        path, compression_type=CompressionTypes.UNCOMPRESSED
    )


def match_files(patterns: str) -> list[tuple[str, str, int]]:
    """(path, name, bytes) of the files, sorted by path.

    Raises ValueError naming a pattern without a match or a compressed file."""
    sizes = {}
    for pattern in patterns.split(","):
        matched = FileSystems.match([pattern.strip()])[0].metadata_list
        if not matched:
            raise ValueError(f"{pattern!r} matches no file. Check the path")
        for found in matched:
            if found.path.endswith(".gz"):
                raise ValueError(
                    f"{found.path}: a Beam worker cannot begin in the middle "
                    "of a compressed file. Unpack it, or leave out --runner"
                )
            sizes[found.path] = found.size_in_bytes
    return [(path, path, sizes[path]) for path in sorted(sizes)]


class WriteShard(beam.DoFn):
    """Makes the shard whose number it gets, and a note of what is in it."""

    def __init__(
        self,
        plan: ShardPlan,
        options: Options,
        vocab: bytes,
        do_lower_case: bool,
        output_file: str,
    ):
        self._plan = plan
        self._options = options
        self._vocab = vocab
        self._do_lower_case = do_lower_case
        self._output = output_file
        self._tools = None

    def setup(self):
        """Builds the tokenizer, once in each process."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "vocab.txt")
            with open(path, "wb") as file:
                file.write(self._vocab)
            tokenizer = tokenization.FullTokenizer(path, self._do_lower_case)
        self._tools = Tools(tokenizer, self._options)

    def process(self, shard):
        """Writes one shard; gives its number."""
        output = shard_name(self._output, shard, self._plan.num_shards)
        with tempfile.TemporaryDirectory() as directory:
            local = os.path.join(directory, os.path.basename(output))
            summary = write_shard(
                self._tools, self._plan, shard, local, open_file
            )
            with open(local, "rb") as source:
                _create(output, source)
        note = json.dumps(dataclasses.asdict(summary)).encode()
        _create(f"{output}.summary.json", io.BytesIO(note))
        yield shard


def _create(path, source):
    """Copies an open file to a path, which appears whole or not at all."""
    part = f"{path}.{os.getpid()}.part"
    target = FileSystems.create(
        part, compression_type=CompressionTypes.UNCOMPRESSED
    )
    with target:
        shutil.copyfileobj(source, target, 1 << 20)
    FileSystems.rename([part], [path])


def run(flags, options: Options, vocab_file: str, beam_options: list[str]):
    """Runs the pipeline to its end: input files, output files, `Summary`.

    `flags` has the flags of create_pretraining_data.py. Raises ValueError for
    input that cannot be read."""
    files = match_files(flags.input_file)
    plan = ShardPlan.of(files, flags.num_shards, flags.random_seed)
    with open(vocab_file, "rb") as file:
        vocab = file.read()
    writer = WriteShard(
        plan, options, vocab, flags.do_lower_case, flags.output_file
    )
    arguments = [f"--runner={flags.runner}", *beam_options]
    with beam.Pipeline(options=PipelineOptions(arguments)) as pipeline:
        _ = (
            pipeline
            | "Shards" >> beam.Create(range(plan.num_shards))
            | "Spread" >> beam.Reshuffle()
            | "Write" >> beam.ParDo(writer)
        )
    outputs = [
        shard_name(flags.output_file, shard, plan.num_shards)
        for shard in range(plan.num_shards)
    ]
    notes = [f"{output}.summary.json" for output in outputs]
    summary = Summary()
    for note in notes:
        with open_file(note) as file:
            summary += Summary(**json.load(file))
    FileSystems.delete(notes)
    return [path for path, _, _ in files], outputs, summary
