"""Every rule of tools/lint/check_includes.py reports a small tree that breaks it, and a good tree passes."""

import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "lint" / "check_includes.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
import check_includes  # noqa: E402  (found through the line above)
from tree import TreeTestCase  # noqa: E402

GOOD = {
    "include/dsv4/status.h": "#pragma once\n#include <string>\n",
    "include/dsv4/engine.h": '#pragma once\n#include "dsv4/status.h"\n',
    "src/base/check.h": "#pragma once\n",
    "src/base/env.h": "#pragma once\n#include <cstdlib>\ninline const char* E() { return std::getenv(\"DSV4_X\"); }\n",
    "src/tensor/tensor.h": '#pragma once\n#include "base/check.h"\n#include "dsv4/status.h"\n',
    "src/ops/rope/rope.h": '#pragma once\n#include "tensor/tensor.h"\n',
    "src/ops/rope/rope_ref.cc": '#include "ops/rope/rope.h"\n#include <cmath>\n',
    "tests/ops/rope_test.cc": '#include "ops/rope/rope.h"\n',
    "bench/ops/rope_bench.cc": '#include "ops/rope/rope.h"\n',
    "src/layers/norm.h": '#pragma once\n#include "ops/rope/rope.h"\n',
    "src/model/deepseek_v4/forward.cc": '#include "layers/norm.h"\nint streams;  // cuda is only a word here\n',
    "src/text/tokenizer.h": '#pragma once\n#include "base/check.h"\n',
    "src/engine/engine.cc": '#include "model/model.h"\nconst char* k = "cuda: not in this build";\n',
    "src/model/deepseek_v4/config.h": "#pragma once\n",
    "src/model/model.h": "#pragma once\n",
    "cli/args.h": '#pragma once\n#include "dsv4/engine.h"\n',
    "cli/main.cc": '#include <CLI/CLI.hpp>\n#include "args.h"\n#include "dsv4/engine.h"\nint main() { std::exit(2); }\n',
}


