"""Tokenizer, chat encoding, sizes, and the examples of the docstrings."""

import doctest
import importlib

import pytest

import dsv4

TEXTS = ["", "In the beginning", "na\u00efve \u65e5\u672c\u8a9e \U0001f642", " a  b\n\n\tc", "<think>x</think>"]


@pytest.mark.parametrize("text", TEXTS)
def test_encode_and_decode(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(id) for id in ids).decode() == text


@pytest.mark.parametrize("text", TEXTS)
def test_stream_decoder_gives_the_same_text(tokenizer, text):
    decoder = dsv4.StreamDecoder(tokenizer)
    assert "".join(decoder.push(id) for id in tokenizer.encode(text)) + decoder.finish() == text


def test_stream_decoder_ends_half_a_character(tokenizer):
    decoder = dsv4.StreamDecoder(tokenizer)
    half = tokenizer.encode("\U0001f642")[0]
    assert decoder.push(half) == ""
    assert decoder.finish() == "\ufffd"


def test_added_tokens_can_stay_text(tokenizer):
    assert len(tokenizer.encode("<think>")) == 1
    assert len(tokenizer.encode("<think>", recognize_added_tokens=False)) > 1


def test_special_tokens(tokenizer):
    ids = [tokenizer.bos_token_id, *tokenizer.encode("a"), tokenizer.eos_token_id]
    assert tokenizer.decode(ids, skip_special=True) == "a"
    assert tokenizer.decode(ids) != "a"
    assert tokenizer.find_token(tokenizer.decode(ids[:1])) == tokenizer.bos_token_id
    assert tokenizer.find_token("no such token") is None


def test_ids_outside_the_vocabulary_are_named(tokenizer):
    for id in (-1, tokenizer.vocab_size, 2**31 - 1):
        with pytest.raises(dsv4.InvalidArgumentError, match=str(id)):
            tokenizer.decode([id])
    with pytest.raises(dsv4.InvalidArgumentError, match="4294967296"):
        tokenizer.decode([2**32])
    with pytest.raises(TypeError):
        tokenizer.decode(["a"])
    with pytest.raises(TypeError, match="str"):
        tokenizer.decode("12")


def test_missing_folder():
    with pytest.raises(dsv4.NotFoundError, match="/no/such/folder"):
        dsv4.Tokenizer.load("/no/such/folder")


def test_render_chat_writes_each_role():
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}]
    text = dsv4.render_chat(messages)
    assert [text.index(letter) for letter in "SUAV"] == sorted(text.index(letter) for letter in "SUAV")
    assert text.endswith("</think>")
    assert dsv4.render_chat(messages, thinking=True).endswith("<think>")


def test_render_chat_with_tools():
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    assert "weather" in dsv4.render_chat([{"role": "user", "content": "U"}], tools=[tool])


@pytest.mark.parametrize("messages", ["text", [["role", "user"]], [{"role": "nobody", "content": ""}], [{"content": {1, 2}}]])
def test_render_chat_refuses(messages):
    with pytest.raises(dsv4.InvalidArgumentError):
        dsv4.render_chat(messages)


def test_dialects():
    messages = [{"role": "user", "content": "U"}]
    assert "Beyond maximum" in dsv4.render_chat(messages, thinking=True, dialect="v4-0731", effort="max")
    with pytest.raises(dsv4.InvalidArgumentError, match="v5"):
        dsv4.render_chat(messages, dialect="v5")


def test_parse_output_finds_calls():
    tag = "\uff5cDSML\uff5c"
    text = (f'<{tag}tool_calls>\n<{tag}invoke name="f">\n<{tag}parameter name="x" string="false">3</{tag}parameter>\n'
            f"</{tag}invoke>\n</{tag}tool_calls>")
    message = dsv4.parse_output("why</think>Here.\n\n" + text, thinking=True)
    assert (message["reasoning_content"], message["content"]) == ("why", "Here.")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"x": 3}'}


@pytest.mark.parametrize("size, number", [(7, 7), ("7", 7), ("2GB", 2 * 10**9), ("2GiB", 2 << 30), ("0.5 m", 1 << 19)])
def test_sizes(size, number):
    from dsv4._model import num_bytes

    assert num_bytes(size) == number


@pytest.mark.parametrize("size", [-1, "", "GB", "5 parsecs", 1.5])
def test_wrong_sizes(size):
    with pytest.raises(dsv4.InvalidArgumentError, match="size"):
        dsv4.Engine(gpu_memory=size)


@pytest.mark.parametrize("name", ["dsv4", "dsv4._dsv4", "dsv4._llm", "dsv4._params", "dsv4._chat", "dsv4._model", "dsv4.hf"])
def test_examples_of_docstrings(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, extraglobs={"LLM": dsv4.LLM, "SamplingParams": dsv4.SamplingParams})
    assert failed == 0


def test_every_public_name_has_a_docstring():
    missing = []
    for name in dsv4.__all__:
        thing = getattr(dsv4, name)
        members = {f"{name}.{m}": getattr(thing, m) for m in vars(thing) if not m.startswith("_")} if isinstance(thing, type) else {}
        documented = {n: t for n, t in {name: thing, **members}.items() if callable(t) or isinstance(t, property)}
        missing += [n for n, t in documented.items() if not getattr(t, "__doc__", None)]
    assert missing == []
