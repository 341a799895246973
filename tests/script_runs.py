"""Runs of a script's main in the test's own process."""

import contextlib
import importlib
import logging

from absl import flags
from absl.testing import flagsaver
from toy_readers import LetterTokenizer

FLAGS = flags.FLAGS


class Script:
    """A script whose flags are defined for as long as a `with` block lasts."""

    def __init__(self, name):
        self._module = importlib.import_module(name)

    def __enter__(self):
        before = set(FLAGS)
        self._module.define_flags()
        self._own = set(FLAGS) - before
        return self

    def __exit__(self, *_):
        for name in self._own:
            delattr(FLAGS, name)

    def __call__(self, *arguments):
        """Runs main with the given flags only; gives its log lines."""
        lines = _Lines()
        logger = logging.getLogger()
        logger.addHandler(lines)
        try:
            with flagsaver.flagsaver():
                FLAGS.unparse_flags()
                for name in FLAGS:
                    FLAGS[name].unparse()
                FLAGS(["script", "--verbosity=0", *map(str, arguments)])
                self._module.main([])
        finally:
            logger.removeHandler(lines)
        return "\n".join(lines.found)


def task_maker(task_class):
    """A context whose value makes the task of some flags, without a model."""

    @contextlib.contextmanager
    def maker():
        with flagsaver.flagsaver():

            def make(*arguments, pieces=99):
                FLAGS.unparse_flags()
                for name in FLAGS:
                    FLAGS[name].unparse()
                FLAGS(["script", "--output_dir=none", *map(str, arguments)])
                task = task_class()
                task.tokenizer = LetterTokenizer(pieces)
                return task

            yield make

    return maker()


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        self.found.append(f"{record.levelname}: {record.getMessage()}")
