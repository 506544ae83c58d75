import tracemalloc

import pytest

from ricnet.apps.server.limits import Refusal
from ricnet.apps.server.requests import Ask, Options, parse


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ('{"features": [[1, 2], [1, null]]}', "features[1][1] "),
        ('{"features": [1, "a"]}', "features[1] "),
        ('{"features": [[1, NaN]]}', "features[0][1] "),
        ('{"rows": [{}, 1]}', "rows[1] "),
        ('{"images": ["a", 5]}', "images[1] "),
        ('{"max_steps": 0}', "max_steps "),
        ('{"max_step": 1}', "there is no field 'max_step' "),
        ("[]", "the body is no JSON object; see /docs "),
        ("{", "the body is no JSON "),
    ],
)
def test_what_is_wrong_is_named_as_the_client_wrote_it(body: str, place: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse(Ask, body.encode())
    assert refusal.value.status == 422
    assert str(refusal.value).startswith(place)
    assert "\n" not in str(refusal.value)


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
        b'{"rows": [' + b"1," * 20_000 + b"{}]}",
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
