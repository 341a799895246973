"""report.html: one page that shows how a model does on its dev set.

A task gives a list of parts, each a piece of HTML made by a function here:
`table`, `confusion`, `bars`, `scatter`, `worst_examples`, `loss_curve`.
`write` puts them under a table of scores. The page holds its own pictures
(SVG, drawn by matplotlib, with real text in it, so that labels of any script
show) and asks no server for anything. matplotlib is imported where it is used.
"""

import html
import io
import re
import warnings

import numpy as np

import common_flags

MOST_NAMES = 30  # labels that a picture can carry by name
STYLE = """
body { font: 15px/1.5 system-ui, "Noto Sans CJK SC", sans-serif;
  max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; } p.note { color: #666; }
th, td { padding: .25em .7em; border-bottom: 1px solid #ddd;
  text-align: left; vertical-align: top; }
th { background: #f4f4f4; } td.number { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
td.text { white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; }
"""


def write(path, title, scores, parts):
    """Writes the page, whole or not at all.

    `scores`: {name: number or str}, shown first; `parts`: HTML of the
    functions below."""
    rows = sorted(scores.items())
    body = [f"<h1>{html.escape(title)}</h1>", table("Scores", (), rows), *parts]
    common_flags.write_whole(
        path,
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style></head>\n"
        "<body>\n" + "\n".join(body) + "\n</body></html>\n",
    )


# --------------------------------------------------------------------- parts


def table(title, header, rows, note=""):
    """A table; numbers stand to the right, floats with four digits.

    A cell may be a list of str: its parts stand below each other."""
    lines = [_heading(title, note), "<table>"]
    if header:
        cells = "".join(f"<th>{html.escape(str(name))}</th>" for name in header)
        lines.append(f"<tr>{cells}</tr>")
    for row in rows:
        lines.append(f"<tr>{''.join(map(_cell, row))}</tr>")
    return "\n".join([*lines, "</table>"])


def confusion(labels, matrix, title="Confusion matrix"):
    """The picture of a confusion matrix, with the most frequent mistakes.

    `matrix`: int [C, C], row = true label, column = predicted label."""
    matrix = np.asarray(matrix)
    note = "Rows are the true labels, columns the predicted ones."
    if len(labels) > MOST_NAMES:
        note += " The numbers follow the table of labels."
    places = np.argwhere(matrix - np.diag(np.diag(matrix)) > 0)
    order = sorted(places.tolist(), key=lambda at: -matrix[at[0], at[1]])
    mistakes = [
        (labels[true], labels[found], int(matrix[true, found]))
        for true, found in order[:10]
    ]
    picture = _heading(title, note) + confusion_picture(labels, matrix)
    if not mistakes:
        return picture
    header = ("true", "predicted", "rows")
    return picture + table("Most frequent mistakes", header, mistakes)


def confusion_picture(labels, matrix, image_format="svg"):
    """The picture alone: SVG text, or the bytes of a "png"."""
    matrix = np.asarray(matrix)
    count = len(labels)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    named = count <= MOST_NAMES

    def draw(plot):
        """The matrix as shares of its rows, with the numbers in it."""
        size = max(3.5, min(10.0, 0.5 * count + 1.5))
        figure, axes = plot.subplots(figsize=(size + 1, size))
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        if not named:
            return figure
        names = [_short(label, 24) for label in labels]
        axes.set_xticks(range(count), names, rotation=45, ha="right")
        axes.set_yticks(range(count), names)
        for (row, column), number in np.ndenumerate(matrix):
            if number:
                axes.text(
                    column,
                    row,
                    str(number),
                    ha="center",
                    va="center",
                    fontsize=9 if count < 12 else 6,
                    color="white" if share[row, column] > 0.6 else "black",
                )
        return figure

    return _picture(draw, image_format)


def bars(title, names, values, note="", counts=None, ylabel="score"):
    """A bar for each name; `counts` are written above the bars."""

    def draw(plot):
        """The bars, and the counts above them."""
        figure, axes = plot.subplots(figsize=(max(4, 0.9 * len(names) + 1), 3))
        drawn = axes.bar(range(len(names)), values, color="#4878a8")
        axes.set_xticks(range(len(names)), [_short(n, 16) for n in names])
        axes.set_ylabel(ylabel)
        if counts is not None:
            axes.bar_label(drawn, [f"n={count}" for count in counts])
        axes.margins(y=0.15)
        if 0.5 < max(values) <= 1:
            axes.set_ylim(0, 1.15)
        return figure

    return _heading(title, note) + _picture(draw)


