#!/bin/sh
# An agent that is a shell command: one question, one answer, which the environment grades. It needs curl and jq.
#
#     rollq demo --env maths.jsonl:number --set agent=examples/agents/shell_agent.sh
set -eu
key="Authorization: Bearer $OPENAI_API_KEY"
curl -sS --fail-with-body -H "$key" "$ROLLQ_EPISODE_URL" |
  jq '{model: "rollq", messages: .messages, max_tokens: 200}' |
  curl -sS --fail-with-body -H "$key" -H "Content-Type: application/json" -d @- "$OPENAI_BASE_URL/chat/completions"
