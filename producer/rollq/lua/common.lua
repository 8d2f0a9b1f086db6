-- What the scripts share; put in front of each of them. keys.py says what the keys hold.
--
-- A script reads and checks everything before its first write: Redis keeps what a failing script has written so far.
-- Counters come last and cannot fail.

local prefix = KEYS[1] -- 'rollq:{run}:'; every key is prefix .. name, so all are in the run's slot
local run = string.match(prefix, '{(.*)}')

local TYPES = {
  run = 'hash', sources = 'hash', count = 'hash', queued = 'zset', leased = 'zset', dead = 'zset',
  ['open:train'] = 'zset', ['ready:train'] = 'zset', ['held:train'] = 'zset',
  ['open:eval'] = 'zset', ['ready:eval'] = 'zset', ['held:eval'] = 'zset',
}
local JOB_STATES = { queued = true, leased = true, done = true, dead = true }
local GROUP_STATES = { open = true, ready = true, held = true, acked = true, dropped = true }
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

-- The reply to whoever does not hold the lease. Of a run that was forgotten it leaves no trace.
local function fenced()
  if redis.call('EXISTS', prefix .. 'run') == 1 then count('fenced') end
  return { 'fenced' }
end

-- What each done job adds to the totals, as 'name number name number ...'; kept in its group's record.
local function tally(text, sign)
  for name, number in string.gmatch(text, '(%S+) (%S+)') do
    redis.pcall('HINCRBYFLOAT', prefix .. 'count', name, string.format('%.17g', sign * (tonumber(number) or 0)))
  end
end

-- Group and sample of a job id of this run; nil for whatever else a name may be.
local function parse(id)
  local of, name, sample = string.match(id, '^([^/]+)/([^/]+)/(%d+)$')
  if of == run and sample == tostring(tonumber(sample)) then return name, tonumber(sample) end
end

local function group_name(id)
  return parse(id) or damaged(prefix .. 'job:' .. id, 'is no job of this run')
end

local function member(group, sample)
  return run .. '/' .. group.name .. '/' .. sample
end

-- A field of a record that may be damaged: nil then, and when it is not there.
local function field(name, of)
  local found = redis.pcall('HGET', prefix .. name, of)
  return type(found) == 'string' and found or nil
end

-- The group as a table with its key, checked so that settle() cannot fail half-way.
local function read_group(name)
  local key = typed('group:' .. name, 'hash')
  local got = redis.call('HMGET', key, 'seq', 'size', 'viable', 'purpose', 'done', 'dead', 'state', 'token', 'handed',
    'discarded')
  local group = {
    name = name, key = key, seq = tonumber(got[1]), size = tonumber(got[2]), viable = tonumber(got[3]),
    purpose = got[4], done = tonumber(got[5]), dead = tonumber(got[6]), state = got[7], token = got[8],
    handed = tonumber(got[9]), discarded = tonumber(got[10] or 0),
  }
  if not (group.seq and group.size and group.viable and group.done and group.dead and group.handed and group.discarded)
    or not GROUP_STATES[group.state] then
    damaged(key, 'is not a group')
  end
  if group.purpose ~= 'train' and group.purpose ~= 'eval' and group.state ~= 'dropped' then
    damaged(key, 'has no purpose')
  end
  return group
end

-- The group of a job that is about to end.
local function open_group(id)
  local group = read_group(group_name(id))
  if group.state ~= 'open' then damaged(group.key, 'is ' .. group.state .. ' while job ' .. id .. ' is being played') end
  sound('open:' .. group.purpose, 'ready:' .. group.purpose)
  return group
end

local function budget(class)
  return tonumber(field('run', 'budget:' .. class)) or BUDGET[class]
end

-- What a job that is over held: its body and its journals.
local function free(id)
  local record = 'job:' .. id
  for attempt in string.gmatch(field(record, 'aside') or '', '%d+') do
    redis.call('DEL', prefix .. 'journal:' .. id .. '#' .. attempt)
  end
  redis.call('DEL', prefix .. 'journal:' .. id)
  redis.pcall('HDEL', prefix .. record, 'body', 'aside', 'reason')
end

-- All dead members of a dropped group were discarded: it can never come back, and the graded ones go too.
local function free_the_rest(group)
  if group.state ~= 'dropped' or group.discarded < group.dead then return end
  for sample = 0, group.size - 1 do free(member(group, sample)) end
