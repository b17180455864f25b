"""Small SVG pictures that are read in light and dark: shapes, texts, and a style that follows the reader's."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LEVELS = ("#c9def2", "#97c0e4", "#5f9bd1", "#3579b8", "#1c5590", "#0b3560")  # of sub-models, the largest first
COLOURS = ("#2f7ed8", "#d9730d", "#1f9d72", "#a35fe0", "#d64561", "#9c7a12")
GREY = "#9aa5b1"

_STYLE = """<style>
text { font-family: Helvetica, Arial, sans-serif; font-size: 13px; }
.paper { fill: #ffffff } .ink { fill: #1f2933 } .soft { fill: #5b6875 }
.rule { stroke: #cbd3db } .edge { stroke: #ffffff }
@media (prefers-color-scheme: dark) {
  .paper { fill: #1b2330 } .ink { fill: #e8eef4 } .soft { fill: #a3b1bf }
  .rule { stroke: #46566a } .edge { stroke: #1b2330 }
}
</style>"""


class Picture:
    """A picture that grows by shapes; coordinates are pixels from its upper left corner.

    >>> picture = Picture(100, 50, "A test")
    >>> picture.text(5, 20, "a < b")
    >>> "a &lt; b" in picture.svg()
    True
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img"><title>{escape(title)}</title>',
            _STYLE,
            f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
        ]

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, *, opacity: float = 1, style: str = "edge"
    ) -> None:
        """Draw a rectangle."""
        inside = f'fill="{fill}" fill-opacity="{opacity:g}"'
        self._parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {inside}/>'
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str = "", width: float = 1, dash: str = "") -> None:
        """Draw a line through points; without a colour, that of rules."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        stroke = f'stroke="{colour}"' if colour else 'class="rule"'
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<polyline points="{path}" fill="none" {stroke} stroke-width="{width:g}"{dashes}/>')

    def circle(self, x: float, y: float, radius: float, fill: str) -> None:
        """Draw a point."""
        self._parts.append(f'<circle class="edge" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        style: str = "ink",
        size: int = 13,
        bold: bool = False,
    ) -> None:
        """Write a text; `style` is ``ink`` or ``soft``, or a colour."""
        look = f'class="{style}"' if style in ("ink", "soft") else f'fill="{style}"'
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" {look} text-anchor="{anchor}" style="font-size:{size}px"{weight}>'
            f"{escape(text)}</text>"
        )

    def turned(self, x: float, y: float, text: str) -> None:
        """Write a text from bottom to top."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="soft" text-anchor="middle" transform="rotate(-90 {x:.1f} {y:.1f})">'
            f"{escape(text)}</text>"
        )

    def svg(self) -> str:
        """Return the picture."""
        return "\n".join([*self._parts, "</svg>", ""])
