#!/bin/sh
# Codex CLI as it is, without a window: its own tools, its own loop, and the last text is the episode's answer.
# It needs curl, python3 and `npm install -g @openai/codex`. Telemetry, updates and what asks OpenAI are off.
#
#     rollq demo --env maths.jsonl:number --set agent=examples/agents/codex.sh
set -eu
task=$(curl -sS --fail-with-body -H "Authorization: Bearer $OPENAI_API_KEY" "$ROLLQ_EPISODE_URL" |
  python3 -c '
import json, sys
about = json.load(sys.stdin)
print("\n\n".join(said["content"] for said in about["messages"]))
if about["tools"]:
    print("The agent has its own tools and is not given those of this environment.", file=sys.stderr)')
export HOME="$TMPDIR" CODEX_HOME="$TMPDIR/.codex"      # none of this user's settings
mkdir "$CODEX_HOME"
cat > "$CODEX_HOME/config.toml" <<END
model = "$OPENAI_MODEL"
model_provider = "rollq"
approval_policy = "never"
sandbox_mode = "danger-full-access"
web_search = "disabled"
check_for_update_on_startup = false
[agents]
enabled = false
[features]
goals = false
[analytics]
enabled = false
[otel]
exporter = "none"
[model_providers.rollq]
name = "rollq"
base_url = "$OPENAI_BASE_URL"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
END
exec codex exec --skip-git-repo-check -- "$task"
