#!/usr/bin/env python3
"""Grammars, schemas and choices that make much work, next to a stream that must not be delayed."""

import json
import queue
import threading
import time

from campaign import BINARY, HAS_NANO, SANITIZED, SLOWNESS, HostileTestCase, Server, cases, main, wait_for

ANSWER_S = 40  # a grammar is compiled for at most ten seconds, two at a time
GAP_S = 2      # longest gap of a stream at the same time


def nested(depth, wrap, leaf):
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


def schema(s):
    return {"structured_outputs": {"json": s}}


def regex(r):
    return {"structured_outputs": {"regex": r}}


def grammar(g):
    return {"structured_outputs": {"grammar": g}}


def tag(f):
    return {"structural_tag": {"format": f}}


def const(text):
    return {"type": "const_string", "value": text}


def tags(begins, **fields):
    return [{"type": "tag", "begin": b, "content": {"type": "any_text"}, "end": "</" + b, **fields} for b in begins]


CASES = {
    # States that double with every character, ambiguous rules, endless rules.
    "the n-th character from the end": regex("(a|b)*a" + "(a|b)" * 24),
    "the same, counted": regex("(a|b)*a(a|b){500}"),
    "repeats of repeats": regex("((a{1,100}){1,100}){1,100}"),
    "plus of plus": regex("(((a+)+)+)+b"),
    "the same thing many ways": regex("(a|a|a|a|a|aa|aaa)*b"),
    "many brackets": regex("(" * 5000 + "a" + ")" * 5000),
    "a large count": regex("[a-z]{1,1000000}"),
    "many alternatives": regex("|".join("x%dy" % i for i in range(20000))),
    "rules that double": grammar("root ::= r0\n" + "".join("r%d ::= r%d r%d\n" % (i, i + 1, i + 1) for i in range(30)) + 'r30 ::= "a"\n'),
    "doubled and optional": grammar("root ::= r0\n" + "".join('r%d ::= r%d r%d | ""\n' % (i, i + 1, i + 1) for i in range(30)) + 'r30 ::= "a"\n'),
    "left recursion": grammar('root ::= root root | root "a" | ""\n'),
    "a circle": grammar("root ::= a\na ::= b\nb ::= a\n"),
    "nothing, without end": grammar('root ::= (("" | "")* "")* "b"\n'),
    "a deep expression": grammar('root ::= ' + "(" * 3000 + '"a"' + ")" * 3000 + "\n"),
    "many rules": grammar("root ::= " + " | ".join("r%d" % i for i in range(8000)) + "\n" + "".join('r%d ::= "x%d" r%d?\n' % (i, i, (i * 7) % 8000) for i in range(8000))),
    "a chain of rules": grammar("root ::= r0\n" + "".join('r%d ::= "x" r%d\n' % (i, i + 1) for i in range(40000)) + 'r40000 ::= "a"\n'),
    "a chain of repeats": grammar("root ::= r0\n" + "".join("r%d ::= r%d{1,2}\n" % (i, i + 1) for i in range(40000)) + 'r40000 ::= "a"\n'),
    "a chain of references": schema({"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": "#/$defs/%d" % (i + 1)} for i in range(25000)}}),
    "a deep schema": schema(nested(60, lambda s: {"type": "object", "properties": {"a": s}, "required": ["a"]}, {"type": "null"})),
    "a deep array": schema(nested(60, lambda s: {"type": "array", "items": s, "minItems": 3}, {"type": "integer"})),
    "itself": schema({"$ref": "#"}),
    "itself, twice": schema({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]}),
    "a wide enum": schema({"enum": ["entry number %d" % i for i in range(30000)]}),
    "a long enum": schema({"enum": ["x" * 900000]}),
    "a long const": schema({"const": {"a": "y" * 900000}}),
    "optional properties": schema({"type": "object", "properties": {"p%d" % i: {"type": "integer"} for i in range(3000)}}),
    "required properties": schema({"type": "object", "properties": {"p%d" % i: {"type": "integer"} for i in range(3000)},
                                   "required": ["p%d" % i for i in range(3000)]}),
    "many alternatives of alternatives": schema(nested(12, lambda s: {"anyOf": [s, {"type": "array", "items": s}, {"type": "null"}]}, {"type": "string"})),
    "large bounds": schema({"type": "array", "items": {"type": "string", "minLength": 50000, "maxLength": 100000}, "minItems": 10000}),
    "a large range": schema({"type": "integer", "minimum": -(2 ** 62), "maximum": 2 ** 62 - 1}),
    "a hard pattern": schema({"type": "string", "pattern": "^(a|b)*a" + "(a|b)" * 24 + "$"}),
    "many choices": {"structured_outputs": {"choice": ["choice %d" % i for i in range(30000)]}},
    "stars of stars": tag(nested(60, lambda f: {"type": "star", "content": f}, const("a"))),
    "stars of nothing": tag(nested(40, lambda f: {"type": "star", "content": {"type": "optional", "content": f}}, const(""))),
    "alternatives that double": tag(nested(14, lambda f: {"type": "or", "elements": [f, f]}, const("a"))),
    "deep sequences": tag(nested(90, lambda f: {"type": "sequence", "elements": [const("a"), f]}, const("b"))),
    "many tags": tag({"type": "triggered_tags", "triggers": ["<"], "tags": tags(["<t%d>" % i for i in range(4000)])}),
    "triggers within triggers": tag({"type": "triggered_tags", "triggers": ["<" * i for i in range(1, 200)], "tags": tags(["<" * 200 + "x"])}),
    "tags of nothing": tag({"type": "tags_with_separator", "separator": "", "tags": tags(["", "a", "aa"])}),
    "texts in a star": tag({"type": "star", "content": {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}}),
    "many excluded texts": tag({"type": "any_text", "excludes": ["x%d" % i for i in range(9000)]}),
    "tags in tags": tag(nested(40, lambda f: {"type": "tag", "begin": "<a>", "content": f, "end": ["</a>", "</b>"]}, {"type": "any_text"})),
    "a grammar in a star": tag({"type": "star", "content": {"type": "grammar", "grammar": 'root ::= root root | "a" | ""'}}),
    "an expression in a star": tag({"type": "plus", "content": {"type": "regex", "pattern": "(a|b)*a" + "(a|b)" * 24}}),
    "a long end": tag({"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": "e" * 65000}),
    "ends within ends": tag({"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": ["e" * i for i in range(1, 360)]}),
    "a trigger that repeats itself": tag({"type": "triggered_tags", "triggers": ["a" * 3000 + "b"], "tags": tags(["a" * 3000 + "b" + "a" * 3000])}),
    "triggers that are no start": tag({"type": "triggered_tags", "triggers": ["<" * 9 + str(i) for i in range(3000)], "tags": tags(["<" * 9 + "5x"])}),
    "empty marks": tag({"type": "triggered_tags", "triggers": [""], "tags": [{"begin": "", "content": {"type": "any_text"}, "end": ""}]}),
    "marks of odd characters": tag({"type": "triggered_tags", "triggers": ["\u202e", "\U0001f600", "\0"], "tags": tags(["\u202e\u0301", "\U0001f600x", "\0\uffff"])}),
    "a deep schema in a tag": tag({"type": "tag", "begin": "<", "end": ">", "content": {"type": "json_schema", "json_schema": nested(
        80, lambda s: {"type": "object", "properties": {"a": s}, "required": ["a"]}, {"type": "null"})}}),
    "a schema in each tag": {"structural_tag": {"structures": [{"begin": "<%d>" % i, "schema": {"type": "object", "properties": {
        "p%d" % p: {"type": "string", "maxLength": 1000} for p in range(100)}}, "end": "</>"} for i in range(100)], "triggers": ["<"]}},
    "tags that trigger tags": tag(nested(11, lambda f: {"type": "triggered_tags", "triggers": ["<"], "tags": [
        {"begin": "<%s>" % n, "content": f, "end": "</%s>" % n} for n in "ab"]}, {"type": "any_text"})),
    "alternatives of triggers": tag({"type": "or", "elements": [{"type": "triggered_tags", "triggers": ["<"], "tags": tags(["<a%d" % i])} for i in range(700)]}),
    "texts around texts": tag(nested(80, lambda f: {"type": "sequence", "elements": [{"type": "any_text"}, f, {"type": "any_text"}]}, const("a"))),
    "a long choice": {"structured_outputs": {"choice": ["z" * 900000, "z" * 899999]}},
}


