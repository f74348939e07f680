#!/bin/sh
# The server's requests with curl.
#
#   build/calla serve models/tiny --port 8080 &
#   examples/curl.sh http://127.0.0.1:8080
base=${1:?usage: examples/curl.sh http://HOST:PORT}
set -e

ask() {
    path=$1
    shift
    curl --silent --show-error --fail --no-buffer "$base$path" "$@"
    echo
}

ask /health
ask /v1/models
model=$(curl --silent "$base/v1/models" | sed 's/.*"data":\[{"id":"\([^"]*\)".*/\1/')

# a whole answer, then a stream
ask /v1/chat/completions --json '{"model": "'"$model"'", "temperature": 0, "enable_thinking": false,
    "messages": [{"role": "user", "content": "Define hot."}]}'
ask /v1/chat/completions --json '{"model": "'"$model"'", "temperature": 0, "stream": true, "max_tokens": 8,
    "messages": [{"role": "user", "content": "Define hot."}]}'

# raw text, tokens, and the prompt that messages become
ask /v1/completions --json '{"model": "'"$model"'", "prompt": "The opposite of hot is", "max_tokens": 4,
    "temperature": 0}'
ask /tokenize --json '{"prompt": "Define hot."}'
ask /apply-template --json '{"messages": [{"role": "user", "content": "Define hot."}]}'
ask /metrics | grep '^calla_generated_tokens_total'
