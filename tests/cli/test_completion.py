"""What TAB completes: in this process, and in a real bash."""

import os
import shutil
import sys

import pytest

from nestling.cli import completion, main
from nestling.experiment.presets import PRESETS
from nestling.methods import names
from nestling.nets import MODELS
from nestling.settings.reference import reference
from tests.processes import call


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """Return what bash is offered after these words; the last one is not finished."""
    monkeypatch.setenv("NESTLING_CACHE", str(tmp_path))

    def offered(*words):
        monkeypatch.setenv("_NESTLING_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["nestling", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit):
            main([])
        return capsys.readouterr().out.split()

    return offered


def test_commands_kinds_and_names(typed):
    assert typed("comp") == ["compare"]
    assert typed("list", "met") == ["methods"]
    assert typed("run", "fedrolex-dig") == ["fedrolex-digits"]
    assert typed("compare", "fjord-digits", "heterofl-dig") == ["heterofl-digits"]
    assert typed("cost", "--method", "fedm") == [name for name in names() if name.startswith("fedm")]
    assert typed("check", "resnet") == [name for name in MODELS if name.startswith("resnet")]
    assert typed("help", "settings", "lo") == ["local"]
    assert typed("help", "comp") == ["completion", "compare"]
    assert "heterofl-table1" in typed("reproduce", "heterofl-t")
    assert set(typed("run", "")) == set(PRESETS)


def test_settings_and_their_values(typed):
    settings = {row.name for row in reference()}
    assert {f"{name}=" for name in settings if name.startswith("local.")} == set(typed("run", "x", "local."))
    assert typed("run", "x", "local.optim") == ["local.optimizer=sgd", "local.optimizer=adam"]
    assert typed("run", "x", "local.batch") == ["local.batch_size=10"]
    assert typed("sweep", "x", "data.public_from") == ["data.public_from_test=false", "data.public_from_test=true"]


def test_bash_ends_words_at_the_equals_sign(typed):
    assert typed("run", "x", "local.optimizer", "=") == ["sgd", "adam"]
    assert typed("run", "x", "local.optimizer", "=", "a") == ["adam"]
    assert typed("run", "x", "method", "=", "fedr") == ["fedrolex"]


def test_names_are_remembered_until_the_package_changes(typed, tmp_path, monkeypatch):
    typed("run", "a")
    (file,) = (tmp_path / "names").iterdir()
    file.write_text(file.read_text().replace("fedrolex-digits", "fedrolex-remembered"))
    assert typed("run", "fedrolex-rem") == ["fedrolex-remembered"]
    monkeypatch.setattr(completion, "_package_state", lambda: "changed")
    assert typed("run", "fedrolex-rem") == []
    assert [file.stem for file in (tmp_path / "names").iterdir()] == ["changed"]


def test_a_cache_that_cannot_be_written_is_no_obstacle(typed, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NESTLING_CACHE", str(tmp_path / "file"))
    assert typed("run", "fjord-dig") == ["fjord-digits"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash(tmp_path):
    program = tmp_path / "nestling"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m nestling "$@"\n')
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NESTLING_CACHE": str(tmp_path / "cache")}
    script = call([program], env=env | {"_NESTLING_COMPLETE": "source_bash"}, check=True).stdout
    assert "complete -o default -F _nestling_completion nestling" in script
    lines = [script]
    for words in ("run fedrolex-dig", "run x local.optimizer = s", "run runs/"):
        quoted = f"nestling {words}".split()
        lines += [f"COMP_WORDS=({' '.join(quoted)}); COMP_CWORD={len(quoted) - 1}", "_nestling_completion nestling"]
        lines.append('echo "<${COMPREPLY[*]}>"')
    done = call(["bash", "--norc", "-c", "\n".join(lines)], env=env, check=True)
    assert done.stdout.splitlines() == ["<fedrolex-digits>", "<sgd>", "<>"]  # after nothing, bash completes files
