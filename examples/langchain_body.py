"""What LangChain's ChatOpenAI sends by default, without LangChain: fields that are null, fields that
a server need not know, and `n` and `stream` spelled out. It must be answered like any other request.

    build/calla serve models/tiny --port 8080 &
    python examples/langchain_body.py http://127.0.0.1:8080
"""

import json
import sys
import urllib.request

BODY = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "You are a dictionary.", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "Define hot."}]},
    ],
    "temperature": 0,
    "n": 1,
    "stream": False,
    "max_completion_tokens": 200,
    "frequency_penalty": None,
    "presence_penalty": None,
    "seed": None,
    "logprobs": None,
    "top_logprobs": None,
    "logit_bias": None,
    "stop": None,
    "tools": None,
    "tool_choice": None,
    "parallel_tool_calls": None,
    "response_format": None,
    "reasoning_effort": "none",
    "user": "somebody",
    "store": False,
    "metadata": {"run": "1"},
    "service_tier": None,
    "stream_usage": True,
    "disabled_params": None,
    "include_response_headers": False,
}

request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(BODY).encode(),
                                 {"Content-Type": "application/json"})
with urllib.request.urlopen(request) as response:
    answer = json.load(response)
print(answer["choices"][0]["message"]["content"])
