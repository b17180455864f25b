"""`nestling --help` and `nestling help`: whole sentences in 80 columns, commands in groups, every setting."""

import json
import re

import pytest
from typer.main import get_command

from nestling.cli import main
from nestling.cli.app import app
from nestling.cli.settings_reference import settings_markdown
from nestling.settings.reference import reference


def commands():
    root = get_command(app)
    pages = [[], *([name] for name in root.commands)]
    return pages + [["data", name] for name in root.commands["data"].commands]


@pytest.fixture
def page(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def printed(*args):
        code = main(args)
        out, err = capsys.readouterr()
        return code, out, err

    return printed


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_has_whole_sentences_examples_and_no_types(page, command):
    code, out, err = page(*command, "--help")
    assert (code, err) == (0, "")
    text, _, examples = out.partition("Examples:\n")
    assert re.match(rf" +{' '.join(['nestling', *command])} ?", examples)
    assert not re.search("[<>]", text)
    assert "..." not in text.partition("\n\n")[2]  # but in the usage
    assert all(len(line) <= 80 for line in text.splitlines())
    listed = re.findall(r"^  (-\w, )?(--[\w-]+)", text, re.M)
    assert ("", "--help") in listed or ("-h, ", "--help") in listed


def test_every_option_and_argument_is_explained():
    root = get_command(app)
    for command in [root, *root.commands.values(), *root.commands["data"].commands.values()]:
        for parameter in command.params:
            assert parameter.help, (command.name, parameter.name)
            assert parameter.is_flag if parameter.param_type_name == "option" and not parameter.metavar else True, (
                command.name,
                parameter.name,
            )


def test_commands_stand_in_groups(page):
    _, out, _ = page("--help")
    assert "\nCommands:" not in out
    for group, command in (("Start", "demo"), ("Run experiments", "run"), ("Data and machine", "doctor")):
        section = out.partition(f"{group}:\n")[2].partition("\n\n")[0]
        assert re.search(rf"^  {command}  +[A-Z]", section, re.M)


def test_help_of_a_command_is_its_help(page):
    assert page("help", "data", "show") == page("data", "show", "--help")
    assert page("help") == page("--help")


def test_help_settings_lists_every_setting_with_meaning_default_and_accepted_values(page):
    _, out, _ = page("help", "settings")
    rows = reference()
    assert re.findall(r"^([a-z][\w.]+) = ", out, re.M) == [row.name for row in rows]
    code, out, _ = page("help", "settings", "local")
    assert code == 0
    assert "local.lr = 0.1   (a number above 0)\n    The learning rate.\n" in out
    assert "local.optimizer = sgd   (sgd or adam)" in out
    assert "fleet" not in out
    assert json.loads(page("help", "settings", "local.lr", "--json")[1]) == [
        {"name": "local.lr", "meaning": "The learning rate.", "default": 0.1, "accepted": "a number above 0"}
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["help", "rum"], "No such command 'rum'"),
        (["help", "settings", "lokal"], "no setting and no table 'lokal'; did you mean 'local'"),
        (["help", "run", "--json"], "--json is for the settings"),
    ],
)
def test_bad_input_is_one_sentence(page, args, words):
    code, out, err = page(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_the_documentation_has_a_table_for_every_table_of_settings():
    page = settings_markdown()
    names = re.findall(r"^\| `([a-z][\w.]+)` \|", page, re.M)
    assert names == [row.name for row in reference()]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in page.splitlines() if line.startswith("|"))
    assert page.count("\n## ") == 7
    assert "topk-1bit" in page
    assert "``" not in page
