"""An upstream server for coding agents that follows a script: Anthropic's messages and OpenAI's responses, streamed, on
a free port of this machine. It keeps every request. Real clients run against it (record_agents.py)."""

import http.server
import json
import threading

USUAL, FULL = 20000, 260000  # reported prompt tokens: of a usual turn, and of the turn that makes the client compact
SUMMARY = ("<analysis>\nThe parts were read one after another.\n</analysis>\n\n<summary>\n1. The task: read the parts of the project and "
           "say what is in them.\n2. What was done: parts were read, one was edited, a picture was looked at.\n3. What is left: the "
           "other parts.\n</summary>")


class Turn:
    """One turn of the model: it reasons, writes text, calls tools. `calls`: [(name, arguments)]; none: the session is
    finished. `full`: the reply reports a full context, so the client compacts before the next turn."""

    def __init__(self, calls=(), text="", thought="", full=False):
        self.calls, self.text, self.thought, self.full = list(calls), text, thought, full


class Upstream:
    def __init__(self, turns):
        self.turns, self.requests, self.next, self.lock = turns, [], 0, threading.Lock()
        upstream = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, kind, answer = upstream.answer(self.path, dict(self.headers), json.loads(body))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self):
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_GET

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path, headers, body):
        with self.lock:
            number = len(self.requests)
            self.requests.append({"path": path, "headers": headers, "body": body})
            if path.split("?")[0].endswith("/count_tokens"):
                return 200, "application/json", json.dumps({"input_tokens": USUAL}).encode()
            turn = self.choose(body)
        events = (anthropic_events if "messages" in body else openai_events)(number, turn)
        text = "".join("event: %s\ndata: %s\n\n" % (event["type"], json.dumps(event)) for event in events)
        return 200, "text/event-stream", text.encode()

    def choose(self, body):
        """Returns the next turn of the script, unless the client requests a summary."""
        if wants_summary(body):
            return Turn(text=SUMMARY)
        turn = self.turns[min(self.next, len(self.turns) - 1)]
        self.next += 1
        return turn


def texts_of(content):
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


def wants_summary(body):
    """Decided by the last message. After a compaction the messages contain a summary but do not request one."""
    items = body.get("messages") or body.get("input") or []
    said = texts_of(next((i["content"] for i in reversed(items) if i.get("role") == "user" and i.get("content")), ""))
    return items[-1].get("role") == "user" and ("Your task is to create a detailed summary" in said or "CONTEXT CHECKPOINT COMPACTION" in said)


def anthropic_events(number, turn):
    usage = {"input_tokens": FULL if turn.full else USUAL, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    yield {"type": "message_start", "message": {"id": "msg_%04d" % number, "type": "message", "role": "assistant", "model": "nano",
                                                "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}}
    blocks = []
    if turn.thought:
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""},
                       [{"type": "thinking_delta", "thinking": turn.thought}, {"type": "signature_delta", "signature": "dsv4-%04d" % number}]))
    if turn.text:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": turn.text}]))
    for i, (name, arguments) in enumerate(turn.calls):
        blocks.append(({"type": "tool_use", "id": "toolu_%04d_%d" % (number, i), "name": name, "input": {}},
                       [{"type": "input_json_delta", "partial_json": json.dumps(arguments)}]))
    for index, (block, deltas) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use" if turn.calls else "end_turn", "stop_sequence": None},
           "usage": {**usage, "output_tokens": 20}}
    yield {"type": "message_stop"}


def openai_events(number, turn):
    tokens = FULL if turn.full else USUAL
    response = {"id": "resp_%04d" % number, "object": "response", "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": response}
    items = []
    if turn.thought:
        items.append({"type": "reasoning", "id": "rs_%04d" % number, "summary": [{"type": "summary_text", "text": turn.thought}],
                      "encrypted_content": "dsv4-%04d" % number})
    if turn.text:
        items.append({"type": "message", "id": "msg_%04d" % number, "role": "assistant", "status": "completed",
                      "content": [{"type": "output_text", "text": turn.text, "annotations": []}]})
    for i, (name, arguments) in enumerate(turn.calls):
        items.append({"type": "function_call", "id": "fc_%04d_%d" % (number, i), "call_id": "call_%04d_%d" % (number, i), "name": name,
                      "arguments": json.dumps(arguments), "status": "completed"})
    for index, item in enumerate(items):
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    usage = {"input_tokens": tokens, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 20,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens + 20}
    yield {"type": "response.completed", "response": {**response, "status": "completed", "output": items, "usage": usage}}
