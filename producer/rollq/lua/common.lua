-- What the scripts share; put in front of each of them. keys.py says what the keys hold.
--
-- A script reads and checks everything before its first write: Redis keeps what a failing script has written so far.
-- Counters come last and cannot fail.

local prefix = KEYS[1] -- 'rollq:{run}:'; every key is prefix .. name, so all are in the run's slot

local TYPES = {
  run = 'hash', count = 'hash', queued = 'zset', leased = 'zset', dead = 'zset',
  ['open:train'] = 'zset', ['ready:train'] = 'zset', ['held:train'] = 'zset',
  ['open:eval'] = 'zset', ['ready:eval'] = 'zset', ['held:eval'] = 'zset',
}
-- Failures of a class that a job survives all but the last of; a run may have its own (budget.lua).
local BUDGET = { engine = 5, user = 5, worker = 5, env = 2, job = 2, cancelled = 1 }
local INFRASTRUCTURE = { engine = true, user = true, worker = true }

local function damaged(key, why)
  error('DAMAGED ' .. key .. ' ' .. why)
end

-- The full name of a key that is missing or of the type that it must have.
local function typed(name, kind)
  local key = prefix .. name
  local found = redis.call('TYPE', key)['ok']
  if found ~= 'none' and found ~= kind then
    damaged(key, 'is a ' .. found .. ' where a ' .. kind .. ' belongs')
  end
  return key
end

local function sound(...)
  for _, name in ipairs({ ... }) do typed(name, TYPES[name]) end
end

-- What damaged() said, without Redis's wrapping.
local function reason(failure)
  local text = type(failure) == 'table' and failure.err or tostring(failure)
  return string.match(text, 'DAMAGED (.*)') or text
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- Out of memory, Redis refuses a script whose first write needs some, and lets one go on that began by freeing. What
-- ends, renews or hands out work says this before its first write: only that makes room again.
local function even_without_memory()
  redis.call('DEL', prefix .. 'nothing')
end

local function count(field, by)
  redis.pcall('HINCRBY', prefix .. 'count', field, by or 1)
end

local function group_name(id)
  return string.match(id, '^[^/]+/([^/]+)/%d+$') or damaged(prefix .. 'job:' .. id, 'is no job id')
end

-- The group as a table with its key, checked so that settle() cannot fail half-way.
local function read_group(name)
  local key = typed('group:' .. name, 'hash')
  local got = redis.call('HMGET', key, 'seq', 'size', 'viable', 'purpose', 'done', 'dead', 'state', 'token', 'handed')
  local group = {
    name = name, key = key, seq = tonumber(got[1]), size = tonumber(got[2]), viable = tonumber(got[3]),
    purpose = got[4], done = tonumber(got[5]), dead = tonumber(got[6]), state = got[7], token = got[8],
    handed = tonumber(got[9]),
  }
  if not (group.seq and group.size and group.viable and group.done and group.dead and group.handed) then
    damaged(key, 'is not a group')
  end
  if group.purpose ~= 'train' and group.purpose ~= 'eval' then damaged(key, 'has no purpose') end
  return group
end

local function budget(class)
  local own = redis.pcall('HGET', prefix .. 'run', 'budget:' .. class)
  return type(own) == 'string' and tonumber(own) or BUDGET[class]
end

-- One more member of the group is 'done' or 'dead'; the last one makes it ready, or drops it.
local function settle(group, outcome)
  group[outcome] = group[outcome] + 1
  redis.call('HSET', group.key, outcome, group[outcome])
  if group.done + group.dead < group.size then return end
  redis.call('ZREM', prefix .. 'open:' .. group.purpose, group.name)
  if group.done >= group.viable then
    redis.call('HSET', group.key, 'state', 'ready')
    redis.call('ZADD', prefix .. 'ready:' .. group.purpose, group.seq, group.name)
  else
    redis.call('HSET', group.key, 'state', 'dropped')
    count('groups_dropped')
    count('dropped', group.done)
  end
end

-- The lease's attempt has failed: queued again, not before its backoff, or dead. `roll` in [0, 1) is the jitter; nil:
-- no backoff; `final`: dead, whatever its budget. Returns 'queued' or 'dead', and not_before.
local function fail_attempt(id, attempt, group, class, reason, by, roll, time, final)
  local job = typed('job:' .. id, 'hash')
  local failures = (tonumber(redis.call('HGET', job, 'fail:' .. class)) or 0) + 1
  local outcome, not_before = 'queued', 0
  if final or failures >= budget(class) then
    outcome = 'dead'
  elseif roll and INFRASTRUCTURE[class] then
    not_before = time + 1 + roll * (math.min(30, 2 ^ failures) - 1)
  end
  redis.call('ZREM', prefix .. 'leased', id .. '#' .. attempt)
  redis.call('HSET', job, 'state', outcome, 'not_before', not_before, 'ended', attempt, 'ended_by', by,
    'outcome', outcome, 'fail:' .. class, failures, 'class', class, 'reason', reason)
  if not INFRASTRUCTURE[class] then redis.call('HSET', job, 'restart', 1) end
  if outcome == 'dead' then
    redis.call('ZADD', prefix .. 'dead', time, id)
    settle(group, 'dead')
  else
    redis.call('ZADD', prefix .. 'queued', not_before, id)
  end
  count('failures:' .. class)
  return outcome, not_before
end

-- Evidence is kept, out of the way, under 'rollq:{run}:damaged:...'.
local function move_away(name)
  if redis.call('EXISTS', prefix .. name) == 1 then
    redis.call('RENAME', prefix .. name, prefix .. 'damaged:' .. name)
  end
end

-- The group, or nil when it cannot be read; it is then dropped, so that it holds up nothing else.
local function readable_group(name)
  local well, group = pcall(read_group, name)
  if well then return group end
  for _, purpose in ipairs({ 'train', 'eval' }) do
    for _, where in ipairs({ 'open:', 'ready:', 'held:' }) do
      redis.pcall('ZREM', prefix .. where .. purpose, name)
    end
  end
  move_away('group:' .. name)
  count('groups_dropped')
end

-- A job whose record is damaged is dead, of class job.
local function bury(id, attempt, why, time)
  local group = readable_group(group_name(id))
  local name = 'job:' .. id
  if not pcall(typed, name, 'hash') then move_away(name) end
  redis.call('HSET', prefix .. name, 'state', 'dead', 'attempt', attempt, 'ended', attempt, 'ended_by', 'damage',
    'class', 'job', 'reason', why)
  redis.call('HINCRBY', prefix .. name, 'fail:job', 1)
  redis.call('ZREM', prefix .. 'queued', id)
  redis.call('ZADD', prefix .. 'dead', time, id)
  if group and group.state == 'open' then settle(group, 'dead') end
  count('failures:job')
end

local function seconds(time) -- replies carry no fractions
  return string.format('%.6f', time)
end
