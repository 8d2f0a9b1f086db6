-- Holds: batches that a consumer took and has not acknowledged. A hold's token is `session/number`. The session of a
-- consumer without a name is a random text. That of a named one is `@purpose:name`, and its numbers are the batches'
-- steps. Only the process that opened a name last may use it: its owner `generation#text`.

local function session_of(token)
  return string.match(token, '^(.*)/%d+$') or token
end

local function step_of(token)
  return tonumber(string.match(token, '/(%d+)$') or '0')
end

-- The key of the named consumer whose hold this is; nil when it has no name.
local function consumer_of(token)
  local name = string.match(token, '^@(.*)/%d+$')
  return name and prefix .. 'consumer:' .. name
end

-- Whether another process has opened the consumer's name since. After a rollback the ledger may know an earlier owner
-- or none; then the later one owns the name again.
local function taken_over(token, owner)
  local key = consumer_of(token)
  if not key then return false end
  local current = redis_call('HGET', key, 'owner') or ''
  if current == owner then return false end
  local function generation(of) return tonumber(string.match(of, '^%d+') or '0') end
  if generation(current) >= generation(owner) then return true end
  if redis_call('EXISTS', prefix .. 'run') == 1 then
    allow_without_memory()
    redis_call('HSET', key, 'owner', owner, 'opened', generation(owner))
  end
  return false
end

local function end_hold(purpose, token)
  redis_call('DEL', prefix .. 'hold:' .. token)
  redis_call('ZREM', prefix .. 'holds:' .. purpose, token)
end

-- Keeps a hold for longer. The time of the renewal shows other consumers that this one is alive.
local function renew_hold(purpose, token, names, time, hold_s)
  for _, name in ipairs(names) do redis_call('ZADD', prefix .. 'held:' .. purpose, 'XX', 'GT', time + hold_s, name) end
  redis_call('ZADD', prefix .. 'holds:' .. purpose, time, token)
end

-- The groups that are held under this token.
local function held_groups(token)
  local hold, groups = prefix .. 'hold:' .. token, {}
  for _, name in ipairs(redis_call('SMEMBERS', hold)) do
    groups[#groups + 1] = read_group(name)
  end
  table.sort(groups, function(a, b) return a.seq < b.seq end)
  return groups
end
