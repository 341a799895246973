"""Output directories: whether they can be written, and by which run.

Nothing here imports TensorFlow.
"""

import fcntl
import os
import re

from absl import logging


def is_trained(output_dir):
    """Whether a training has left a checkpoint or a state here.

    What an evaluation wrote beside it is no run that could go on."""
    found = []
    for name in ("", "best", "resume"):
        directory = os.path.join(output_dir, name)
        if os.path.isdir(directory):
            found += os.listdir(directory)
    pattern = re.compile(r"model\.ckpt-\d+\.index|step-\d+")
    return any(map(pattern.fullmatch, found))


def run_directory(checkpoint):
    """The directory of the run that a checkpoint or directory is of.

    It is the one beside or, of a run's best/, above."""
    place = os.path.abspath(checkpoint)
    place = place if os.path.isdir(place) else os.path.dirname(place)
    above, name = os.path.split(place)
    is_best = name == "best" and os.path.exists(os.path.join(above, "run.json"))
    return above if is_best else place


def find_output_parent(path):
    """The nearest directory above or at `path` that exists.

    Makes nothing. Raises OSError if a file is in the way or nothing can be
    written there."""
    parent = os.path.abspath(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        raise OSError(
            f"--output_dir={path} cannot be made: {parent} is no directory. "
            "Choose another one."
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OSError(
            f"--output_dir={path} cannot be written: no permission for "
            f"{parent}. Choose another one."
        )
    return parent


def check_output_dir(path):
    """Makes the output directory. Raises OSError if it cannot be written."""
    try:
        os.makedirs(path, exist_ok=True)
        probe = os.path.join(path, f".probe-{os.getpid()}")
        with open(probe, "w"):
            pass
        os.remove(probe)
    except OSError as error:
        raise OSError(
            f"--output_dir={path} cannot be written: {error.strerror}."
        ) from error


LOCK_FILE = ".lock"
_held = {}  # real path of a directory -> the open lock file in it


def hold_directory(path):
    """Keeps other runs out of a directory until this process ends.

    The kernel lets go of the lock however the process ends; the empty file
    stays. Raises OSError while another process holds it. A file system
    without locks gives a warning and False, otherwise it returns True."""
    path = os.path.realpath(path)
    name = os.path.join(path, LOCK_FILE)
    is_locked = True
    while not _is_same_file(_held.get(path), name):
        file = open(name, "a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise OSError(
                f"another run is writing to {path}; wait for it or choose "
                "another directory."
            ) from None
        except OSError as error:
            logging.warning(
                "%s cannot be locked (%s): let no other run write to it.",
                path,
                error.strerror,
            )
            is_locked = False
        _held[path] = file
    return is_locked


def release_directory(path):
    """Lets other runs into a directory that `hold_directory` keeps."""
    file = _held.pop(os.path.realpath(path), None)
    if file is not None:
        file.close()


def _is_same_file(file, name):
    """Whether an open file still lies under its name."""
    if file is None or not os.path.exists(name):
        return False
    return os.path.samestat(os.fstat(file.fileno()), os.stat(name))


def _forget_held():
    """Lets go in a forked child, which may outlive its killed parent."""
    for file in _held.values():
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_forget_held)