class CheckIncludes(TreeTestCase):
    GOOD = GOOD

    def errors(self):
        return check_includes.run(self.root).errors

    def test_contract(self):
        switch = '#pragma once\n#ifdef DSV4_HAVE_CUDA\n#endif\n'
        self.expect("src/ops/rope/rope.h", switch, "contract", 2)

    def test_contract_of_what_is_seen_from_above(self):
        self.write("src/layers/norm.h", '#pragma once\n#include "ops/rope/rope.h"\n#include "ops/kinds.h"\n')
        self.write("src/ops/kinds.h", '#pragma once\n#include "ops/rope/limits.h"\n')
        self.expect("src/ops/rope/limits.h", "#pragma once\n\n#if 1\n#endif\n", "contract", 3)

    def test_contract_leaves_kernels_alone(self):
        self.write("src/ops/rope/simd.h", "#pragma once\n#ifdef __AVX2__\n#endif\n")
        self.assertEqual(self.errors(), [])

    def test_good_tree_is_clean(self):
        report = check_includes.run(self.root)
        self.assertEqual(report.errors, [])
        self.assertEqual(report.warnings, [])

    def test_upward_include(self):
        self.expect("src/tensor/bad.h", '#pragma once\n#include "ops/rope/rope.h"\n', "include", 2)

    def test_sideways_include(self):
        self.expect("src/text/bad.cc", '#include "tensor/tensor.h"\n', "include", 1)

    def test_angle_brackets_do_not_hide_an_upward_include(self):
        self.expect("src/ops/rope/rope.cc", "#include <layers/norm.h>\n", "include", 1)

    def test_io_knows_no_model(self):
        self.expect("src/io/bad.cc", '#include "model/deepseek_v4/config.h"\n', "include", 1)

    def test_engine_sees_the_seam_only(self):
        self.expect("src/engine/bad.cc", '#include "model/model.h"\n#include "model/deepseek_v4/config.h"\n', "seam", 2)

    def test_ops_know_no_files(self):
        self.write("src/io/safetensors.h", "#pragma once\n")
        self.expect("src/ops/rope/rope.cc", '#include "io/safetensors.h"\n', "include", 1)

    def test_unlisted_folder(self):
        self.expect("src/misc/bad.cc", '#include "base/check.h"\n', "include", 1)

    def test_cli_sees_the_public_headers_only(self):
        self.expect("cli/bad.cc", '#include "text/tokenizer.h"\n', "include", 1)

    def test_server_sees_the_public_headers_only(self):
        self.expect("server/bad.cc", '#include "base/check.h"\n', "include", 1)

    def test_folders_of_server_include_those_before_them(self):
        self.write("server/base/json.h", "#pragma once\n")
        self.write("server/http/http.h", '#pragma once\n#include "server/base/json.h"\n')
        self.write("server/server.cc", '#include "server/http/http.h"\n')
        self.assertEqual(self.errors(), [])
        self.expect("server/base/bad.cc", '#include "server/base/json.h"\n#include "server/http/http.h"\n', "include", 2)

    def test_folders_of_the_engine_include_those_before_them(self):
        self.write("src/engine/engine_impl.h", "#pragma once\n")
        self.write("src/engine/ranks/ranks.h", "#pragma once\n")
        self.write("src/engine/drafts/drafting.cc", '#include "engine/ranks/ranks.h"\n')
        self.write("src/engine/load.cc", '#include "engine/ranks/ranks.h"\n#include "engine/engine_impl.h"\n')
        self.assertEqual(self.errors(), [])
        self.expect("src/engine/drafts/drafting.cc", '#include "engine/engine_impl.h"\n', "include", 1)

    def test_a_folder_of_server_without_a_place(self):
        self.write("server/base/json.h", "#pragma once\n")
        self.expect("server/misc/bad.cc", '#include "server/base/json.h"\n', "include", 1)

    def test_includes_of_server_are_written_from_the_top(self):
        self.write("server/base/json.h", "#pragma once\n")
        self.expect("server/base/bad.cc", '#include "json.h"\n', "include-path", 1)

    def test_public_header_includes_no_third_party(self):
        self.expect("include/dsv4/bad.h", "#pragma once\n#include <nlohmann/json.hpp>\n", "include", 2)

    def test_public_header_includes_no_source(self):
        self.expect("include/dsv4/bad.h", '#pragma once\n#include "base/check.h"\n', "include", 2)

    def test_missing_header(self):
        self.expect("src/base/bad.cc", '#include "base/gone.h"\n', "include-path", 1)

    def test_missing_public_header(self):
        self.expect("src/base/bad.cc", '#include "dsv4/gone.h"\n', "include-path", 1)

    def test_relative_include(self):
        self.expect("src/base/bad.cc", '#include "check.h"\n', "include-path", 1)

    def test_columns(self):
        self.expect("src/text/wide.cc", "int x;\n" + "//" + 119 * "x" + "\n", "columns", 2)

    def test_columns_of_raw_strings_are_their_own(self):
        self.write("src/text/wide.cc", 'const char* k = R"(a\n' + 200 * "x" + '\n)";\n//' + 118 * "x" + "\n")
        self.assertEqual(self.errors(), [])

    def test_hard_limit(self):
        self.expect("src/base/long.cc", "int x();\n" * 1001, "size", 1001)

    def test_soft_limit_only_warns(self):
        self.write("src/base/long.cc", "int x();\n" * 501)
        report = check_includes.run(self.root)
        self.assertEqual(report.errors, [])
        self.assertEqual(len(report.warnings), 1)
        self.assertIn("[size]", report.warnings[0])

    def test_five_hundred_lines_are_fine(self):
        self.write("src/base/long.cc", "int x();\n" * 500)
        self.assertEqual(check_includes.run(self.root).warnings, [])

    def test_generated_table_may_be_long(self):
        self.write(sorted(check_includes.GENERATED)[0], "int x();\n" * 5000)
        self.assertEqual(self.errors(), [])

    def test_pragma_once(self):
        self.expect("src/base/bad.h", "// #pragma once is only mentioned\nint x();\n", "pragma-once", 1)

    def test_getenv(self):
        self.expect("src/kv/bad.cc", '#include <cstdlib>\nbool b = std::getenv("X") != nullptr;\n', "getenv", 2)

    def test_getenv_in_tests(self):
        self.expect("tests/kv/bad_test.cc", 'const char* b = getenv("X");\n', "getenv", 1)

    def test_using_namespace_in_a_header(self):
        self.expect("src/kv/bad.h", "#pragma once\nusing namespace std;\n", "using", 2)

    def test_using_namespace_in_a_source_file(self):
        self.write("tests/kv/good_test.cc", "using namespace std;\n")
        self.assertEqual(self.errors(), [])

    def test_markers(self):
        for word in ("TO" "DO", "FIX" "ME"):
            with self.subTest(word):
                self.expect("src/base/bad.cc", f"int x;\nint y;  // {word}: later\n", "marker", 2)

    def test_exit_in_the_library(self):
        self.expect("src/base/bad.cc", "void F() { std::exit(1); }\n", "exit", 1)

    def test_device_words(self):
        for line in ("cudaStream_t s;", "__global__ void K();", "void RunSm90() { Gemm_sm90(); }", "int x = sm_100a;",
                     "__m256 v;", "ncclComm_t c;"):
            with self.subTest(line):
                self.expect("src/layers/bad.cc", f"\n{line}\n", "device-word", 2)

    def test_device_words_in_every_folder_above_ops(self):
        for name in ("src/model/bad.cc", "src/engine/bad.cc", "cli/bad.cc", "server/bad.cc"):
            with self.subTest(name):
                self.expect(name, "cudaError_t e;\n", "device-word", 1)
                (self.root / name).unlink()

    def test_device_words_are_fine_in_ops(self):
        self.write("src/ops/rope/rope_cuda.cu", "__global__ void K() {}\n")
        self.assertEqual(self.errors(), [])

    def test_preprocessor_switch_above_ops(self):
        self.expect("src/layers/bad.cc", "#ifdef DSV4_FAST\n#endif\n", "device-word", 1)

    def test_comments_and_strings_do_not_count(self):
        self.write("src/layers/good.cc", "/* cudaStream_t\n __global__ */\nauto s = \"sm_90\";\n"
                   "auto r = R\"(getenv(\"X\") std::exit(1))\";\nint n = 1'000'000;  // getenv, cuda\nchar q = '\"';\n"
                   "int m;  // \"\n")
        self.assertEqual(self.errors(), [])

    def test_code_after_a_quote_character_still_counts(self):
        self.expect("src/layers/bad.cc", "char q = '\"'; cudaError_t e;\n", "device-word", 1)

    def test_op_parts(self):
        for name in ("src/ops/rope/rope.h", "src/ops/rope/rope_ref.cc", "tests/ops/rope_test.cc",
                     "bench/ops/rope_bench.cc"):
            with self.subTest(name):
                text = (self.root / name).read_text(encoding="utf-8")
                (self.root / name).unlink()
                found = [e for e in self.errors() if "[op]" in e]
                self.assertEqual(len(found), 1, found)
                self.assertIn(name, found[0])
                self.write(name, text)

    def test_exit_status(self):
        def status():
            return subprocess.run([sys.executable, "-B", str(SCRIPT), "--root", str(self.root)],
                                  stdout=subprocess.DEVNULL, check=False).returncode
        self.assertEqual(status(), 0)
        self.write("src/base/bad.h", "int x();\n")
        self.assertEqual(status(), 1)


if __name__ == "__main__":
    unittest.main()