def has_grammars():
    server = Server("--kv-budget", "32MiB")
    try:
        reply = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **regex("a")})
        return reply.status == 200
    finally:
        server.stop()


class Beside:
    """A stream that runs while this object is open, and the times when it stalled between two events."""

    def __init__(self, server):
        self.gaps, self.events, self.over = [], 0, False
        self.connection = server.connect()
        self.connection.request("POST", "/v1/completions", json.dumps({"prompt": "And", "max_tokens": 100000, "ignore_eos": True,
                                                                       "stream": True, "temperature": 0}))
        self.reply = self.connection.getresponse()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        last = time.time()
        while not self.over:
            line = self.reply.readline()
            if not line:
                return
            if line.startswith(b"data: {"):
                now = time.time()
                if now - last >= GAP_S and not SANITIZED:
                    self.gaps.append((last, now))
                last = now
                self.events += 1

    def close(self):
        self.over = True
        self.thread.join()
        self.connection.close()


class Grammars(HostileTestCase):
    FLAGS = ["--default-thinking", "off", "--ctx", "100000"]
    GROWTH_MIB = 700  # cached: up to 256 MiB of compiled grammars and 128 MiB of masks

    def run_all(self, bodies):
        """Runs two at a time next to a stream: [(name, status, begin, end, body)], and the stream's gaps."""
        waiting, found = queue.Queue(), []
        for entry in bodies:
            waiting.put(entry)

        def work():
            while True:
                try:
                    name, fields = waiting.get_nowait()
                except queue.Empty:
                    return
                begin = time.time()
                reply = self.server.post("/v1/completions", {"prompt": "And", "max_tokens": 12, "temperature": 0, **fields})
                found.append((name, reply.status, begin, time.time(), reply.body[:300]))

        stream = Beside(self.server)
        wait_for(lambda: stream.events > 10)
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stream.close()
        self.assertEqual(len(found), len(bodies))
        return found, stream.gaps

    def check(self, bodies):
        """Repeats cases that took too long or ran while the stream stalled, on a new server: another program may have
        used the machine."""
        for _ in range(4):
            found, gaps = self.run_all(bodies)
            late = set()
            for name, status, begin, end, body in found:
                with self.subTest(name=name):
                    self.assertIn(status, [200, 400], body)
                    self.assertNotIn("check failed", str(body).lower())  # a line of the compiler's code
                if end - begin >= ANSWER_S * SLOWNESS or any(begin < gap[1] and gap[0] < end for gap in gaps):
                    late.add(name)
            if not late and not gaps:
                return
            bodies = [(name, fields) for name, fields in bodies if name in late] or bodies
            self.tearDownClass()
            self.setUpClass()
        self.fail("too late: %s; the stream stood still for %s s" % (sorted(map(str, late)), [end - begin for begin, end in gaps]))

    def test_what_is_made_to_be_much_work(self):
        self.check(list(CASES.items()))

    def test_random_grammars(self):
        bodies = []
        for number, generator in cases("grammar", 60):
            rules = ["root"] + ["r%d" % i for i in range(generator.randint(1, 12))]

            def piece(depth=0):
                kind = generator.randrange(7 if depth < 4 else 3)
                if kind == 0:
                    return '"%s"' % generator.choice(["", "a", "b", "ab", " ", "é", "\\n", "the "])
                if kind == 1:
                    return generator.choice(["[a-z]", "[^a]", "[]", "[\\u0000-\\U0010ffff]", "."])
                if kind == 2:
                    return generator.choice(rules)
                if kind == 3:
                    return "(" + " | ".join(piece(depth + 1) for _ in range(generator.randint(1, 4))) + ")"
                if kind == 4:
                    return piece(depth + 1) + generator.choice(["*", "+", "?", "{0,3}", "{2}", "{5,}", "{100,2000}", "{3,1}"])
                return " ".join(piece(depth + 1) for _ in range(generator.randint(1, 4)))

            text = "".join("%s ::= %s\n" % (rule, piece()) for rule in rules)
            if generator.random() < 0.2:
                at = generator.randrange(len(text))
                text = text[:at] + generator.choice(["(", ")", '"', "::=", "\\", "[", "\0"]) + text[at:]
            bodies.append((number, grammar(text)))
        self.check(bodies)

    def test_random_schemas(self):
        def make(generator, depth=0):
            kind = generator.choice(["object", "array", "string", "integer", "number", "anyOf", "enum", "ref", "odd"] if depth < 5 else ["string", "integer"])
            more = lambda: make(generator, depth + 1)  # noqa: E731
            if kind == "object":
                names = ["p%d" % i for i in range(generator.randint(0, 6))]
                return {"type": "object", "properties": {n: more() for n in names}, "required": generator.sample(names, generator.randint(0, len(names)))}
            if kind == "array":
                return {"type": "array", "items": more(), "minItems": generator.choice([0, 1, 5]), "maxItems": generator.choice([5, 50, 0])}
            if kind == "string":
                return {"type": "string", **generator.choice([{}, {"maxLength": 2000}, {"pattern": "^(a+)+$"}, {"format": "date-time"}, {"minLength": -1}])}
            if kind in ("integer", "number"):
                return {"type": kind, **generator.choice([{}, {"minimum": 3, "maximum": 1e30}, {"minimum": 5, "maximum": 1}, {"multipleOf": 7}])}
            if kind == "anyOf":
                return {generator.choice(["anyOf", "oneOf", "allOf"]): [more() for _ in range(generator.randint(0, 4))]}
            if kind == "enum":
                return {"enum": [generator.choice([1, "a", None, [], {"a": 1}, 1e300]) for _ in range(generator.randint(0, 5))]}
            if kind == "ref":
                return {"$ref": generator.choice(["#", "#/properties/p0", "#/$defs/x", "http://127.0.0.1/", 5])}
            return generator.choice([True, False, None, 5, [], {"type": "odd"}, {"type": ["string", "null"]}, {"properties": 5}])

        self.check([(number, schema(make(generator))) for number, generator in cases("schema", 60)])


if __name__ == "__main__":
    if BINARY and HAS_NANO and not has_grammars():
        print("skipped: this build has no XGrammar")
        raise SystemExit(77)
    main()
