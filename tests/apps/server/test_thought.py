"""How the page interprets an answer, tested without a browser."""

import json
import shutil
import subprocess

import pytest

from ricnet.apps.server.application import PAGE

SCRIPT = """
const load = async source => import("data:text/javascript," + encodeURIComponent(source));
let given = "";
for await (const part of process.stdin) given += part;
const { source, answer, model } = JSON.parse(given);
const { Thought } = await load(source);
console.log(new Thought(answer, model).second);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
def test_the_strongest_rival_is_second_at_the_halt() -> None:
    """Not a class that was believed in more at an earlier step, or after the halt."""
    beliefs = [[0.1, 0.2, 0.7, 0.0], [0.6, 0.25, 0.15, 0.0], [0.2, 0.1, 0.1, 0.6]]
    answer = {"answer": "a", "steps": 2, "beliefs": beliefs, "values": None, "halt_probability": None}
    given = {"source": (PAGE / "thought.js").read_text(), "answer": answer, "model": {"classes": list("abcd")}}
    said = subprocess.run(
        ["node", "--input-type=module", "--eval", SCRIPT], input=json.dumps(given), capture_output=True, text=True
    )
    assert said.stdout.strip() == "1", said.stderr
