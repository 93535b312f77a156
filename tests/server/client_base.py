"""Shared by client_rows.py and client_replays.py: what a client of client_table.py is, and what its cells demand."""

import json
import time
from importlib import metadata
from typing import Literal

QUESTION, ANSWER = "What is 27 + 48?", "27 + 48 = 75."
PARIS = "What is the weather in Paris?"
WEATHER = {"city": "Paris", "temperature": 18, "unit": "celsius", "sky": "clear"}
CELLS = ("chat", "stream", "tools")
NONE = "none"  # the value of a cell that the client does not have
CALLED = []  # the cities of the model's calls


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Get the current weather in a city.

    Args:
        city: The name of the city.
        unit: The unit of the temperature.
    """
    CALLED.append(city)
    return json.dumps(WEATHER)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "The name of the city."},
                                           "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the current weather in a city.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}


def results(calls):
    """Runs the calls of a message of OpenAI's chat API, as objects of a package. Returns the messages with the results."""
    arguments = [call.function.arguments for call in calls]
    arguments = [json.loads(value) if isinstance(value, str) else value for value in arguments]
    return [{"role": "tool", "tool_call_id": call.id, "content": get_weather(**value)} for call, value in zip(calls, arguments)]


class Client:
    """`chat` returns a text, `stream` the pieces of one, `tools` the text after the function was called. The text must
    be ANSWER, and the text after the call must contain the temperature; a client with a prompt of its own checks more
    loosely (`accept`)."""

    PACKAGE, GROUP, NOTE = "", "", ""

    def __init__(self, url):
        self.url, self.v1 = url, url + "/v1"

    def version(self):
        return metadata.version(self.PACKAGE)

    def accept(self, text):
        assert text == ANSWER, "the answer is %r" % text

    def check_chat(self):
        self.accept(self.chat())

    def check_stream(self):
        pieces = list(self.stream())
        assert len([p for p in pieces if p]) > 1, "the answer came as %r" % pieces
        self.accept("".join(pieces))

    def check_tools(self):
        CALLED.clear()
        text = self.tools()
        assert CALLED == ["Paris"], "the function was called with %r" % CALLED
        assert "18" in text, "the answer after the call is %r" % text

    def row(self):
        begin = time.time()
        row = {"client": self.NAME, "version": self.version(), "note": self.NOTE}
        for cell in CELLS:
            if not hasattr(self, cell):
                row[cell] = NONE
                continue
            try:
                getattr(self, "check_" + cell)()
                row[cell] = None
            except Exception as error:
                row[cell] = ("%s: %s" % (type(error).__name__, error))[:400]
        row["seconds"] = round(time.time() - begin, 1)
        return row
