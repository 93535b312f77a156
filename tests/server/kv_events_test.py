#!/usr/bin/env python3
"""Reads KV events as llm-d-kv-cache does: a SUB socket, three frames, MessagePack, blocks by their engine's hash."""

import ctypes
import ctypes.util
import itertools
import re
import socket
import struct
import threading
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


# The greeting and READY of a SUB socket in ZMTP 3.0.
HELLO = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB"


def kv_socket(server):
    port = int(re.search(r"kv-events port=(\d+) topic=", server.read_log())[1])
    return socket.create_connection(("127.0.0.1", port), timeout=60 * SLOWNESS)


def frame(body):
    """A message of one frame."""
    return b"\x02" + struct.pack(">Q", len(body)) + body


def read_all(sock):
    """The bytes that arrive until the server ends the connection."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data


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

    def test_a_reader_comes_back_after_the_server_has_ended_its_connection(self):
        with kv_socket(self.server) as stranger:  # readers do not notice what strangers do
            stranger.sendall(HELLO + frame(b"\1" + b"x" * 2000))
            self.assertEqual(read_all(stranger)[:1], b"\xff")
        ids = [77] * (PAGE + 2)
        self.complete(ids, max_tokens=1)
        self.read_until(lambda: self.index.longest(ids) == PAGE)

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


class Strangers(ServerTestCase):
    """Anyone who reaches the port may send anything, without a key. Memory stays bounded, and readers get their events."""
    FLAGS = ["--kv-events", 0, "--kv-events-topic", "kv@", "--kv-budget", 12000000, "--api-key", "k"]
    GROWTH_MIB = 24
    NEW = itertools.count(5)  # only new tokens make an event

    def setUp(self):
        self.before = self.server.memory("VmRSS")

    def tearDown(self):
        if SLOWNESS == 1:
            self.assertLess(self.server.memory("VmRSS") - self.before, self.GROWTH_MIB)
        self.assertEqual(self.read_event()[0], b"kv@")

    def event(self):
        body = {"prompt": [next(self.NEW)] * (PAGE + 2), "max_tokens": 1}
        self.assertEqual(self.server.post("/v1/completions", body, Authorization="Bearer k").status, 200)

    def read_event(self):
        """The frames of an event, as a reader gets them whose subscription the server has."""
        with kv_socket(self.server) as reader:
            reader.sendall(HELLO + frame(b"\1kv@") + b"\x04\x0a\x04PING\0\x01abc")
            data = b""
            while b"PONGabc" not in data:
                data += reader.recv(65536)
            data = data.split(b"PONGabc")[1]
            self.event()
            frames = []
            while len(frames) < 3:
                while len(data) < 9 or (data[0] & 2 and len(data) < 9 + struct.unpack(">Q", data[1:9])[0]):
                    data += reader.recv(65536)
                head, size = (9, struct.unpack(">Q", data[1:9])[0]) if data[0] & 2 else (2, data[1])
                frames.append(data[head:head + size])
                data = data[head + size:]
        return frames

    def test_one_message_of_any_size(self):
        block = b"\1" + b"x" * ((1 << 20) - 1)
        for start in (b"", HELLO[:64], HELLO):
            with kv_socket(self.server) as sock:
                with self.assertRaises(OSError):
                    sock.sendall(start + b"\x02" + struct.pack(">Q", 1 << 40))
                    for _ in range(300):
                        sock.sendall(block)

    def test_subscriptions_without_end(self):
        for begin in (b"\1", b"\1kv@"):
            with kv_socket(self.server) as sock:
                sock.sendall(HELLO)
                with self.assertRaises(OSError):
                    for i in range(100000):
                        sock.sendall(frame(begin + b"%d" % i + b"x" * 900))

    def test_a_flood_holds_up_no_request(self):
        stop = threading.Event()

        def flood():
            pair = frame(b"\1kv@") + frame(b"\0kv@")
            with kv_socket(self.server) as sock:
                sock.sendall(HELLO)
                while not stop.is_set():
                    sock.sendall(pair * 1000)

        threads = [threading.Thread(target=flood) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(4):
                self.event()
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_pings_whose_replies_nobody_takes(self):
        ping = b"\x04\x17\x04PING\0\x01" + b"c" * 16
        with kv_socket(self.server) as sock:
            sock.sendall(HELLO)
            with self.assertRaises(OSError):
                for _ in range(30000):
                    sock.sendall(ping * 1000)

    def test_silent_connections_keep_their_places_for_a_while(self):
        socks = [kv_socket(self.server) for _ in range(100)]  # places for 64
        try:
            for sock in socks:
                self.assertIn(sock.recv(1), (b"\xff", b""))
            for sock in socks:
                read_all(sock)  # ended for each
        finally:
            for sock in socks:
                sock.close()

    def test_the_log_warns(self):
        self.assertRegex(self.server.read_log(), "warning.*--kv-events reads the token ids of all prompts")


class Start(unittest.TestCase):
    def test_a_taken_port_is_an_error(self):
        first = Server("--kv-events", 0)
        self.addCleanup(first.stop)
        port = re.search(r"kv-events port=(\d+) topic=kv@127\.0\.0\.1:%d@nano" % first.port, first.read_log())[1]
        with self.assertRaisesRegex(RuntimeError, "--kv-events"):
            Server("--kv-events", port)


if __name__ == "__main__":
    main()
