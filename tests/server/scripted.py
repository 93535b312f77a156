"""A model that writes given texts: the small model without its blocks, so that each token decides the next one alone.

The first text follows every token that is not one of the texts, and the end follows a text. logit_bias 100 on the
token of another text puts that one in the place of the first.
"""

import json
import shutil
import struct

from support import NANO

DIMS, LOUD = 256, 16.0


def bfloat16(value):
    return struct.pack("<f", value)[2:]


def row(place, value):
    """A vector that is zero in all places but one."""
    return bytes(2 * place) + bfloat16(value) + bytes(2 * (DIMS - place - 1))


def make(folder, texts):
    """Writes the model into an existing folder. Returns the tokens of the texts."""
    tokenizer = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))
    spare = [t for t in tokenizer["added_tokens"] if "tool▁" in t["content"] or "place▁holder" in t["content"] or "_of_" in t["content"]
             or any(word in t["content"] for word in ("repo", "file", "fim", "political", "entity", "safety", "domain"))]
    assert len(texts) <= len(spare), "%d texts, but %d spare tokens" % (len(texts), len(spare))
    ids = []
    for token, text in zip(spare, texts):
        token.update(content=text, special=False)
        ids.append(token["id"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, folder)

    data = bytearray((NANO / "model.safetensors").read_bytes())
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = json.loads(data[8:begin])

    def put(name, values):
        first, last = tensors[name]["data_offsets"]
        assert len(values) == last - first, name
        data[begin + first:begin + last] = values

    for name, tensor in tensors.items():  # nothing comes out of a block
        if name.endswith((".wo_b.weight", ".w2.weight")):
            first, last = tensor["data_offsets"]
            put(name, bytes(last - first))
    put("norm.weight", bfloat16(1.0) * DIMS)
    vocab = tensors["embed.weight"]["shape"][0]
    put("embed.weight", b"".join(row(1 if i in ids else 0, LOUD) for i in range(vocab)))
    end = next(t["id"] for t in tokenizer["added_tokens"] if "end▁of▁sentence" in t["content"])
    head = {ids[0]: row(0, 3.0), end: row(1, 64.0)}  # logits of 48 and 1,024
    put("head.weight", b"".join(head.get(i, bytes(2 * DIMS)) for i in range(vocab)))
    (folder / "model.safetensors").write_bytes(data)
    return ids
