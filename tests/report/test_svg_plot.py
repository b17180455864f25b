"""Plots of reproductions as SVG."""

import re
from xml.etree import ElementTree

from nestling.report.svg_plot import Plot, Series, draw


def texts(svg):
    return [(element.get("font-size"), element.text) for element in ElementTree.fromstring(svg).iter() if element.text]


def test_a_title_that_is_wider_than_the_panels_is_broken_into_lines():
    plot = Plot("Global", "round", "accuracy", [Series("ours", [1, 2], [0.5, 0.75])])
    title = "FedRolex (Alam et al., NeurIPS 2022), Figure 3: Accuracy by the share of clients with the largest model"
    svg = draw(title, [plot])
    width, height = map(float, re.search(r"viewBox='0 0 (\S+) (\S+)'", svg).groups())
    lines = [text for size, text in texts(svg) if size == "14"]
    assert " ".join(lines) == title
    assert len(lines) > 1
    assert all(len(line) * 7 < width for line in lines)
    short = float(re.search(r"viewBox='0 0 \S+ (\S+)'", draw("Short", [plot])).group(1))
    assert height == short + 18 * (len(lines) - 1)
    assert len([text for size, text in texts(draw(title, [plot] * 3)) if size == "14"]) == 1
