#!/usr/bin/env python3
"""Measures the read rate of a disk with the files of a checkpoint: plain O_DIRECT reads, to compare with
`dsv4 bench start`.

  bench/disk_rate.py DIR                      prints a JSON line: 1 reader of 8 MiB blocks, then 16 readers of 2 MiB
  bench/disk_rate.py DIR --sequential-only    1 reader only
"""
import glob
import json
import mmap
import os
import sys
import threading
import time


def read_all(files, size, readers):
    """Reads the files block by block in order, `readers` blocks at a time. Returns bytes per second."""
    opened = [(os.open(f, os.O_RDONLY | os.O_DIRECT), os.path.getsize(f)) for f in files]
    blocks = [(fd, at) for fd, length in opened for at in range(0, length, size)]
    lock, position, done = threading.Lock(), [0], [0]

    def work():
        buffer = mmap.mmap(-1, size)
        while True:
            with lock:
                i = position[0]
                position[0] += 1
            if i >= len(blocks):
                return
            n = os.preadv(blocks[i][0], [buffer], blocks[i][1])
            with lock:
                done[0] += n

    start = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(readers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    seconds = time.monotonic() - start
    for fd, _ in opened:
        os.close(fd)
    return done[0] / seconds


if __name__ == "__main__":
    names = sorted(glob.glob(os.path.join(sys.argv[1], "*.safetensors")))
    total = sum(os.path.getsize(f) for f in names)
    line = {"bench": "disk", "dir": sys.argv[1], "files": len(names), "bytes": total}
    line["sequential_bytes_per_s"] = round(read_all(names, 8 << 20, 1))
    if "--sequential-only" not in sys.argv[2:]:
        line["parallel_bytes_per_s"] = round(read_all(names, 2 << 20, 16))
    print(json.dumps(line), flush=True)
