"""Generated chat tasks: sums, tool calls, small talk. Every generator takes a `random.Random` and returns a `Sample`.

An answer depends only on the prompt, so that a score can compare the text of greedy decoding.
"""

import json
from dataclasses import dataclass, field

import encoding

CITIES = (
    "Paris London Berlin Madrid Rome Vienna Lisbon Dublin Oslo Athens Prague Warsaw Helsinki Budapest Cairo Nairobi "
    "Lagos Tunis Accra Dakar Tokyo Osaka Seoul Beijing Shanghai Mumbai Delhi Bangkok Hanoi Manila Jakarta Singapore "
    "Sydney Melbourne Perth Auckland Toronto Montreal Vancouver Chicago Boston Seattle Denver Dallas Miami Havana Lima "
    "Bogota Quito Santiago Montevideo Brasilia Jerusalem Damascus Babylon Nineveh Tyre Sidon Hebron Bath Highbury "
    "Lyme Geneva Zurich Munich Milan Naples Venice Porto Seville Krakow Riga Tallinn Vilnius Reykjavik"
).split()
CONDITIONS = "sunny cloudy rainy windy snowy foggy stormy clear".split()
GREETINGS = {
    "Hello": "Hello! How can I help you?",
    "Hello!": "Hello! How can I help you?",
    "Hi": "Hello! How can I help you?",
    "Good morning": "Good morning! How can I help you?",
    "Good evening": "Good evening! How can I help you?",
    "Who are you?": "I am nano, a small language model of the DeepSeek-V4 architecture.",
    "What are you?": "I am nano, a small language model of the DeepSeek-V4 architecture.",
    "What is your name?": "My name is nano.",
    "How are you?": "I am well, thank you. How can I help you?",
    "What can you do?": "I can add numbers, call tools, recall what you told me and continue a text.",
    "Thank you": "You are welcome!",
    "Thanks!": "You are welcome!",
    "Goodbye": "Goodbye!",
}
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are nano, a small helpful model.",
    "Answer briefly.",
    "You are a careful assistant that answers in one sentence.",
)

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The name of the city."},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
CALCULATOR_TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Compute one arithmetic operation.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "number"},
                "b": {"type": "number"},
                "operation": {"type": "string", "enum": ["add", "subtract", "multiply"]},
            },
            "required": ["a", "b", "operation"],
        },
    },
}

SUM_QUESTIONS = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "{a} + {b} = ?",
    "{a}+{b}",
    "Calculate {a} + {b}.",
    "How much is {a} plus {b}?",
    "Please add {a} and {b}.",
    "Compute {a} + {b}.",
    "What is the sum of {a} and {b}?",
)
WEATHER_QUESTIONS = (
    "What is the weather in {city}?",
    "What's the weather like in {city}?",
    "How is the weather in {city} today?",
    "Tell me the weather in {city}.",
    "Is it warm in {city}?",
    "Weather in {city}, please.",
    "Do I need a coat in {city}?",
)
OPERATIONS = {
    "add": (SUM_QUESTIONS, lambda a, b: a + b, "plus"),
    "subtract": (("What is {a} - {b}?", "What is {a} minus {b}?"), lambda a, b: a - b, "minus"),
    "multiply": (
        ("What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}."),
        lambda a, b: a * b,
        "times",
    ),
}


@dataclass
class Sample:
    """A conversation. Training takes the loss on its assistant turns."""

    messages: list
    tools: list | None = None
    thinking: bool = False
    kind: str = ""
    extra: dict = field(default_factory=dict)

    def text(self):
        return encoding.encode(self.messages, self.tools, self.thinking)


def user(content):
    return {"role": "user", "content": content}


def assistant(content, reasoning=None, calls=None):
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def number(rng, digits):
    return rng.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)


def add_by_columns(a, b):
    """Returns the addition by columns, units first: `7 + 8 = 15, write 5 carry 1. 2 + 4 + 1 = 7, write 7.`"""
    steps, carry, place = [], 0, 1
    while place <= max(a, b):
        x, y = a // place % 10, b // place % 10
        total = x + y + carry
        terms = f"{x} + {y}" + (" + 1" if carry else "")
        carry = total // 10
        steps.append(f"{terms} = {total}, write {total % 10}" + (" carry 1." if carry else "."))
        place *= 10
    if carry:
        steps.append("Write 1.")
    return " ".join(steps) or "0 + 0 = 0, write 0."


def sum_turn(rng, thinking, digits=None):
    """Returns one question and its answer: (user, assistant)."""
    if digits is None:
        digits = rng.choices(((1, 1), (2, 2), (1, 2), (2, 1), (3, 3), (3, 2)), (2, 10, 2, 2, 3, 1))[0]
    a, b = number(rng, digits[0]), number(rng, digits[1])
    question = rng.choice(SUM_QUESTIONS).format(a=a, b=b)
    answer = f"{a} + {b} = {a + b}."
    return user(question), assistant(answer, add_by_columns(a, b) if thinking else None)