end

-- All members have ended: the group is ready, or dropped.
local function close(group)
  redis.call('ZREM', prefix .. 'open:' .. group.purpose, group.name)
  if group.done >= group.viable then
    redis.call('HSET', group.key, 'state', 'ready')
    redis.call('ZADD', prefix .. 'ready:' .. group.purpose, group.seq, group.name)
  else
    group.state = 'dropped'
    redis.call('HSET', group.key, 'state', 'dropped')
    free_the_rest(group)
    count('groups_dropped')
    count('dropped', group.done)
  end
end

-- One more member of the group is 'done' or 'dead'.
local function settle(group, outcome)
  group[outcome] = group[outcome] + 1
  redis.call('HSET', group.key, outcome, group[outcome])
  if group.done + group.dead >= group.size then close(group) end
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

-- The job is dead, of class job, because of what was found under its or its group's name.
local function die(id, attempt, why, time)
  local name = 'job:' .. id
  if not pcall(typed, name, 'hash') then move_away(name) end
  redis.call('HSET', prefix .. name, 'state', 'dead', 'attempt', attempt, 'ended', attempt, 'ended_by', 'damage',
    'class', 'job', 'reason', why)
  redis.pcall('HINCRBY', prefix .. name, 'fail:job', 1)
  redis.call('ZREM', prefix .. 'queued', id)
  redis.call('ZREM', prefix .. 'leased', id .. '#' .. attempt)
  redis.call('ZADD', prefix .. 'dead', time, id)
  count('failures:job')
end

-- A group that cannot be read is dropped and its members end, so that it holds up nothing else; one that was
-- acknowledged stays that. A name that no job has is only forgotten.
local function drop_damaged(name, why, time)
  local purpose
  for _, of in ipairs({ 'train', 'eval' }) do
    for _, where in ipairs({ 'open:', 'ready:', 'held:' }) do
      if redis.pcall('ZREM', prefix .. where .. of, name) == 1 then purpose = of end
    end
  end
  move_away('group:' .. name)
  local group = { name = name, size = 0, done = 0, dead = 0, state = 'dropped' }
  while redis.call('EXISTS', prefix .. 'job:' .. member(group, group.size)) == 1 do
    local id = member(group, group.size)
    local state = field('job:' .. id, 'state')
    if field('job:' .. id, 'acked') then group.state, purpose = 'acked', 'train' end
    if state == 'done' then
      group.done = group.done + 1
    else
      group.dead = group.dead + 1
      if state ~= 'dead' then die(id, tonumber(field('job:' .. id, 'attempt')) or 0, why, time) end
    end
    group.size = group.size + 1
  end
  if group.size == 0 then return end
  redis.call('HSET', prefix .. 'group:' .. name, 'seq', 0, 'size', group.size, 'viable', group.size, 'done', group.done,
    'dead', group.dead, 'state', group.state, 'handed', 0)
  if purpose then redis.call('HSET', prefix .. 'group:' .. name, 'purpose', purpose) end
  if group.state == 'acked' then return end
  count('groups_dropped')
  count('dropped', group.done)
end

-- The group; nil when it cannot be read and was dropped.
local function readable_group(name, time)
  local well, group = pcall(read_group, name)
  if well then return group end
  drop_damaged(name, reason(group), time)
end

-- The groups that are held under this token.
local function held_groups(token, time)
  local hold, groups = typed('hold:' .. token, 'set'), {}
  for _, name in ipairs(redis.call('SMEMBERS', hold)) do
    local group = readable_group(name, time)
    if group and group.state == 'held' and group.token == token then
      groups[#groups + 1] = group
    else
      redis.call('SREM', hold, name)
    end
  end
  return groups
end

-- A job whose record is damaged ends; a name that no job can have is only forgotten.
local function bury(id, attempt, why, time)
  local name, sample = parse(id)
  local group = name and readable_group(name, time)
  if group and sample < group.size and field('job:' .. id, 'state') ~= 'dead' then
    die(id, attempt, why, time)
    if group.state == 'open' then settle(group, 'dead') end
  end
  redis.call('ZREM', prefix .. 'queued', id)
end

local function seconds(time) -- replies carry no fractions
  return string.format('%.6f', time)
end
