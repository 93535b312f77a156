#!/usr/bin/env python3
"""For operators: errors at the start, the log, traces, metrics, names, TLS."""

import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from support import BINARY, NANO, SLOWNESS, SUM, Server, ServerTestCase, best_of, main, wait_for

TLS = Path(__file__).resolve().parent / "tls"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def start_fails(*flags):
    """The last line of a server that refuses to start, and its status."""
    result = subprocess.run([BINARY, "serve", "--port", "0", *map(str, flags)], capture_output=True, timeout=60 * SLOWNESS)
    return result.returncode, result.stderr.decode().splitlines()[-1]


class Mistakes(unittest.TestCase):
    def refused(self, flags, *words, status=1):
        code, line = start_fails(*flags)
        self.assertEqual(code, status, line)
        for word in words:
            self.assertIn(word, line)

    def test_a_budget_without_a_sequence(self):
        self.refused(["--kv-budget", 1000], "--kv-budget is 1000 bytes, too small for one sequence")

    def test_a_context_beyond_the_models(self):
        self.refused(["--ctx", 1 << 30], "--ctx is 1073741824", "1048576")

    def test_certificates(self):
        cert = TLS / "cert.pem"
        self.refused(["--tls-cert", cert], "--tls-key", status=2)
        self.refused(["--tls-cert", cert, "--tls-key", TLS / "none.pem"], "--tls-key", "none.pem")
        self.refused(["--tls-cert", cert, "--tls-key", TLS / "other_key.pem"], "other_key.pem")
        self.refused(["--tls-cert", TLS / "README.md", "--tls-key", TLS / "key.pem"], "--tls-cert", "README.md")

    def test_keys(self):
        """None of these starts a server that needs no key, or one that no client can send."""
        for key in ["", "two words", "k\u00e9y", "line\n"]:
            self.refused(["--api-key", key], "--api-key is empty or not visible ASCII", status=2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "keys"
            for text, words in [("", "contains no API key"), ("# key\n\n \t\n", "contains no API key"), ("good\nk\u00e9y\n", "line 2"),
                                ("one two\x01\n", "line 1")]:
                path.write_text(text)
                self.refused(["--api-key-file", path], str(path), words)

    def test_the_rest(self):
        self.refused(["--otlp-endpoint", "collector:4317"], "--otlp-endpoint", "http://")
        self.refused(["--goal", "speed"], "--goal", "throughput", status=2)
        self.refused(["--metrics-port", 70000], "--metrics-port", status=2)
        for text in ["-1", "nan", "2s", "3601"]:
            self.refused(["--target-ttft", text], "--target-ttft is '%s'" % text, "seconds from 0 to 3600", status=2)
        self.refused(["--trace-steps", ""], "--trace-steps is empty", status=2)
        with tempfile.TemporaryDirectory() as folder:
            for path in [folder, folder + "/none/steps", "/dev/null"]:
                self.refused(["--trace-steps", path], "--trace-steps: cannot write '%s'" % path, "a folder that can be written")
            self.assertEqual(list(Path(folder).iterdir()), [])
        self.refused(["--otlp-endpoint", "http://collector:99999"], "http://collector:99999", "port")
        self.refused(["--draft-threshold", 1.5], "--draft-threshold is '1.5'", "0 to 1", status=2)
        self.refused(["--host", ""], "--host is empty", status=2)
        self.refused(["--kv-disk", ""], "--kv-disk is empty", status=2)
        self.refused(["--allowed-host", "http://dsv4.example"], "--allowed-host is 'http://dsv4.example'", status=2)
        self.refused(["--host", "192.0.2.1"], "cannot listen on 192.0.2.1", "--host takes an address of this machine")
        self.refused(["--collective-timeout", "nan"], "collective time-out nan")
        self.refused(["--tls-cert", "/none.pem", "--tls-key", "/none.pem"], "/none.pem", "No such file or directory")
        for origin in ["https://chat.example/", "chat.example", "https://Chat.example", "https://a.example,https://b.example"]:
            self.refused(["--cors-origin", origin], "--cors-origin is '%s'" % origin, "https://chat.example")

    def test_what_needs_no_weights_is_said_before_they_are_loaded(self):
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
            for name in ["config.json", "tokenizer.json"]:
                shutil.copy(NANO / name, folder)
            model = ["-m", folder]
            self.refused(model, "no *.safetensors file")
            self.refused([*model, "--port", taken.getsockname()[1]], "cannot listen on", "--port")
            self.refused([*model, "--metrics-port", taken.getsockname()[1]], "cannot listen on", "--metrics-port")
            self.refused([*model, "--tls-cert", TLS / "cert.pem", "--tls-key", TLS / "other_key.pem"], "other_key.pem")
            self.refused([*model, "--kv-disk", os.path.join(folder, "config.json")], "--kv-disk")
            self.refused([*model, "--otlp-endpoint", "collector"], "--otlp-endpoint")
            self.refused([*model, "--cors-origin", "x"], "--cors-origin")

    def test_a_signal_at_any_moment_of_the_start_ends_it(self):
        start = time.time()
        self.assertEqual(Server().stop(), 0)
        whole = time.time() - start
        for i in range(24):
            process = subprocess.Popen([BINARY, "serve", "--port", "0", "--threads", "2"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(whole * i / 20)
            process.send_signal(signal.SIGTERM)
            try:
                self.assertIn(process.wait(30 * SLOWNESS), (0, 130, -signal.SIGTERM))
            finally:
                process.kill()
                process.wait()

    def test_a_budget_beyond_the_memory_is_a_warning(self):
        for budget, warned in [("1TiB", True), ("64MiB", False)]:
            server = Server("--kv-budget", budget)
            self.assertEqual(server.stop(), 0)
            self.assertEqual("--kv-budget is 1099511627776 bytes" in server.read_log(), warned)

    def test_what_users_said_is_for_the_servers_owner(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "kept"
            server = Server("--kv-disk", kept, "--store-responses", "1MiB")
            self.assertEqual(server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 2}).status, 200)
            self.assertEqual(server.stop(), 0)
            found = [kept, *kept.rglob("*")]
            self.assertGreater(len([path for path in found if path.suffix in (".json", ".dsv4kv")]), 1)
            self.assertEqual([path for path in found if path.stat().st_mode & 0o77], [])


class Goals(unittest.TestCase):
    def test_a_goal_chooses_what_is_not_given(self):
        for flags, gap, streams in [(["latency"], 60, 16), (["balanced"], 250, 64), (["throughput"], 0, 128),
                                    (["throughput", "--max-gap", 40], 40, 128), (["latency", "--max-concurrent", 3], 60, 3)]:
            server = Server("--goal", *flags)
            self.assertRegex(server.read_log(), "limits concurrent=%d .*max_gap_ms=%d target_ttft_ms=2000 " % (streams, gap))
            self.assertEqual(server.stop(), 0)

    def test_steps_are_traced(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "steps"
            path.write_text("of an earlier server")
            server = Server("--trace-steps", path, "--target-ttft", 0.5)
            self.assertEqual(len(path.read_text().splitlines()), 1)
            body = {"prompt": "One " * 300, "max_tokens": 20, "ignore_eos": True}
            self.assertEqual(server.post("/v1/completions", body).status, 200)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(path.stat().st_mode & 0o77, 0)
            head, *steps = [line.split() for line in path.read_text().splitlines()]
            self.assertEqual({len(step) for step in steps}, {len(head)})
            steps = [dict(zip(head, map(float, step))) for step in steps]
            self.assertEqual(sum(step["rows"] for step in steps), 20)
            self.assertGreater(sum(step["short_tokens"] + step["long_tokens"] for step in steps), 290)
            self.assertTrue(all(step["pass_s"] > 0 and step["distance"] >= 1 and step["limit"] == 64 for step in steps))
            self.assertEqual([step["end_s"] for step in steps], sorted(step["end_s"] for step in steps))
            total = sum(value for step in steps for name, value in step.items()
                        if name.endswith("_s") and name not in ("end_s", "guess_s", "bound_s"))
            self.assertLess(total, steps[-1]["end_s"])


class LogLines(unittest.TestCase):
    def start(self, *flags):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        keys = Path(folder.name) / "keys"
        keys.write_text("# who has which\nteam-a secret-1\nsecret-2\n")
        server = Server("--api-key-file", keys, "--log-interval", 1, *flags)
        self.addCleanup(server.stop)
        return server

    def test_json_has_levels_and_numbers_from_the_first_line_on(self):
        server = self.start("--log-format", "json")
        body = {"prompt": "And it came to pass", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        for key in ["secret-1", "secret-2"]:
            reply = server.post("/v1/completions", body, Authorization="Bearer " + key, traceparent=PARENT)
            self.assertEqual(reply.status, 200)
        server.post("/v1/completions", body)  # without a key
        wait_for(lambda: server.lines("throughput"))
        lines = [json.loads(line) for line in server.whole_log()]
        self.assertEqual(lines[0]["event"], "plan")
        for line in lines:
            self.assertIn(line["level"], ("info", "warning", "error"))
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT.*Z$")
        self.assertGreater(lines[0]["weights"], 1 << 20)
        requests = [line for line in lines if line["event"] == "request"]
        first = requests[0]
        self.assertEqual((first["status"], first["complete"], first["key"]), (200, True, "team-a"))
        self.assertEqual((first["output_tokens"], first["finish"], first["accepted_drafts"]), (20, "length", 0))
        self.assertEqual(first["prompt_tokens"], reply.json["usage"]["prompt_tokens"])
        self.assertEqual(first["trace"], PARENT.split("-")[1])
        for name in ["ms", "queue_ms", "first_token_ms", "tokens_per_s"]:
            self.assertIsInstance(first[name], (int, float), name)
        self.assertGreater(first["tokens_per_s"], 0)
        self.assertLessEqual(first["first_token_ms"], first["ms"])
        self.assertEqual(requests[1]["key"], "key-2")
        self.assertEqual(requests[2]["status"], 401)
        self.assertNotIn("key", requests[2])
        self.assertNotIn("secret", server.read_log())

    def test_throughput_while_there_is_work(self):
        server = self.start()
        body = {"prompt": "a", "max_tokens": 100000, "ignore_eos": True, "stream": True}
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps(body), {"X-Api-Key": "secret-1"})
        connection.getresponse()
        # Not 0.0: the first line may be of a second in which the prompt was processed.
        wait_for(lambda: re.search(r"throughput .*output_tokens_per_s=(?!0\.0 )[0-9.]+ running=1 waiting=0 ", server.read_log()))
        connection.close()
        wait_for(lambda: re.search(r"request .*incomplete=.*finish=abort", server.read_log()))

        def more():
            count = len(server.lines("throughput"))
            time.sleep(1.5)
            return len(server.lines("throughput")) - count

        self.assertEqual(best_of(20, lambda n: n == 0, more), 0)  # after the last lines; tests what was left


class Collector(http.server.BaseHTTPRequestHandler):
    """Replaces an OpenTelemetry collector."""

    spans, requests, answer = [], [], 200

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Collector.requests.append((self.path, self.headers["Content-Type"]))
        for resource in body["resourceSpans"]:
            names = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
            for scope in resource["scopeSpans"]:
                Collector.spans.extend((names["service.name"]["stringValue"], span) for span in scope["spans"])
        self.send_response(Collector.answer)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


class Traces(unittest.TestCase):
    def setUp(self):
        Collector.spans, Collector.requests, Collector.answer = [], [], 200
        self.collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
        threading.Thread(target=self.collector.serve_forever, daemon=True).start()
        self.addCleanup(self.collector.server_close)
        self.addCleanup(self.collector.shutdown)
        self.server = Server("--otlp-endpoint", "http://127.0.0.1:%d" % self.collector.server_address[1])
        self.addCleanup(self.server.stop)

    def test_spans_of_a_request(self):
        reply = self.server.post("/v1/chat/completions", {"messages": SUM, "max_tokens": 9}, traceparent=PARENT)
        self.assertEqual(reply.status, 200)
        wait_for(lambda: len(Collector.spans) >= 4)
        self.assertEqual(Collector.requests[0], ("/v1/traces", "application/json"))
        self.assertEqual({name for name, _ in Collector.spans}, {"dsv4"})
        spans = {span["name"]: span for _, span in Collector.spans}
        whole = spans["POST /v1/chat/completions"]
        _, trace, parent, _ = PARENT.split("-")
        self.assertEqual((whole["traceId"], whole["parentSpanId"], whole["kind"]), (trace, parent, 2))
        told = attributes(whole)
        usage = reply.json["usage"]
        self.assertEqual(told["gen_ai.usage.input_tokens"], str(usage["prompt_tokens"]))
        self.assertEqual(told["gen_ai.usage.output_tokens"], "9")
        self.assertEqual(told["gen_ai.response.finish_reasons"], {"values": [{"stringValue": "length"}]})
        self.assertEqual(told["http.response.status_code"], "200")
        self.assertEqual(told["dsv4.request.id"], reply.headers["x-request-id"])
        end = int(whole["startTimeUnixNano"])
        for name in ["queue", "prompt", "decode"]:
            part = spans[name]
            self.assertEqual((part["traceId"], part["parentSpanId"]), (trace, whole["spanId"]))
            self.assertLessEqual(end, int(part["startTimeUnixNano"]))
            end = int(part["endTimeUnixNano"])
        self.assertLessEqual(end, int(whole["endTimeUnixNano"]))
        self.assertEqual(self.server.metric("dsv4_spans_total", result="dropped"), 0)

    def test_what_the_caller_does_not_sample_is_not_sent(self):
        self.server.post("/tokenize", {"prompt": "a"}, traceparent=PARENT[:-1] + "0")
        self.server.post("/tokenize", {"prompt": "a"}, traceparent="00-nonsense")
        wait_for(lambda: Collector.spans)
        time.sleep(0.7)
        (_, span), = Collector.spans
        self.assertNotIn("parentSpanId", span)
        self.assertRegex(span["traceId"], "^[0-9a-f]{32}$")

    def test_a_collector_that_fails_costs_spans_only(self):
        Collector.answer = 503
        self.server.post("/tokenize", {"prompt": "a"})
        wait_for(lambda: self.server.metric("dsv4_spans_total", result="dropped") == 1)
        wait_for(lambda: "answers with 503" in self.server.read_log())
        self.collector.shutdown()
        self.collector.server_close()
        for _ in range(3):
            self.assertEqual(self.server.post("/tokenize", {"prompt": "a"}).status, 200)
        wait_for(lambda: self.server.metric("dsv4_spans_total", result="dropped") == 4)
        self.assertEqual(self.server.metric("dsv4_spans_total", result="sent"), 0)


class MetricsPort(ServerTestCase):
    FLAGS = ["--api-key", "key", "--metrics-port", "0"]

    def other_port(self):
        port = int(re.search(r"metrics url=\S+:(\d+)/metrics", self.server.read_log())[1])
        other = object.__new__(Server)
        other.port = port
        return other

    def test_metrics_and_health_alone_without_a_key(self):
        other = self.other_port()
        self.assertEqual(self.server.get("/metrics").status, 401)
        self.assertIn(b"vllm:num_requests_running", other.get("/metrics").body)
        self.assertEqual(other.get("/health/ready").status, 200)
        self.assertEqual(other.post("/metrics", {}).status, 405)
        for path in ["/v1/models", "/", "/tokenize"]:
            self.refused(other.get(path, Authorization="Bearer key"), 404, "main port")


class Metrics(ServerTestCase):
    FLAGS = ["--kv-budget", 100 << 20]

    def test_every_series_is_described_and_named_as_it_should(self):
        self.chat(max_tokens=3)
        page = self.server.get("/metrics").body.decode()
        described = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))
        self.assertEqual(set(described), set(re.findall(r"^# HELP (\S+) .+$", page, re.M)))
        for name in re.findall(r"^([^#{\s]+)\{", page, re.M):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            self.assertTrue(name in described or described.get(base) == "histogram", name)
            self.assertRegex(name, r"^(vllm:|dsv4_|process_)[a-z0-9_]+$")
        for name, kind in described.items():
            self.assertEqual(name.endswith("_total"), kind == "counter" or name == "vllm:iteration_tokens_total", name)
        for name in ["process_cpu_seconds_total", "process_virtual_memory_bytes", "process_resident_memory_bytes",
                     "process_open_fds", "process_max_fds", "process_start_time_seconds"]:
            self.assertGreater(self.server.metric(name), 0, name)
        self.assertLess(abs(self.server.metric("process_start_time_seconds") - time.time()), 3600)

    def test_names_that_are_vllms_have_its_types_and_labels(self):
        """The names of vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py; counters get _total on a page."""
        histograms = ["time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds",
                      "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                      "request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
                      "iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens"]
        counters = ["num_preemptions", "prompt_tokens", "prompt_tokens_by_source", "prompt_tokens_cached", "generation_tokens",
                    "prefix_cache_queries", "prefix_cache_hits", "request_success", "spec_decode_num_drafts",
                    "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "spec_decode_num_accepted_tokens_per_pos"]
        gauges = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"]
        more = {"prompt_tokens_by_source_total": {"source"}, "request_success_total": {"finished_reason"},
                "spec_decode_num_accepted_tokens_per_pos_total": {"position"},
                "cache_config_info": {"block_size", "num_gpu_blocks", "enable_prefix_caching"}}
        types = {**dict.fromkeys(histograms, "histogram"), **{name + "_total": "counter" for name in counters},
                 **dict.fromkeys(gauges, "gauge")}
        self.chat(max_tokens=3)
        page = self.server.get("/metrics").body.decode()
        self.assertEqual(dict(re.findall(r"^# TYPE vllm:(\S+) (\S+)$", page, re.M)), types)
        for name, labels in re.findall(r"^vllm:([^{]+)\{(.*)\} ", page, re.M):
            base = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
            self.assertEqual(set(re.findall(r'(\w+)="', labels)) - {"le"}, {"model_name", "engine"} | more.get(base, set()), name)
        self.assertEqual(set(re.findall(r'finished_reason="(\w+)"', page)), {"stop", "length", "abort", "error"})

    def test_prompts_count_with_what_was_cached(self):
        before = {source: self.server.metric("vllm:prompt_tokens_by_source_total", source=source)
                  for source in ["local_compute", "local_cache_hit"]}
        total = self.server.metric("vllm:prompt_tokens_total")
        usage = [self.chat([{"role": "user", "content": "Twice " * 40}], max_tokens=1)["usage"] for _ in range(2)]
        read, cached = (self.server.metric("vllm:prompt_tokens_by_source_total", source=s) - n for s, n in before.items())
        self.assertEqual(read + cached, sum(u["prompt_tokens"] for u in usage))
        self.assertEqual(cached, sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage))
        self.assertGreater(cached, 40)
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total") - total, read + cached)

    def test_what_routers_and_dashboards_ask_for(self):
        page = self.server.get("/metrics").body.decode()
        info = re.search(r'vllm:cache_config_info\{.*block_size="256",num_gpu_blocks="(\d+)".*\} 1\n', page)
        per_1k = float(re.search(r"per_1k_tokens=([0-9.]+)MiB", self.server.read_log())[1])
        self.assertAlmostEqual(int(info[1]) * 0.256 * per_1k, 100, delta=10)
        self.assertRegex(page, r'dsv4_build_info\{.*version="[^"]+",commit="[^"]+",compiler="[^"]+"\} 1\n')
        self.assertEqual(self.server.metric("dsv4_draining"), 0)


MONITORING = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"


class Monitoring(ServerTestCase):
    """The dashboard and the alert rules use only metrics of a live page."""

    FLAGS = ["--max-queue", 1, "--max-concurrent", 1]
    GLOBAL = {"instance", "job", "le"}  # Prometheus' own labels, and the label of a histogram

    def check(self, expressions):
        series = {}  # labels by name
        for name, labels in re.findall(r"^([^#{\s]+)\{(.*)\} ", self.server.get("/metrics").body.decode(), re.M):
            series.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
        described = re.findall(r"^# TYPE (\S+) ", self.server.get("/metrics").body.decode(), re.M)
        for expression in expressions:
            names = re.findall(r"\b(?:vllm:|dsv4_|process_)\w+", expression)
            self.assertTrue(names or "up{" in expression, expression)
            for name in names:
                self.assertTrue(name in series or name in described, name + " of " + expression)
            known = set.union(self.GLOBAL, *(series.get(name, set()) for name in names))
            used = re.findall(r"\bby \(([^)]*)\)", expression) + re.findall(r"[{,](\w+)=~?\"", expression)
            for label in ",".join(used).replace(" ", "").split(","):
                self.assertIn(label or "le", known, expression)

    def setUp(self):
        self.chat(max_tokens=3)  # counters by label appear with their first value
        body = {"prompt": "a", "max_tokens": 100000, "ignore_eos": True, "stream": True}
        connections = [self.server.connect() for _ in range(4)]
        for connection in connections:
            connection.request("POST", "/v1/completions", json.dumps(body))
            connection.getresponse()
        for connection in connections:
            connection.close()
        self.server.wait_until_idle()
        self.chat(max_tokens=3)

    def test_dashboard(self):
        board = json.loads((MONITORING / "grafana.json").read_text())
        self.check([target["expr"] for panel in board["panels"] for target in panel["targets"]])
        ids = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    def test_alerts(self):
        expressions = re.findall(r"^ +expr: (.+)$", (MONITORING / "alerts.yaml").read_text(), re.M)
        self.assertGreater(len(expressions), 5)
        self.check(expressions)


class Manifests(unittest.TestCase):
    def test_their_flags_are_the_programs(self):
        known = set(re.findall(r"--[a-z][a-z-]+", subprocess.run([BINARY, "serve", "--help"], capture_output=True).stdout.decode()))
        self.assertIn("--kv-events-topic", known)
        deploy = MONITORING.parent
        statefulset = (deploy / "kubernetes" / "base" / "statefulset.yaml").read_text()
        used = re.findall(r"^ +- (--[a-z-]+)", statefulset, re.M)
        used += re.findall(r" (--[a-z-]+)", re.search(r"^ExecStart=.*$", (deploy / "dsv4.service.in").read_text(), re.M)[0])
        self.assertGreater(len(used), 10)
        self.assertEqual(set(used) - known, set())


class Names(ServerTestCase):
    FLAGS = ["--served-model-name", "one", "--served-model-name", "two", "--served-model-name", "org/V4 Ü%", "--strict-model"]

    def test_names_in_paths_may_be_encoded(self):
        for path in ["org/V4%20%C3%9C%25", "org%2FV4%20%c3%9c%25", "org%2fV4%20%C3%9C%"]:
            self.assertEqual(self.server.get("/v1/models/" + path).json["id"], "org/V4 Ü%", path)
        self.refused(self.server.get("/v1/models/three%2fx"), 404, "'three/x'")

    def test_several_names(self):
        self.assertEqual([m["id"] for m in self.server.get("/v1/models").json["data"]], ["one", "two", "org/V4 Ü%"])
        self.assertEqual(self.server.get("/v1/models/two").json["root"], "one")
        for name in ["one", "two"]:
            self.assertEqual(self.chat(model=name, max_tokens=1)["model"], "one")
        self.refused(self.server.post("/v1/chat/completions", {"model": "three", "messages": SUM}), 404, "three")

    def test_what_sglangs_gateway_asks(self):
        model = self.server.get("/get_model_info").json
        self.assertEqual((model["is_generation"], model["served_model_name"]), (True, "one"))
        server = self.server.get("/get_server_info").json
        self.assertEqual((server["tp_size"], server["max_running_requests"], server["page_size"]), (1, 64, 256))
        self.assertEqual(server["model_path"], model["model_path"])

    def test_render_gives_the_ids_that_are_read(self):
        body = {"messages": [{"role": "user", "content": "Hello <｜User｜>"}], "model": "two"}
        ids = self.server.post("/v1/chat/completions/render", body).json["token_ids"]
        self.assertEqual(ids, self.server.post("/tokenize", {"messages": body["messages"]}).json["tokens"])
        self.assertEqual(len(ids), self.chat(body["messages"], max_tokens=1)["usage"]["prompt_tokens"])
        # Fields that change the prompt must count.
        plain = self.server.post("/v1/chat/completions/render", {**body, "enable_thinking": False}).json["token_ids"]
        self.assertNotEqual(plain, ids)
        rendered = self.server.post("/v1/completions/render", {"prompt": ["And it", "came"]}).json
        self.assertEqual([r["token_ids"] for r in rendered],
                         [self.server.post("/tokenize", {"prompt": p}).json["tokens"] for p in ["And it", "came"]])
        self.assertEqual(self.server.post("/v1/completions/render", {"prompt": [5, 6]}).json[0]["token_ids"], [5, 6])
        self.refused(self.server.post("/v1/completions/render", {"model": "one"}), 400, "prompt")


class Https(ServerTestCase):
    FLAGS = ["--tls-cert", TLS / "cert.pem", "--tls-key", TLS / "key.pem", "--metrics-port", "0"]

    def setUp(self):
        self.context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))

    def connect(self, **options):
        return http.client.HTTPSConnection("localhost", self.server.port, timeout=60 * SLOWNESS, context=self.context, **options)

    def test_requests_streams_and_large_bodies(self):
        connection = self.connect()
        for _ in range(2):  # the connection stays open
            connection.request("POST", "/v1/chat/completions", json.dumps({"messages": SUM, "temperature": 0, "stream": True}))
            reply = connection.getresponse().read().decode()
            self.assertTrue(reply.endswith("data: [DONE]\n\n"))
        long = "one two " * 200000  # the reply has several megabytes
        connection.request("POST", "/tokenize", json.dumps({"prompt": long, "return_token_strs": True}))
        reply = json.loads(connection.getresponse().read())
        self.assertEqual(reply["count"], len(reply["token_strs"]))
        self.assertGreater(reply["count"], 100000)
        connection.close()

    def test_requests_behind_one_that_takes_time_are_all_answered(self):
        # The server stops reading within a record of 16 KiB. Then the socket has no more bytes for the rest of it.
        body = json.dumps({"prompt": "In the beginning", "max_tokens": 40, "ignore_eos": True}).encode()
        first = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for count, padding in [(300, 250), (600, 250), (66, 1000), (9, 16000)]:
            next_one = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Pad: " + b"x" * padding + b"\r\n\r\n"
            with self.server.socket() as plain, self.context.wrap_socket(plain, server_hostname="localhost") as sock:
                sock.sendall(first + next_one * count)
                replies = b""
                while replies.count(b"HTTP/1.1 200") <= count:
                    piece = sock.recv(65536)
                    self.assertTrue(piece, "the connection ended after %d replies" % replies.count(b"HTTP/1.1 200"))
                    replies += piece

    def test_what_is_no_tls_is_hung_up(self):
        with self.server.socket() as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while piece := sock.recv(4096):
                answer += piece
            self.assertNotIn(b"HTTP/1.1 200", answer)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with self.assertRaises(ssl.SSLError):
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            old.set_ciphers("ALL:@SECLEVEL=0")
            http.client.HTTPSConnection("localhost", self.server.port, context=old, timeout=10).request("GET", "/health")
        connection = self.connect()  # the server still runs
        connection.request("GET", "/health")
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()

    def test_clients_that_leave_are_noticed(self):
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 100000, "ignore_eos": True, "stream": True}))
        connection.getresponse().fp.readline()
        connection.sock.close() if connection.sock else None
        connection.close()
        wait_for(lambda: re.search(r"request .*path=/v1/completions .*incomplete=.*finish=abort", self.server.read_log()))

    def test_the_url_says_so_and_metrics_go_without(self):
        self.assertRegex(self.server.read_log(), r"listening url=https://127\.0\.0\.1:")
        self.assertRegex(self.server.read_log(), r"metrics url=http://127\.0\.0\.1:")


if __name__ == "__main__":
    main()
