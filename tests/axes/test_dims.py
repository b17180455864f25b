"""The grammar of dims: what is printed can be read, and what cannot be read is quoted."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.axes.dims import NAME, Dims, Fixed, Leaf, Product, Sum, factors, leaves, names_in, parse, resized
from nestling.errors import AxisError
from tests.axes.axes_prove import one_sentence

calm = settings(deadline=None, max_examples=60)  # nothing here depends on the clock
SIZES = {"a": 2, "heads": 4, "layer1.0.conv-1": 8, "_x": 3}
leaf = st.sampled_from([Leaf(name, size) for name, size in SIZES.items()])
number = st.integers(1, 99).map(Fixed)


def groups(part):
    several = st.lists(part, min_size=2, max_size=3).map(tuple)
    return several.map(Product) | several.map(Sum)


dim = st.recursive(leaf | number, groups, max_leaves=8)
dims = st.lists(dim, max_size=4).map(Dims)


@calm
@given(dims)
def test_printed_dims_are_read_back(value):
    assert parse(str(value), SIZES) == value


@calm
@given(dims)
def test_spaces_do_not_matter(value):
    text = str(value)
    wide = "  " + text.replace("(", " ( ").replace(")", " ) ").replace("+", " +\t") + " "
    tight = text.replace("( ", "(").replace(" )", ")").replace(" + ", "+")
    assert parse(wide, SIZES) == parse(tight, SIZES) == value


@calm
@given(dims)
def test_names_are_listed_in_order_each_once(value):
    actual = [part.name for one in value for part in leaves(one)]
    assert names_in(str(value)) == list(dict.fromkeys(actual))


@calm
@given(dim)
def test_sizes_are_products_and_sums(value):
    def size(part):
        if isinstance(part, Fixed | Leaf):
            return part.size
        sizes = [size(inner) for inner in part.parts]
        if isinstance(part, Sum):
            return sum(sizes)
        result = 1
        for one in sizes:
            result *= one
        return result

    assert value.size == size(value)
    assert Dims([value]).shape == (value.size,)


@calm
@given(dim)
def test_factors_hold_no_product_and_keep_the_size(value):
    parts = list(factors(value))
    total = 1
    for part in parts:
        assert not isinstance(part, Product)
        total *= part.size
    assert total == value.size
    assert [x.name for part in parts for x in leaves(part)] == [x.name for x in leaves(value)]


@calm
@given(dim)
def test_only_named_axes_are_resized(value):
    assert resized(value, {}) == value
    sizes = {x.name: x.size + 1 for x in leaves(value)}
    assert [(x.name, x.size) for x in leaves(resized(value, sizes))] == [(x.name, sizes[x.name]) for x in leaves(value)]


def test_a_product_is_read_in_row_major_order():
    (rows, columns) = parse("(3 heads a) (a + heads)", SIZES)
    assert rows == Product((Fixed(3), Leaf("heads", 4), Leaf("a", 2)))
    assert columns == Sum((Leaf("a", 2), Leaf("heads", 4)))
    assert parse("(a heads + 2)", SIZES)[0] == Sum((Product((Leaf("a", 2), Leaf("heads", 4))), Fixed(2)))


def test_parentheses_around_one_thing_say_nothing():
    assert parse("((a)) (3)", SIZES) == parse("a 3", SIZES)


@pytest.mark.parametrize("text", ["", "   ", "\t\n"])
def test_nothing_written_is_a_tensor_of_no_dims(text):
    assert parse(text, SIZES) == Dims([])


@pytest.mark.parametrize(
    "text",
    [
        "(a",
        "(a + (heads 3)",
        "a)",
        "()",
        "( )",
        "(a + )",
        "(+ a)",
        "(a + + heads)",
        "a + heads",
        "+",
        "a * heads",
        "a, heads",
        "a/2",
        "unknown",
        "(a nobody)",
        "a -heads",
        "é",
        "a\nb",
        "-1",
        "2.5",
    ],
)
def test_what_cannot_be_read_is_quoted(text):
    with pytest.raises(AxisError) as caught:
        parse(text, SIZES)
    assert one_sentence(caught.value)
    assert repr(text) in str(caught.value)


def test_a_sum_without_parentheses_is_not_blamed_on_a_parenthesis():
    with pytest.raises(AxisError) as caught:
        parse("a + heads", SIZES)
    assert "parenthesis that was never opened" not in str(caught.value)


@pytest.mark.parametrize("text", ["3heads", "(2a heads)", "heads3 4a"])
def test_a_number_glued_to_a_name_is_a_slip_of_the_pen(text):
    """Read as two dims, ``3heads`` would silently be another shape."""
    with pytest.raises(AxisError):
        parse(text, SIZES | {"heads3": 2})


def test_nesting_without_end_cannot_break_the_parser():
    """`AxisMap.from_json` reads what may come from anywhere: read it or refuse it, but never run out of stack."""
    with contextlib.suppress(AxisError):
        assert parse("(" * 5000 + "a" + ")" * 5000, SIZES) == parse("a", SIZES)


def test_a_number_without_end_cannot_break_the_parser():
    with pytest.raises(AxisError):
        parse("9" * 5000, SIZES)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("a", True),
        ("_a.b-3", True),
        ("a1", True),
        ("1a", False),
        ("", False),
        (".a", False),
        ("a b", False),
        ("a\n", False),
    ],
)
def test_names(name, good):
    assert bool(NAME.match(name)) is good
