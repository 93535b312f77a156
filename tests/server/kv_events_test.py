#!/usr/bin/env python3
"""Reads KV events as llm-d-kv-cache does: a SUB socket, three frames, MessagePack, blocks by their engine's hash."""

import ctypes
import ctypes.util
import re
import struct
import unittest

from support import SLOWNESS, Server, ServerTestCase, main, wait_for

PAGE = 256
ZMQ = ctypes.util.find_library("zmq")
STORY = "And it came to pass in those days that the tower stood by the sea. "


def unpack(data):
    """Decodes one value of MessagePack, of the types in vLLM's events."""
    def take(n):
        nonlocal data
        piece, data = data[:n], data[n:]
        return piece

    def number(form):
        return struct.unpack(">" + form, take(struct.calcsize(form)))[0]

    def value():
        kind = take(1)[0]
        if kind < 0x80:
            return kind
        if 0x90 <= kind < 0xa0:
            return [value() for _ in range(kind & 15)]
        if 0xa0 <= kind < 0xc0:
            return take(kind & 31).decode()
        if kind >= 0xe0:
            return kind - 256
        simple = {0xc0: None, 0xc2: False, 0xc3: True}
        if kind in simple:
            return simple[kind]
        numbers = {0xca: "f", 0xcb: "d", 0xcc: "B", 0xcd: "H", 0xce: "I", 0xcf: "Q", 0xd0: "b", 0xd1: "h", 0xd2: "i", 0xd3: "q"}
        if kind in numbers:
            return number(numbers[kind])
        if kind in (0xd9, 0xda):
            return take(number({0xd9: "B", 0xda: "H"}[kind])).decode()
        if kind in (0xdc, 0xdd):
            return [value() for _ in range(number({0xdc: "H", 0xdd: "I"}[kind]))]
        raise ValueError("MessagePack type %02x" % kind)

    result = value()
    if data:
        raise ValueError("%d bytes are left" % len(data))
    return result


class Subscriber:
    SUB, SUBSCRIBE, RCVTIMEO, LINGER = 2, 6, 27, 17

    def __init__(self, port, topic):
        self.zmq = ctypes.CDLL(ZMQ)
        for name in ["zmq_ctx_new", "zmq_socket"]:
            getattr(self.zmq, name).restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.zmq.zmq_ctx_new())
        self.socket = ctypes.c_void_p(self.zmq.zmq_socket(self.context, self.SUB))
        self.option(self.RCVTIMEO, int(500 * SLOWNESS))
        self.option(self.LINGER, 0)
        self.zmq.zmq_setsockopt(self.socket, self.SUBSCRIBE, topic.encode(), ctypes.c_size_t(len(topic.encode())))
        if self.zmq.zmq_connect(self.socket, b"tcp://127.0.0.1:%d" % port) != 0:
            raise OSError("cannot connect")

    def option(self, name, value):
        number = ctypes.c_int(value)
        self.zmq.zmq_setsockopt(self.socket, name, ctypes.byref(number), ctypes.c_size_t(4))

    def receive(self):
        """[topic, number, payload], or None if nothing arrived for a while."""
        frames = []
        for _ in range(3):
            buffer = ctypes.create_string_buffer(1 << 22)
            size = self.zmq.zmq_recv(self.socket, buffer, ctypes.c_size_t(len(buffer)), 0)
            if size < 0:
                return None
            frames.append(buffer.raw[:size])
        return frames

    def close(self):
        self.zmq.zmq_close(self.socket)
        self.zmq.zmq_ctx_term(self.context)


