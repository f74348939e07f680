"""The official openai package against `calla serve`: a stream, then a call of a function.

    pip install openai
    build/calla serve models/tiny --port 8080 &
    python examples/openai_sdk.py http://127.0.0.1:8080/v1
"""

import json
import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="any, unless the server has --api-key")
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "Define hot."}], temperature=0, stream=True,
    stream_options={"include_usage": True})
for chunk in stream:
    for choice in chunk.choices:
        reasoning = getattr(choice.delta, "reasoning_content", None)
        print(reasoning or choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n{chunk.usage.completion_tokens} tokens, "
              f"{chunk.usage.prompt_tokens_details.cached_tokens} of the prompt cached")

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]
messages = [{"role": "user", "content": "What is the weather in Rome?"}]
answer = client.chat.completions.create(
    model=model, messages=messages, tools=TOOLS, tool_choice="required", temperature=0,
    extra_body={"enable_thinking": False})
call = answer.choices[0].message.tool_calls[0]
print("call:", call.function.name, json.loads(call.function.arguments))
messages += [answer.choices[0].message,
             {"role": "tool", "tool_call_id": call.id, "content": "sunny, 28 degrees"}]
answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0,
                                        extra_body={"enable_thinking": False})
print(answer.choices[0].message.content)
