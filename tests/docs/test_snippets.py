"""What the documentation shows is true: commands are parsed, and run where that is quick; links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from docs.hooks import method_pages, repository_links, site
from nestling.cli import main
from nestling.cli.app import app
from nestling.experiment import find
from nestling.experiment.presets import PRESETS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:\$ |\.venv/bin/)?(nestling .+)$", re.MULTILINE)

# Commands without training, which end within a second or two.
_QUICK = (
    "list methods",
    "list presets fedrolex",
    "list devices",
    "cost --model cnn",
    "reproduce digits-demo --dry-run",
)


def commands():
    """Every line `nestling …` in blocks of code: the page, and the words."""
    for page in PAGES:
        for _, block in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
            for line in _COMMAND.findall(block.replace("\\\n", " ")):
                words = shlex.split(line, comments=True)[1:]
                if "NAME" not in words and "…" not in line:
                    yield pytest.param(words, id=f"{page}: {shlex.join(words)}"[:100])


def parsed(words):
    """The parameters with which the program would call a command; raises what the program reports as bad input."""
    command, *rest = get_command(app), *words
    if rest[0].startswith("-"):  # an option of the program itself
        context = command.make_context("nestling", [], resilient_parsing=True)
        return {name: param for param in command.get_params(context) for name in param.opts if name == rest[0]}
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context("nestling", rest).params


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_of_the_documentation_is_one_that_the_program_takes(words):
    parameters = parsed(words)
    if words[0] in ("run", "compare", "sweep"):
        given = [value for value in words[1:] if "=" in value and not value.startswith("-")]
        presets = [value for value in words[1:] if value in PRESETS]
        known = [value for value in given if ":" not in value and "FILE" not in value and "fleet.toml" not in value]
        for preset in presets if words[0] != "sweep" else ():
            find(preset).with_settings(known)
    assert parameters


def test_commands_are_found_and_mistakes_are_noticed():
    assert len(list(commands())) > 60
    with pytest.raises(Exception, match="No such option: --budgets"):
        parsed(["fit", "resnet18", "--budgets", "2 MB"])
    assert parsed(["--version"])
    assert not parsed(["--versions"])
    with pytest.raises(KeyError, match="frun"):
        parsed(["frun", "resnet18"])


@pytest.mark.parametrize("line", _QUICK)
def test_quick_commands_end_well(line, capsys):
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page)) for page in PAGES if page.suffix == ".md"])
def test_links_lead_to_files_and_headings_of_the_repository(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in repository_links.links(text):
        path = ROOT / repository_links.resolve(target, str(page))
        assert path.exists(), f"{target} does not exist"
        if anchor and path.suffix == ".md":
            assert anchor in repository_links.anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_links_are_those_of_the_site():
    modules = method_pages.page_paths()
    text = "[a](../nestling/methods/heterofl.py) [b](tutorials/own_model.ipynb) [c](#d) [e](https://x)\n```\n[f](g.py)\n```"
    rewritten = repository_links.rewrite(text, "docs/page.md", "page.md", modules)
    assert (
        rewritten == "[a](methods/heterofl.md) [b](tutorials/own_model.md) [c](#d) [e](https://x)\n```\n[f](g.py)\n```"
    )


def test_what_a_page_fetches_from_elsewhere_is_found():
    assert site.fetched('<link rel="stylesheet" href="https://fonts.example/css">')
    assert not site.fetched(
        '<a href="https://paper.example">x</a><link rel="canonical" href="https://x"><img src="a.svg">'
    )
