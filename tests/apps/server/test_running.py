import asyncio
import socket

import pytest

from refusals import refusal
from ricnet.apps.server.application import address_of, listen


def test_answers_go_out_at_once() -> None:
    """Small packets are not held back, on the connections as asyncio makes them of what listens."""
    held_back: list[bool] = []

    async def meet() -> None:
        async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = writer.get_extra_info("socket")
            held_back.append(not line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(note, sock=listening):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                await reader.read()
                writer.close()
                await writer.wait_closed()

    asyncio.run(meet())
    assert held_back == [False]


def test_addresses_are_such_as_a_browser_takes() -> None:
    with listen("127.0.0.1", 0) as listening:
        assert address_of(listening) == f"http://127.0.0.1:{listening.getsockname()[1]}"
    with listen("0.0.0.0", 0) as listening:
        assert address_of(listening).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 70, "\ud800"])
def test_a_host_that_is_none_is_one_sentence(host: str) -> None:
    with refusal("--host"):
        listen(host, 0)