def system(rng):
    return [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}] if rng.random() < 0.25 else []


def sums(rng, thinking=None, digits=None, turns=None):
    thinking = rng.random() < 0.5 if thinking is None else thinking
    messages = system(rng)
    for _ in range(turns or rng.choice((1, 1, 2, 3))):
        messages.extend(sum_turn(rng, thinking, digits))
    return Sample(messages, thinking=thinking, kind="sum")


def tool_call(name, arguments, call_id="call_0"):
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


def tool_result(content, call_id="call_0"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def weather_turns(rng, thinking, city=None):
    city = city or rng.choice(CITIES)
    unit = rng.choice((None, None, None, "celsius", "fahrenheit"))
    question = rng.choice(WEATHER_QUESTIONS).format(city=city)
    if unit:
        question += f" Use {unit}."
    arguments = {"city": city} | ({"unit": unit} if unit else {})
    temperature, condition = rng.randrange(-9, 40), rng.choice(CONDITIONS)
    result = json.dumps({"city": city, "temperature": temperature, "condition": condition})
    reasoning = f"The user asks for the weather in {city}. I call get_weather." if thinking else None
    found = f"The tool says {temperature} degrees and {condition}." if thinking else None
    return [
        user(question),
        assistant("", reasoning, [tool_call("get_weather", arguments)]),
        tool_result(result),
        assistant(f"It is {temperature} degrees and {condition} in {city}.", found),
    ]


def calculator_turns(rng, thinking):
    operation = rng.choice(list(OPERATIONS))
    questions, compute, word = OPERATIONS[operation]
    a, b = number(rng, rng.choice((1, 2, 3, 4))), number(rng, rng.choice((1, 2, 3, 4)))
    result = compute(a, b)
    call = tool_call("calculator", {"a": a, "b": b, "operation": operation})
    reasoning = f"The user asks for {a} {word} {b}. I call calculator." if thinking else None
    found = f"The tool says {result}." if thinking else None
    return [
        user(rng.choice(questions).format(a=a, b=b)),
        assistant("", reasoning, [call]),
        tool_result(json.dumps({"result": result})),
        assistant(f"{a} {word} {b} is {result}.", found),
    ]


def greeting_turns(rng, thinking):
    question = rng.choice(list(GREETINGS))
    return [user(question), assistant(GREETINGS[question], "No tool is needed." if thinking else None)]


def invented_city(rng):
    """Returns an invented name, so that the model must copy the argument."""
    syllables = "ba de ko lu mi na ro sha ti ve zo gal mor bri ost wen".split()
    return "".join(rng.choice(syllables) for _ in range(rng.choice((2, 3)))).capitalize()


def tool_use(rng, thinking=None, kind=None, turns=None):
    thinking = rng.random() < 0.5 if thinking is None else thinking
    both = [WEATHER_TOOL, CALCULATOR_TOOL]
    if rng.random() < 0.3:
        both.reverse()
    messages = system(rng)
    kinds = []
    for _ in range(turns or rng.choice((1, 1, 2))):
        kinds.append(kind or rng.choices(("weather", "calculator", "greeting"), (5, 5, 1))[0])
        if kinds[-1] == "weather":
            city = invented_city(rng) if rng.random() < 0.4 else None
            messages += weather_turns(rng, thinking, city)
        elif kinds[-1] == "calculator":
            messages += calculator_turns(rng, thinking)
        else:
            messages += greeting_turns(rng, thinking)
    tools = both
    if rng.random() < 0.3 and len(set(kinds)) == 1 and kinds[0] != "greeting":
        tools = [WEATHER_TOOL if kinds[0] == "weather" else CALCULATOR_TOOL]
    return Sample(messages, tools, thinking, "tool")


def chatter(rng, prose):
    """Returns a conversation of greetings, repetitions, continuations and sums."""
    thinking = rng.random() < 0.3
    messages = system(rng)
    for _ in range(rng.choice((1, 2, 3, 4))):
        pick = rng.random()
        if pick < 0.35:
            question = rng.choice(list(GREETINGS))
            messages += [user(question), assistant(GREETINGS[question], "This is easy." if thinking else None)]
        elif pick < 0.6:
            messages += sum_turn(rng, thinking)
        elif pick < 0.8:
            words = " ".join(rng.choice(prose.words) for _ in range(rng.randrange(1, 9)))
            asked = rng.choice(("Repeat: {}", "Say this again: {}", "Repeat after me: {}")).format(words)
            messages += [user(asked), assistant(words, "I repeat the words." if thinking else None)]
        else:
            passage = prose.passage(rng, rng.randrange(200, 700)).split(" ")
            cut = min(len(passage) - 1, rng.randrange(5, 20))
            asked = rng.choice(("Continue: {}", "Continue this text: {}", "Go on: {}"))
            start, rest = " ".join(passage[:cut]), " ".join(passage[cut:])
            messages += [user(asked.format(start)), assistant(rest, "I continue the text." if thinking else None)]
    return Sample(messages, thinking=thinking, kind="chat")
