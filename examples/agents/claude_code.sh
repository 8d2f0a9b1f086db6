#!/bin/sh
# Claude Code as it is, without a window: its own tools, its own loop, and the last text is the episode's answer.
# It needs curl, python3 and `npm install -g @anthropic-ai/claude-code`. Telemetry and updates are off.
#
#     rollq demo --env maths.jsonl:number --set agent=examples/agents/claude_code.sh
set -eu
task=$(curl -sS --fail-with-body -H "Authorization: Bearer $ANTHROPIC_API_KEY" "$ROLLQ_EPISODE_URL" |
  python3 -c '
import json, sys
about = json.load(sys.stdin)
print("\n\n".join(said["content"] for said in about["messages"]))
if about["tools"]:
    print("The agent has its own tools and is not given those of this environment.", file=sys.stderr)')
export HOME="$TMPDIR"                                  # none of this user's settings
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_TELEMETRY=1 DISABLE_ERROR_REPORTING=1 DISABLE_AUTOUPDATER=1
export CLAUDE_CODE_ATTRIBUTION_HEADER=0                # a line in the system prompt that changes with each request
export IS_SANDBOX=1                                    # as root it wants to be told that nobody is asked
exec claude --print --dangerously-skip-permissions -- "$task"