class Index:
    """The data of llm-d's indexer about one pod: the tokens of each block, by the engine's hash and medium."""

    def __init__(self):
        self.blocks, self.numbers, self.cleared, self.unknown = {}, [], 0, 0

    def add(self, frames):
        _, number, payload = frames
        self.numbers.append(struct.unpack(">Q", number)[0])
        _, events, rank = unpack(payload)
        assert rank == 0
        for event in events:
            if event[0] == "AllBlocksCleared":
                self.blocks.clear()
                self.cleared += 1
            elif event[0] == "BlockStored":
                _, hashes, parent, ids, block_size, lora, medium = event
                assert block_size == PAGE and lora is None and len(ids) == PAGE * len(hashes)
                prefix = [] if parent is None else self.blocks[parent, medium]
                for i, name in enumerate(hashes):
                    prefix = prefix + ids[i * PAGE:(i + 1) * PAGE]
                    assert (name, medium) not in self.blocks
                    self.blocks[name, medium] = prefix
            else:
                kind, hashes, medium = event
                assert kind == "BlockRemoved"
                for name in hashes:
                    if self.blocks.pop((name, medium), None) is None:
                        self.unknown += 1  # from before the first message that arrived

    def longest(self, ids, medium="gpu"):
        """The number of a prompt's tokens that the pod is expected to have."""
        return max([len(p) for (_, m), p in self.blocks.items() if m == medium and ids[:len(p)] == p], default=0)


@unittest.skipUnless(ZMQ, "libzmq is not on this machine (scripts/setup installs it)")
class KvEvents(ServerTestCase):
    TOPIC = "kv@10.0.0.7:8000@flash"
    FLAGS = ["--kv-events", 0, "--kv-events-topic", TOPIC, "--kv-budget", 12000000, "--default-thinking", "off"]

    def setUp(self):
        port = int(re.search(r"kv-events port=(\d+) topic=", self.server.read_log())[1])
        self.subscriber = Subscriber(port, "kv@")
        self.addCleanup(self.subscriber.close)
        self.index = Index()
        # A subscription takes a moment, so requests are repeated until the first event arrives.
        for i in range(100):
            self.complete([5 + i] * (PAGE + 2), max_tokens=1)
            frames = self.subscriber.receive()
            if frames:
                break
        self.assertTrue(frames)
        self.index.add(frames)
        self.made = i + 1
        self.read_until(lambda: self.index.longest([5 + i] * (PAGE + 2)) == PAGE)

    def read_until(self, found):
        def read():
            while frames := self.subscriber.receive():
                self.assertEqual(frames[0].decode(), self.TOPIC)
                self.index.add(frames)
            return found()

        wait_for(read)

    def test_a_prompt_is_found_by_its_rendered_ids_and_goes_with_its_cuts(self):
        messages = [{"role": "user", "content": STORY * 60}]
        ids = self.server.post("/v1/chat/completions/render", {"messages": messages}).json["token_ids"]
        self.assertEqual(self.index.longest(ids), 0)
        self.chat(messages, max_tokens=2)
        held = (len(ids) - 1) // PAGE * PAGE
        self.read_until(lambda: self.index.longest(ids) >= held)
        self.assertEqual(self.index.longest(ids), held)
        again = self.chat(messages, max_tokens=2)["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreaterEqual(again, held)
        before = len(self.index.blocks)
        for i in range(12):  # until the block was removed
            self.complete([20 + i] * 2 * PAGE, max_tokens=1)
        self.assertGreater(self.server.metric("dsv4_prefix_evictions_total"), 0)
        self.read_until(lambda: self.index.longest(ids) < held)
        self.assertGreater(before, 0)
        numbers = self.index.numbers
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
        self.assertLessEqual(self.index.unknown, self.made - 1)


@unittest.skipUnless(ZMQ, "libzmq is not on this machine (scripts/setup installs it)")
class Start(unittest.TestCase):
    def test_a_taken_port_is_an_error(self):
        first = Server("--kv-events", 0)
        self.addCleanup(first.stop)
        port = re.search(r"kv-events port=(\d+) topic=kv@127\.0\.0\.1:%d@nano" % first.port, first.read_log())[1]
        with self.assertRaisesRegex(RuntimeError, "--kv-events"):
            Server("--kv-events", port)


if __name__ == "__main__":
    main()
