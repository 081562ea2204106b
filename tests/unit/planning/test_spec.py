import pytest

from tilewright.errors import UsageError
from tilewright.planning import Spec
from tilewright.planning.spec import MAX_CHARS, MAX_DEPTH


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("greedy", Spec("greedy")),
        (" greedy ", Spec("greedy")),
        ("greedy{}", Spec("greedy")),
        ("a{b=1}", Spec("a", (("b", "1"),))),
        ("a { b = 1 , c-d = x y , }", Spec("a", (("b", "1"), ("c_d", "x y")))),
        ("a{b=[1, 2], c=d{e=1, f=2}}", Spec("a", (("b", "[1, 2]"), ("c", "d{e=1, f=2}")))),
        ('a{b="}, \\"{", c=x=y}', Spec("a", (("b", '"}, \\"{"'), ("c", "x=y")))),
        ("models/my chip.yaml", Spec("models/my chip.yaml")),
    ],
)
def test_texts_are_read(text: str, spec: Spec) -> None:
    assert Spec.parse(text) == spec
    assert Spec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'': expected a name, or a name with options: name{option=value}."),
        ("{a=1}", "'{a=1}': expected a name, or a name with options: name{option=value}."),
        ("a}", "'a}': expected a name, or a name with options: name{option=value}."),
        ("a{b=1", "a: the brace of its options is not closed."),
        ("a{b=1} c", "a: 'c' stands behind the closing brace; leave it out."),
        ("a{b=1}}", "a: '}' stands behind the closing brace; leave it out."),
        ("a{b=[1}", "a: '}' closes nothing."),
        ("a{b=]}", "a: ']' closes nothing."),
        ("a{b}", "a: 'b' is no option; write option=value."),
        ("a{b=}", "a: 'b=' is no option; write option=value."),
        ("a{=1}", "a: '=1' is no option; write option=value."),
        ("a{,}", "a: '' is no option; write option=value."),
        ("a{b=1, b=2}", "a: option b is given twice."),
        ("a{b-c=1, b_c=2}", "a: option b_c is given twice."),
        ('a{b="1}', "a: a quote is not closed."),
    ],
)
def test_other_texts_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Spec.parse(text)
    assert str(caught.value) == message


def test_length_and_nesting_are_bounded() -> None:
    with pytest.raises(UsageError, match=f"has {MAX_CHARS + 1} characters; at most {MAX_CHARS} are read"):
        Spec.parse("a" * (MAX_CHARS + 1))
    deep = "x{a=" * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    assert Spec.parse(deep).name == "x"
    with pytest.raises(UsageError, match=f"more than {MAX_DEPTH} deep"):
        Spec.parse(f"x{{a={deep}}}")


def test_an_error_is_short_whatever_the_text_is() -> None:
    with pytest.raises(UsageError) as caught:
        Spec.parse("a" * 2000 + "{" + "b" * 2000 + "}")
    assert len(str(caught.value)) < 200
