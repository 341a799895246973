"""The page of a report: whole, escaped, self-contained."""

import html.parser
import re

import numpy as np
import pytest

import reports


class Parser(html.parser.HTMLParser):
    """Checks that tags are closed in order and collects the text."""

    EMPTY = ("meta", "br", "path", "use", "rect", "image", "line", "circle")

    def __init__(self):
        super().__init__()
        self.open, self.text, self.ids, self.links = [], [], [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.ids.append(values["id"])
        self.links += [
            value
            for name, value in attributes
            if name in ("src", "href", "xlink:href")
        ]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parse(page):
    parser = Parser()
    parser.feed(page)
    assert not parser.open
    return parser


def page_of(tmp_path, parts, scores=None):
    path = tmp_path / "report.html"
    reports.write(path, "A <b> & C", scores or {"eval_f1": 0.5}, parts)
    return path.read_text(encoding="utf-8")


def test_page_is_well_formed_and_asks_nobody(tmp_path):
    labels = ["a<b", "中文", "$x$ & y"]
    matrix = [[3, 1, 0], [0, 0, 2], [0, 0, 5]]
    page = page_of(
        tmp_path,
        [
            reports.confusion(labels, matrix),
            reports.by_length([3, 9, 4, 30], [1, 0, 1, 1], "share right"),
            reports.scatter("Numbers", [1, 2, 3], [1.5, 2, 2]),
            reports.loss_curve(np.linspace(1, 0.1, 50), 10),
            reports.worst_examples([(1.5, "dev.tsv:3", "a<b", "中文", "<i>")]),
        ],
    )
    parser = parse(page)
    assert len(parser.ids) == len(set(parser.ids))
    for link in parser.links:
        assert link.startswith(("#", "data:")), link
        assert not link.startswith("#") or link[1:] in parser.ids
    for reference in re.findall(r"url\(#([^)]+)\)", page):
        assert reference in parser.ids
    text = "".join(parser.text)
    for piece in ("A <b> & C", "a<b", "中文", "$x$ & y", "<i>", "0.5000"):
        assert piece in text
    assert "The run was resumed at step 10." in text
    assert "script" not in page


def test_confusion_names_the_most_frequent_mistakes():
    part = reports.confusion(["x", "y"], [[8, 2], [7, 1]])
    rows = re.findall(r"<td[^>]*>([^<]*)</td>", part)
    assert rows == ["y", "x", "7", "x", "y", "2"]
    assert "mistakes" not in reports.confusion(["x", "y"], np.eye(2, dtype=int))


@pytest.mark.parametrize("count", [2, 31, 119])
def test_confusion_of_many_labels(count):
    matrix = np.eye(count, dtype=int) * 3
    part = reports.confusion([f"label {n}" for n in range(count)], matrix)
    assert ("label 1" in part) == (count <= reports.MOST_NAMES)
    parse(part)


def test_confusion_picture_as_png():
    picture = reports.confusion_picture(["a", "b"], [[1, 2], [3, 4]], "png")
    assert picture.startswith(b"\x89PNG")


def test_lengths_are_cut_into_groups_that_hold_every_example():
    tokens = [5] * 10 + list(range(6, 40))
    part = reports.by_length(tokens, np.ones(44), "share right")
    counts = [int(n) for n in re.findall(r">n=(\d+)<", part)]
    assert sum(counts) == 44 and 2 <= len(counts) <= 6
    assert ">n=3<" in reports.by_length([7, 7, 7], [0, 0, 1], "share right")


def test_worst_examples_are_sorted_and_right_ones_left_out():
    rows = [(0.0, "1", "right"), (0.5, "2", "bad"), (2.0, "3", "worse")]
    part = reports.worst_examples(rows, ("text",))
    assert part.index("worse") < part.index("bad")
    assert "right" not in part
    assert reports.worst_examples(rows[:1], ("text",)) == ""
    assert reports.worst_examples(rows, ("text",), limit=1).count("<tr>") == 2


def test_cells_by_type():
    row = (1, np.int64(2), 0.5, np.float32(0.25), True, ["a&", "b"], None)
    part = reports.table("T", (), [row])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", part)
    assert cells == ["1", "2", "0.5000", "0.2500", "yes", "a&amp;<br>b", "None"]


def test_one_loss_makes_a_curve():
    assert "<svg" in reports.loss_curve([0.7])
