#!/usr/bin/env python3
"""Tests when a build has the CUDA part: cmake/Cuda.cmake's AUTO, and find_nvcc of scripts/common.sh."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def configure(folder, *variables):
    """Runs cmake/Cuda.cmake in a project without a language. Returns what CMake prints."""
    (folder / "CMakeLists.txt").write_text('cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES NONE)\n'
                                           'include(%s/cmake/Cuda.cmake)\nmessage(STATUS "have ${DSV4_HAVE_CUDA}")\n' % ROOT)
    result = subprocess.run(["cmake", "-S", folder, "-B", folder / "build", *("-D" + v for v in variables)],
                            capture_output=True, text=True, timeout=120,
                            env={**os.environ, "CUDACXX": str(folder / "no-nvcc")})
    return result.stdout + result.stderr


class Choice(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_auto_without_a_gpu_builds_no_cuda_and_says_why(self):
        said = configure(self.folder, "DSV4_GPU_FILE=%s/no-gpu" % self.folder)
        self.assertIn("off, no GPU was found", said)
        self.assertIn("-DDSV4_CUDA=ON builds it anyway", said)
        self.assertIn("have OFF", said)

    def test_auto_with_a_gpu_searches_for_nvcc(self):
        (self.folder / "gpu").touch()
        self.assertIn("off, nvcc was not found", configure(self.folder, "DSV4_GPU_FILE=%s/gpu" % self.folder))

    def test_on_without_nvcc_is_an_error(self):
        self.assertIn("DSV4_CUDA=ON but no CUDA compiler was found", configure(self.folder, "DSV4_CUDA=ON"))

    def test_the_scripts_find_the_compiler_that_the_environment_names(self):
        nvcc = self.folder / "nvcc"
        nvcc.write_text("#!/bin/sh\n")
        nvcc.chmod(0o755)
        found = subprocess.run(["bash", "-c", ". scripts/common.sh && find_nvcc"], cwd=ROOT, capture_output=True, text=True,
                               timeout=60, env={**os.environ, "CUDACXX": str(nvcc)})
        self.assertEqual(found.stdout, "%s\n" % nvcc)


if __name__ == "__main__":
    unittest.main()