def by_length(tokens, scores, what, title="Scores by length"):
    """The mean score of examples in up to six groups of like length.

    `tokens` and `scores`: a number for each example; `what` names the
    score."""
    tokens, scores = np.asarray(tokens), np.asarray(scores, np.float64)
    edges = np.unique(np.quantile(tokens, np.linspace(0, 1, 7)).astype(int))
    groups = np.searchsorted(edges[1:-1], tokens, side="left")
    names, means, counts = [], [], []
    for group in np.unique(groups):
        chosen = groups == group
        low, high = tokens[chosen].min(), tokens[chosen].max()
        names.append(f"{low}" if low == high else f"{low}-{high}")
        means.append(float(scores[chosen].mean()))
        counts.append(int(chosen.sum()))
    note = f"Mean {what} of examples by their number of tokens."
    return bars(title, names, means, note, counts, what)


def scatter(title, truth, guesses, note=""):
    """Predicted against true numbers."""
    truth, guesses = np.asarray(truth), np.asarray(guesses)

    def draw(plot):
        """A point for each row, and the diagonal."""
        figure, axes = plot.subplots(figsize=(5, 4.5))
        axes.plot(truth, guesses, ".", alpha=0.4, rasterized=True)
        low = min(truth.min(), guesses.min())
        high = max(truth.max(), guesses.max())
        axes.plot([low, high], [low, high], color="#999", linewidth=1)
        axes.set_xlabel("true")
        axes.set_ylabel("predicted")
        return figure

    return _heading(title, note) + _picture(draw)


def worst_examples(
    rows, header=("true", "predicted", "text"), limit=20, measure="loss"
):
    """The rows with the highest loss: (loss, where it stands, cell, ...).

    A row where `loss` is not above 0 counts as right and is left out.
    `measure` is what the loss is called on the page."""
    rows = sorted(rows, key=lambda row: -row[0])
    shown = [row for row in rows[:limit] if row[0] > 0]
    if not shown:
        return ""
    note = f"Sorted by their {measure}, the worst first."
    return table("Worst examples", (measure, "row", *header), shown, note)


def loss_curve(losses, first_step=0, title="Training loss"):
    """The loss of each step and its running mean."""
    losses = np.asarray(losses, np.float64)
    steps = np.arange(first_step + 1, first_step + 1 + len(losses))
    width = max(1, len(losses) // 20)
    sums = np.cumsum(np.insert(losses, 0, 0.0))
    ends = np.arange(1, len(losses) + 1)
    starts = np.maximum(ends - width, 0)
    means = (sums[ends] - sums[starts]) / (ends - starts)

    def draw(plot):
        """The loss of each step and their running mean."""
        figure, axes = plot.subplots(figsize=(7, 3.2))
        axes.plot(steps, losses, color="#bbb", linewidth=0.8, label="step")
        label = f"mean of {width} steps"
        axes.plot(steps, means, color="#4878a8", label=label)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        return figure

    note = ""
    if first_step:
        note = f"The run was resumed at step {first_step}."
    return _heading(title, note) + _picture(draw)


# --------------------------------------------------------------------- pieces


def _heading(title, note):
    note = f'<p class="note">{html.escape(note)}</p>' if note else ""
    return f"<h2>{html.escape(title)}</h2>{note}\n"


def _cell(value):
    if isinstance(value, bool | np.bool_):
        value = "yes" if value else "no"
    if isinstance(value, float | np.floating):
        form = ".4f" if value == 0 or 1e-3 <= abs(value) < 1e5 else ".6g"
        return f'<td class="number">{value:{form}}</td>'
    if isinstance(value, int | np.integer):
        return f'<td class="number">{value}</td>'
    if isinstance(value, list | tuple):
        parts = "<br>".join(html.escape(str(part)) for part in value)
        return f"<td>{parts}</td>"
    return f'<td class="text">{html.escape(str(value))}</td>'


def _short(text, limit):
    """A label as a picture can show it; $ would start a formula."""
    text = str(text)
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text.replace("$", r"\$")


def _picture(draw, image_format="svg"):
    """What `draw(pyplot)` gives as <svg> text, or as the bytes of a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = {
        "svg.fonttype": "none",  # text stays text: the browser has the fonts
        "svg.hashsalt": "report",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.simplefilter("ignore")  # matplotlib's own font lacks CJK
        figure = draw(pyplot)
        try:
            file = io.BytesIO()
            figure.savefig(
                file,
                format=image_format,
                bbox_inches="tight",
                dpi=120,
                metadata={"Date": None} if image_format == "svg" else None,
            )
        finally:
            pyplot.close(figure)
    if image_format != "svg":
        return file.getvalue()
    text = file.getvalue().decode("utf-8")
    return _unique_ids(text[text.index("<svg") :])


_pictures = iter(range(10**9))


def _unique_ids(svg):
    """The ids of several pictures on one page must not be the same."""
    mark = f"p{next(_pictures)}-"
    svg = re.sub(r'\bid="', f'id="{mark}', svg)
    svg = svg.replace("url(#", f"url(#{mark}")
    return svg.replace('href="#', f'href="#{mark}')
