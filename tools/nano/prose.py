"""Public-domain prose from Debian packages: the King James Bible and six novels of Jane Austen.

The command `bible` of the packages `bible-kjv` and `bible-kjv-text` prints the Bible. `r-cran-janeaustenr` has the
novels as lines of text in an R data file. Both become plain paragraphs. Whole books and chapters are held out.

    python3 prose.py OUT_DIR        writes train.txt and heldout.txt
"""

import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

AUSTEN_RDB = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
BIBLE_HELD_OUT = {"Ruth", "Jonah", "Jas", "Phmn"}  # whole books
BIBLE_HELD_OUT_CHAPTERS = {("Ge", 24), ("Psa", 91), ("Mat", 6), ("1Ki", 3)}
AUSTEN_HELD_OUT_EVERY = 20  # every 20th chapter of each novel
DOCUMENT_BREAK = "\n\f\n"


def bible_chapters():
    """Returns (book, chapter, verses) in order. A line is a reference, a blank and the verse."""
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    chapters, key = [], None
    for line in text.splitlines():
        match = re.match(r"(\d?[A-Za-z]+)(\d+):\d+ (.*)", line)
        if not match:
            continue
        if (match[1], match[2]) != key:
            key = (match[1], match[2])
            chapters.append((match[1], int(match[2]), []))
        chapters[-1][2].append(match[3].strip())
    return chapters


def chapter_paragraphs(verses, per_paragraph=4):
    groups = [verses[i : i + per_paragraph] for i in range(0, len(verses), per_paragraph)]
    return "\n\n".join(" ".join(group) for group in groups)


def r_character_vectors(path):
    """Yields the character vectors of an R lazy-load database: zlib pieces, each an XDR-serialised STRSXP."""
    data, pos = Path(path).read_bytes(), 0
    while pos < len(data):
        stream = zlib.decompressobj()
        piece = stream.decompress(data[pos + 4 :])  # after 4 bytes of length
        pos = len(data) - len(stream.unused_data)
        encoding_length = struct.unpack(">i", piece[14:18])[0]
        at = 18 + encoding_length
        kind, count = struct.unpack(">ii", piece[at : at + 8])
        at += 8
        if kind & 0xFF != 16:  # STRSXP
            continue
        lines = []
        for _ in range(count):
            length = struct.unpack(">i", piece[at + 4 : at + 8])[0]
            at += 8
            lines.append(piece[at : at + max(length, 0)].decode("utf-8"))
            at += max(length, 0)
        yield lines


def austen_chapters(lines):
    """Returns the chapters as text with one line per paragraph."""
    chapters, paragraph, chapter = [], [], []
    for line in lines + ["CHAPTER"]:
        line = line.strip()
        if re.match(r"(chapter|volume)\b", line, re.IGNORECASE):
            if paragraph:
                chapter.append(" ".join(paragraph))
            if len(chapter) > 5:
                chapters.append("\n\n".join(chapter))
            paragraph, chapter = [], []
        elif not line:
            if paragraph:
                chapter.append(" ".join(paragraph))
            paragraph = []
        else:
            paragraph.append(re.sub(r"\s+", " ", line.replace("_", "").replace("--", " - ")))
    return chapters


def collect(austen_rdb):
    train, held_out = [], []
    for book, chapter, verses in bible_chapters():
        is_held = book in BIBLE_HELD_OUT or (book, chapter) in BIBLE_HELD_OUT_CHAPTERS
        (held_out if is_held else train).append(chapter_paragraphs(verses))
    for lines in r_character_vectors(austen_rdb):
        for number, chapter in enumerate(austen_chapters(lines)):
            is_held = number % AUSTEN_HELD_OUT_EVERY == AUSTEN_HELD_OUT_EVERY - 1
            (held_out if is_held else train).append(chapter)
    return train, held_out


def load_documents(path):
    return Path(path).read_text(encoding="utf-8").split(DOCUMENT_BREAK)


def main():
    out = Path(sys.argv[1])
    austen = Path(sys.argv[2] if len(sys.argv) > 2 else "/") / AUSTEN_RDB
    train, held_out = collect(austen)
    out.mkdir(parents=True, exist_ok=True)
    for name, documents in (("train.txt", train), ("heldout.txt", held_out)):
        (out / name).write_text(DOCUMENT_BREAK.join(documents), encoding="utf-8")
        print(name, len(documents), "documents", sum(map(len, documents)), "characters")


if __name__ == "__main__":
    main()
