"""Draws the course of a pre-training as PNG: losses and masked-LM accuracy.

    python recipes/plot_losses.py --output=docs/pretraining_english.png \\
        english/pretrained

Reads the event files that run_pretraining.py writes for TensorBoard.
"""

import argparse
import pathlib

from matplotlib import figure
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util


def read_curve(directory, *tags):
    """The steps and values of the first tag there is, two equal lists."""
    events = event_accumulator.EventAccumulator(
        str(directory), size_guidance={event_accumulator.TENSORS: 0}
    )
    events.Reload()
    known = events.Tags()["tensors"]
    points = events.Tensors(next(tag for tag in tags if tag in known))
    values = [tensor_util.make_ndarray(p.tensor_proto).item() for p in points]
    return [point.step for point in points], values


def draw(directory, title):
    """A figure of two panels: losses, and accuracy on held-out text."""
    directory = pathlib.Path(directory)
    page = figure.Figure(figsize=(8, 3.2), layout="constrained")
    page.suptitle(title, fontsize=11)
    losses, accuracy = page.subplots(1, 2)
    for part, label in ((directory, "training"), (directory / "eval", "dev")):
        style = "-" if part is directory else "o-"
        # Without a second task `loss` is all that a step reports.
        line = read_curve(part, "masked_lm_loss", "loss")
        losses.plot(*line, style, label=label, markersize=4, linewidth=1.2)
    losses.set(xlabel="step", ylabel="masked-LM loss")
    losses.legend(frameon=False)
    steps, values = read_curve(directory / "eval", "masked_lm_accuracy")
    accuracy.plot(steps, [100 * value for value in values], "o-", markersize=4)
    accuracy.set(
        xlabel="step", ylabel="dev masked-LM accuracy, %", ylim=(0, None)
    )
    for panel in (losses, accuracy):
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    return page


def main():
    """Draws one run into one file."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", help="OUTPUT_DIR of run_pretraining.py.")
    parser.add_argument("--output", required=True, help="The PNG to write.")
    parser.add_argument("--title", default="", help="Stands above the curves.")
    flags = parser.parse_args()
    draw(flags.directory, flags.title).savefig(flags.output, dpi=110)


if __name__ == "__main__":
    main()
