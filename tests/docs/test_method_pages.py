"""The pages of methods: complete, and true to the code."""

import pytest

import nestling
from docs.hooks import api_pages, method_pages, site
from nestling.methods.registry import METHODS, options


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name):
    page = method_pages.method_page(name)
    assert "\n# " in page
    for option in options(name):
        assert f"`{option.split('=')[0]}`" in page
    for step in method_pages.steps(name):
        assert method_pages.code_of(step["code"]) in page


def test_the_papers_algorithms_are_shown():
    for name in ("heterofl", "fedrolex", "fjord", "depthfl", "nefl", "fedmorph", "feddf", "ds-fl", "fed-et"):
        assert len(method_pages.steps(name)) >= 3, name


def test_code_that_is_gone_is_noticed():
    with pytest.raises(StopIteration):
        method_pages.code_of("nestling/methods/fedrolex.py:RollingPlan.gone")


def test_the_reference_has_every_public_name():
    pages = api_pages.api_pages()
    for name in nestling.__all__:
        value = getattr(nestling, name)
        homes = [package for package in api_pages.PACKAGES if f"{value.__module__}.".startswith(f"{package}.")]
        assert homes, f"nestling.{name} is in no package of docs/hooks/api_pages.py"
        assert f"| [`nestling.{name}`](" in pages["api/index.md"]
        assert f"::: {value.__module__}.{value.__qualname__}\n" in pages[f"api/{homes[0].rpartition('.')[2]}.md"]
    assert "::: nestling.axes.trace.trace" in pages["api/axes.md"]
    assert "::: nestling.methods.part.Part\n" in pages["api/methods.md"]


def test_all_made_pages_have_a_heading():
    pages = site.made_pages()
    assert {"methods/index.md", "api/index.md", "reference/settings.md", "tutorials/own_model.md"} <= pages.keys()
    for place, page in pages.items():
        assert "# " in page, place
    assert "| `local.lr` |" in pages["reference/settings.md"]
