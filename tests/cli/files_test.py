#!/usr/bin/env python3
"""Model folders: what is given to -m, and checkpoints with more, fewer or other files and tensors than published ones."""

import json
import os
import shutil
import struct
import subprocess
import sys
import unittest

from support import CliTestCase, GOLDEN, HAS_GOLDEN, HAS_NANO, NANO, ROOT, main, read_safetensors, run

PUBLISHED = ROOT.parent / "shared" / "data" / "published" / "reap160"


def write_safetensors(path, tensors):
    """Writes {name: (dtype, shape, bytes)}."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


class Given(CliTestCase):
    """Paths given to -m that are not the folder of a checkpoint: one line says what to do."""

    def fails_everywhere(self, path, words):
        for command in [["generate", "-p", "x"], ["inspect"], ["tokenize"], ["serve", "--port", "0"]]:
            self.fails(1, words, *command, "-m", path)

    def test_ids_and_addresses_of_repositories(self):
        for path in ["deepseek-ai/DeepSeek-V4-Flash", "hf://deepseek-ai/DeepSeek-V4-Flash",
                     "https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash/tree/main"]:
            self.fails_everywhere(path, ["hf download deepseek-ai/DeepSeek-V4-Flash --local-dir"])
        self.fails_everywhere("s3://bucket/models/flash", ["an address", "download"])
        result = self.fails(1, ["no such folder", "config.json"], "inspect", "-m", self.tmp / "absent")
        self.assertNotIn(b"hf download", result.stderr)

    def test_a_gguf_file(self):
        header = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
        self.fails_everywhere(self.file("model.gguf", header), ["a GGUF file", "safetensors repository"])
        self.fails_everywhere(self.file("weights", header), ["a GGUF file"])

    def test_archives(self):
        for name, start in [("a.tar.gz", b"\x1f\x8b\x08"), ("a.zip", b"PK\x03\x04"), ("a.tar.zst", b"\x28\xb5\x2f\xfd"),
                            ("a.tar", bytes(257) + b"ustar\x00"), ("a", b"\xfd7zXZ\x00")]:
            self.fails_everywhere(self.file(name, start + bytes(100)), ["an archive", "unpack"])

    def test_files_of_weights(self):
        self.fails_everywhere(self.file("model.safetensors", bytes(8)), ["one file of a checkpoint", str(self.tmp)])
        self.fails_everywhere(self.file("pytorch_model.bin", b"PK\x03\x04"), ["PyTorch", "safetensors repository"])
        self.fails_everywhere(self.file("notes.txt", "hello"), ["is not a folder", "config.json"])

    def test_special_files_are_not_read(self):
        os.mkfifo(self.tmp / "pipe")
        self.fails_everywhere(self.tmp / "pipe", "is not a folder")
        (self.tmp / "loop").symlink_to(self.tmp / "loop")
        self.fails_everywhere(self.tmp / "loop", "no such folder")

    def test_folders_with_weights_of_another_kind(self):
        for name, word in [("flash-Q4_K_M-00001-of-00002.gguf", "GGUF"), ("pytorch_model.bin", "PyTorch"),
                           ("flax_model.msgpack", "another kind")]:
            for config in [False, True]:
                folder = self.tmp / f"{name}-{config}"
                folder.mkdir()
                (folder / name).write_bytes(b"x")
                if config:
                    (folder / "config.json").write_text("{}")
                self.fails_everywhere(folder, [word, name, "no safetensors", "download"])

    @unittest.skipUnless(HAS_NANO, "models/nano is absent")
    def test_such_a_folder_with_a_tokenizer_tokenizes(self):
        shutil.copy(NANO / "tokenizer.json", self.tmp)
        shutil.copy(NANO / "tokenizer_config.json", self.tmp)
        self.file("model.gguf", "GGUF")
        self.ok("tokenize", "-m", self.tmp, stdin="a b")
        self.fails(1, ["GGUF", "no safetensors"], "generate", "-p", "x", "-m", self.tmp)

    def test_outer_folders(self):
        revision = self.tmp / "hub" / "models--deepseek-ai--DeepSeek-V4-Flash" / "snapshots" / "abc"
        revision.mkdir(parents=True)
        for folder in [revision.parents[2], revision.parents[1]]:
            self.fails_everywhere(folder, ["hub's cache", "snapshots", str(revision)])
        (revision / "config.json").write_text("{}")
        for folder in [revision.parents[2], revision.parents[1], revision.parents[0]]:
            self.fails_everywhere(folder, ["hub's cache", str(revision)])
        outer = self.tmp / "models"
        (outer / "flash").mkdir(parents=True)
        (outer / "flash" / "config.json").write_text("{}")
        self.fails_everywhere(outer, ["with config.json", str(outer / "flash")])

    def test_an_archive_that_was_not_unpacked(self):
        self.file("flash.tar.gz", b"\x1f\x8b\x08")
        self.fails_everywhere(self.tmp, ["an archive ('flash.tar.gz')", "unpack"])


@unittest.skipUnless(HAS_GOLDEN, "tests/golden/flash-nvfp4 is absent")
class Skipped(CliTestCase):
    """Tensors whose values the model does not use: the same bits, and one warning for all of them."""

    def model(self, more):
        folder = self.tmp / "model"
        folder.mkdir()
        tensors = read_safetensors(GOLDEN / "model.safetensors")
        more(tensors)
        write_safetensors(folder / "model.safetensors", tensors)
        shutil.copy(GOLDEN / "config.json", folder)
        return folder

    def logits(self, folder):
        out = self.tmp / "out.safetensors"
        result = run("logits", "-m", folder, "--token-ids", "-", "-o", out, stdin="1 2 3 4 5")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        lines = result.stderr.decode().splitlines()
        self.assertIn("wrote logits", lines.pop())
        return read_safetensors(out)["logits"], lines

    def test_one_warning_and_the_same_bits(self):
        one, infinity = struct.pack("<f", 1), struct.pack("<f", float("inf"))

        def add(tensors):
            name = next(n for n in tensors if n.endswith(".input_scale"))
            tensors[name] = ("F32", tensors[name][1], infinity)
            tensors["model.rotary_emb.inv_freq"] = ("F32", [32], one * 32)
            tensors["layers.0.attn.k_scale"] = ("F32", [1], one)
            tensors["layers.0.attn.v_scale"] = ("F32", [1], one)
            tensors["embed.weight_scale"] = ("F32", [1], one)

        folder = self.model(add)
        want, silent = self.logits(GOLDEN)
        got, warned = self.logits(folder)
        self.assertEqual(got, want)
        self.assertEqual(silent, [])
        self.assertEqual(len(warned), 1, warned)
        self.assertRegex(warned[0], r"^warning: 5 tensors are not used: [\w.]+, [\w.]+, [\w.]+, \.\.\.$")
        shown = json.loads(self.ok("inspect", "--json", "-m", folder))["skipped_tensors"]
        self.assertEqual(len(shown), 5)
        self.assertIn("layers.0.attn.k_scale", shown)
        self.assertIn(b"warning: 5 tensors are not used", self.ok("inspect", "-m", folder))

    def test_a_broken_scale_is_still_refused(self):
        def damage(tensors):
            name = next(n for n in tensors if n.endswith(".input_scale"))
            tensors[name] = ("F32", tensors[name][1], struct.pack("<f", float("nan")))

        self.fails(1, ["input_scale", "NaN"], "inspect", "-m", self.model(damage))


class Published(CliTestCase):
    """All headers of a published checkpoint of 107.8 GB, with holes for data."""

    def test_it_binds_and_plans(self):
        if not (PUBLISHED / "make_sparse.py").exists():
            self.skipTest(f"{PUBLISHED} is absent")
        folder = self.tmp / "reap160"
        subprocess.run([sys.executable, "-B", PUBLISHED / "make_sparse.py", folder], check=True, capture_output=True)
        plan = json.loads(self.ok("inspect", "--json", "--plan", "-m", folder, "--speculate", "dspark"))
        self.assertEqual(plan["config"]["num_experts"], "160")
        self.assertEqual(plan["config"]["draft_stages"], "3")
        self.assertEqual(plan["unused_tensors"], [])
        self.assertEqual(plan["skipped_tensors"], [])
        formats = {f["format"]: f for f in plan["formats"]}
        self.assertEqual(formats["MXFP4"]["tensors"], 46 * 160 * 3)
        self.assertEqual(sum(f["bytes"] for f in formats.values()), 107803320952)
        trunk = json.loads(self.ok("inspect", "--json", "-m", folder))
        self.assertEqual({f["format"]: f["tensors"] for f in trunk["formats"]}["MXFP4"], 43 * 160 * 3)
        self.assertEqual(len(trunk["unused_tensors"]), 2977)
        self.fails(1, ["mtp.0.e_proj.weight", "--speculate"], "inspect", "-m", folder, "--speculate", "mtp")


if __name__ == "__main__":
    main()
