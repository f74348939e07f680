"""The model answers like the one it was trained to be: 40 dictionary questions in wordings that were
never trained for their word (tools/tiny-model/corpus.py, held out by accept.py); Hugging Face in
float32 gives exactly these answers, each ended by a stop token."""

import json
import pathlib

from conftest import TINY, calla, read_jsonl

QUESTIONS = pathlib.Path(__file__).parent / "questions.jsonl"


def test_forty_questions():
    questions = read_jsonl(QUESTIONS)
    assert len(questions) == 40
    for line in questions:
        result = calla("run", TINY, line["question"], "--no-think", "--temperature", "0", "--json",
                       "--max-tokens", "90")
        assert result.code == 0, result.err
        answer = json.loads(result.out)
        assert answer["text"] == line["answer"], line["question"]
        assert answer["finish"] == "stop"
