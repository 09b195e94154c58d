"""Test the expressions of references: places, functions, limits, and what is refused."""

from typing import Any

import pytest

from understudy.sources.task_files.reference_expressions import (
    FUNCTIONS,
    MAX_CHARACTERS,
    MAX_DEPTH,
    Place,
    evaluate,
    find_place,
    find_places,
    parse_expression,
    render_expression,
)

NEWS = {"data": [{"url": "a", "n": 4}, {"url": "b", "n": 1}, {"n": 7}]}
BARS = {"bars": [{"c": 10.0}, {"c": 12.0}], "text": "Up 3% and up 5%"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("step1.data[0].url", "a"),
        ("step1.data.1.url", "b"),
        ("step1.data[-1].n", 7),
        ("step1.data[][url]", ["a", "b", None]),
        ("step1.data[][][n]", [4, 1, 7]),
        ("step1.data[:2][][url]", ["a", "b"]),
        ("step1.data[1:][][n]", [1, 7]),
        ("first(step1.data[][url])", "a"),
        ("last(step1.data[][n])", 7),
        ("first(step3.none)", None),
        ("head(step1.data[][url], 2)", ["a", "b"]),
        ("safe_index(step1.data[][url], 5)", None),
        ('safe_attr(first(step1.data), "url")', "a"),
        ("safe_attr(first(step1.data), url)", "a"),
        ("len(step1.data)", 3),
        ("count(step1.data[])", 3),
        ("sum(step1.data[][n]) / len(step1.data)", 4.0),
        ("-step1.data[0].n + 2 * 3 - 1", 1),
        ("median(step1.data[][n])", 4),
        ("mean(step1.data[][n])", 4.0),
        ("max(step1.data[][n]) > 6", True),
        ("min(3, step1.data[0].n) == 4", False),
        ("step3.gone is not None", False),
        ("round(10 / 3, 2)", 3.33),
        ("abs(-2)", 2),
        ('int("12") + float("0.5")', 12.5),
        ("str(step1.data[0])", '{"url": "a", "n": 4}'),
        ('join(head(step1.data[][url], 2), "/")', "a/b"),
        ("unique(concat(step1.data[][n], step1.data[][n]))", [4, 1, 7]),
        ("sorted(step1.data[][n])", [1, 4, 7]),
        ("pct_change_last_day(step2.bars)", pytest.approx(0.2)),
        ("pct_change_last_day(step2.bars[][c])", pytest.approx(0.2)),
        ('regex_extract_all("[0-9]{1,2}%", step2.text)', ["3%", "5%"]),
        ('first(regex_extract_all("(?i)(UP) ([0-9])", step2.text))', ["Up", "3"]),
        ("'MSFT'", "MSFT"),
        ("step4.n", 4),
        ("step5.n", 4),
        ('step3["a key"]', 1),
    ],
)
def test_expressions_have_values(text: str, value: Any) -> None:
    results = [NEWS, BARS, {"none": [], "gone": None, "a key": 1}, '[{"n": 4}]', {"data": {"n": 4}}]
    assert evaluate(parse_expression(text), results) == value
    again = render_expression(parse_expression(text))
    assert evaluate(parse_expression(again), results) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "open('x')",
        "step1.data.append(1)",
        "(lambda: 1)()",
        "[x for x in step1.data]",
        "f'{step1}'",
        "2 ** 9",
        "first(*step1)",
        "head(step1, n=2)",
        "step1 if step2 else step3",
        "step1.data[::2]",
        "step1.data[step2]",
        "b'x'",
        "1 < 2 < 3",
        "x := 1",
        "price:.2f",
        "'{:.2f}'.format(price)",
        "two words",
        "",
        "'",
    ],
)
def test_other_code_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="regex_extract_all"):
        evaluate(parse_expression(text), [1, 2, 3])


@pytest.mark.parametrize(
    "text",
    ["-" * (MAX_DEPTH + 1) + "1", "first(" * (MAX_DEPTH + 1) + "step1" + ")" * (MAX_DEPTH + 1), "9" * 3000, "(" * 300],
)
def test_long_and_deep_expressions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"{MAX_DEPTH}|{MAX_CHARACTERS}|cannot be read"):
        parse_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "step1 / 0",
        "step1 + 'x'",
        "step1 * step2",
        "1e200 * 1e200",
        "float('inf')",
        "median(step3)",
        "first(step1)",
        "first()",
        "round(1.5, 1000000000)",
        "first.__class__",
        "len(5)",
        "int('x')",
        "'a' < 1",
        "step3[0]",
        "step1.x",
        "step9",
        'regex_extract_all("(", "x")',
    ],
)
def test_expression_without_a_value_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        evaluate(parse_expression(text), [5, "word", []])


@pytest.mark.slow
def test_search_that_takes_too_long_is_an_error() -> None:
    with pytest.raises(ValueError, match="pattern"):
        evaluate(parse_expression('regex_extract_all("(a+)+$", step1)'), ["a" * 60 + "b"])


def test_every_function_refuses_what_it_does_not_take() -> None:
    for name in FUNCTIONS:
        with pytest.raises(ValueError, match=name):
            evaluate(parse_expression(f"{name}(1, 2, 3, 4, 5, 'x', None)"), [])


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("step1.a.b", ("a", "b")),
        ("step1.a[][b]", ("a", "[]", "b")),
        ("step1.a[][][b]", ("a", "[]", "b")),
        ("first(step1.a[][b])", ("a", "0", "b")),
        ("safe_index(step1.a[], 2)", ("a", "2")),
        ("safe_attr(first(step1.a), key)", ("a", "0", "key")),
        ("head(step1.a, 3)", ("a", "[]")),
        ("step1", ()),
        ("last(step1.a)", None),
        ("step1.a + 1", None),
    ],
)
def test_place_of_an_expression(text: str, path: tuple[str, ...] | None) -> None:
    assert find_place(parse_expression(text)) == (None if path is None else Place(1, path))


def test_places_that_are_computed_with_need_numbers_and_lists() -> None:
    found = find_places(parse_expression("step1.v / median(step2.rows) > len(step3.names)"))
    assert list(found) == [
        (Place(1, ("v",)), True),
        (Place(2, ("rows", "[]")), True),
        (Place(3, ("names",)), False),
    ]
