"""Model cards: a page of Markdown beside an exported file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def model_card(title: str, about: str, facts: Mapping[str, str], settings: str, usage: Sequence[str]) -> str:
    """Return a model card.

    Parameters
    ----------
    title, about
        The heading, and a paragraph on what the file is.
    facts
        The rows of its table.
    settings
        The settings of the run as TOML.
    usage
        Lines of Python that load the file.

    Examples
    --------
    >>> print(model_card("A net", "Small.", {"size": "1 kB"}, "rounds = 1", ["load()"]))
    # A net
    <BLANKLINE>
    Small.
    <BLANKLINE>
    | | |
    |---|---|
    | size | 1 kB |
    <BLANKLINE>
    ## Use
    <BLANKLINE>
    ```python
    load()
    ```
    <BLANKLINE>
    ## How it was trained
    <BLANKLINE>
    ```toml
    rounds = 1
    ```
    <BLANKLINE>
    """
    table = [f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in facts.items()]
    lines = [f"# {title}", "", about, "", "| | |", "|---|---|", *table, "", "## Use", "", "```python", *usage, "```"]
    lines += ["", "## How it was trained", "", "```toml", settings.strip(), "```", ""]
    return "\n".join(lines)
