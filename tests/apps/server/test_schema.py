import tracemalloc

import pytest

from ricnet.apps.server.limits import Refusal
from ricnet.apps.server.requests import Ask, Options, parse


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('{"features": [[1, 2], [1, null]]}', "features[1][1] should be a valid number."),
        ('{"features": [1, "a"]}', "features[1] should be a valid number, unable to parse string as a number."),
        ('{"features": [[1, NaN]]}', "features[0][1] should be a finite number."),
        ('{"rows": [{}, {"age": NaN}]}', "rows[1]: 'age' should be a finite number."),
        ('{"rows": {"a": 1, "age": -Infinity}}', "rows: 'age' should be a finite number."),
        ('{"rows": [{"age": 1e999}]}', "rows[0]: 'age' should be a finite number."),
        ('{"rows": [{}, 1]}', "rows[1] should be an object."),
        ('{"images": ["a", 5]}', "images[1] should be a valid string."),
        ('{"max_steps": 0}', "max_steps should be greater than or equal to 1."),
        ('{"max_step": 1}', "there is no field 'max_step' to fill in; see /docs for those there are."),
        ("[]", "the body should be an object."),
        ("{", "the body is no JSON that can be read (EOF while parsing an object at line 1 column 1)."),
    ],
)
def test_what_is_wrong_is_named_as_the_client_wrote_it(body: str, sentence: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse(Ask, body.encode())
    assert (refusal.value.status, str(refusal.value)) == (422, sentence)


def test_a_form_takes_options_alone() -> None:
    found = parse(Options, {"max_steps": "3", "max_ms": "2.5", "top": "2", "trace": "true"})
    assert (found.max_steps, found.max_ms, found.top, found.trace) == (3, 2.5, 2, True)
    with pytest.raises(Refusal, match="images is a text here; send files"):
        parse(Options, {"images": "photo.jpg"})


@pytest.mark.parametrize(
    "body",
    [
        b'{"features": [' + b'"a",' * 50_000 + b"1]}",
        b'{"features": [' + b'["a"],' * 30_000 + b"[1]]}",
        b'{"rows": [' + b'{"a": NaN},' * 20_000 + b"{}]}",
        b'{"rows": {' + b",".join(b'"%d":NaN' % i for i in range(20_000)) + b"}}",
        b'{"images": [' + b"1," * 100_000 + b"1]}",
        b"{" + b",".join(b'"%d":1' % i for i in range(20_000)) + b"}",
    ],
)
def test_a_hundred_thousand_mistakes_take_no_more_memory_than_one(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Refusal):
            parse(Ask, body)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(body)
    finally:
        tracemalloc.stop()
