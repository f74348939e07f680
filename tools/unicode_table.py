#!/usr/bin/env python3
"""Writes src/text/unicode_table.c: the properties of every code point that tokenising needs.

    python3 tools/unicode_table.py          # rewrites the file; the output is the same under any
                                            # Python whose Unicode is 9.0 to 16.0

Classes (letter, mark, number) come from tests/golden/unicode_classes.tsv (Unicode 16.0, as the
tokenizer's regex sees it), white space from the White_Space list of spec 7.3. The two bits for NFC
are those of Unicode 9.0: Python's own data without everything that later versions added (NEWER).
"""
import os
import sys
import unicodedata

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
OTHER, LETTER, MARK, NUMBER, SPACE, NEWLINE = range(6)
NFC_CHANGES, NFC_BASE = 8, 16
BLOCK = 64

WHITE_SPACE = ("0009-000D 0020 0085 00A0 1680 2000-200A 2028 2029 202F 205F 3000")

# Code points newer than Unicode 9.0 that take part in normalisation (tests/golden/README.md part 2,
# without U+11A7, which is old, and inert, and only a bug of utf8proc 2.8). For the tokenizer they
# are inert, and so is every composition into them.
NEWER = """
07FD 0898-089F 08CA-08D3 09FE 0C3C 0D3B-0D3C 0EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 10D24-10D27
10EAB-10EAC 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 1145E 11839-1183A 11930 11935 11938
1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 11F41-11F42 16FF0-16FF1 1E08F
1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF
0897 10D69-10D6D 113CE-113D0 1612F 1E5EE-1E5EF
105C9 105E4 11383 11385 1138E 11391 113C5 113C7 113C8 16121-16128 16D68-16D6A
"""


def expand(text):
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def classes():
    table = bytearray(0x110000)
    with open(os.path.join(ROOT, "tests/golden/unicode_classes.tsv"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("#"):
                continue
            first, last, name = line.split()
            kind = {"L": LETTER, "M": MARK, "N": NUMBER}[name]
            for c in range(int(first, 16), int(last, 16) + 1):
                table[c] = kind
    for c in expand(WHITE_SPACE):
        table[c] = SPACE
    table[0x0A] = table[0x0D] = NEWLINE
    return table


def add_nfc(table):
    newer = set(expand(NEWER))
    changes, base = set(), set()
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000 or c in newer:
            continue
        if unicodedata.combining(chr(c)) or unicodedata.normalize("NFC", chr(c)) != chr(c):
            changes.add(c)
        parts = unicodedata.decomposition(chr(c))
        if not parts or parts.startswith("<"):
            continue
        parts = [int(part, 16) for part in parts.split()]
        base.add(c)
        text = "".join(map(chr, parts))
        if len(parts) == 2 and unicodedata.normalize("NFC", text) == chr(c):
            base.add(parts[0])
            changes.add(parts[1])
    changes.update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))  # Hangul vowels and finals
    base.update(range(0x1100, 0x1113), range(0xAC00, 0xD7A4, 28))
    assert not (changes | base) & newer
    for c in changes:
        table[c] |= NFC_CHANGES
    for c in base:
        table[c] |= NFC_BASE


def rows(values, width=98):
    line = ""
    for value in values:
        item = f"{value},"
        if len(line) + len(item) > width:
            yield line
            line = ""
        line += item
    yield line


def main():
    version = float(".".join(unicodedata.unidata_version.split(".")[:2]))
    if not 9.0 <= version <= 16.0:
        sys.exit(f"Python's Unicode is {version}; wanted 9.0 to 16.0, whose additions NEWER lists")
    table = classes()
    add_nfc(table)
    blocks, pages = {}, []
    for at in range(0, len(table), BLOCK):
        pages.append(blocks.setdefault(bytes(table[at:at + BLOCK]), len(blocks)))
    with open(os.path.join(ROOT, "src/text/unicode_table.c"), "w", encoding="ascii") as out:
        out.write("/* Made by tools/unicode_table.py; do not edit. The two stages of unicode_property (text/unicode.h):\n"
                  f" * {len(pages)} page numbers, then {len(blocks)} pages of {BLOCK} property bytes. */\n"
                  "/* clang-format off */\n#include \"text/unicode.h\"\n\n")
        out.write(f"const uint16_t unicode_pages[{len(pages)}] = {{\n")
        out.write("\n".join(rows(pages)) + "\n};\n\n")
        out.write(f"const uint8_t unicode_properties[{len(blocks) * BLOCK}] = {{\n")
        out.write("\n".join(rows(b"".join(blocks))) + "\n};\n")


if __name__ == "__main__":
    main()
