-- How jobs and groups end; shared by all scripts (common.lua).

-- Failures of a class that a job survives all but the last of; a run may have its own (budget.lua).
local BUDGET = { engine = 5, user = 5, worker = 5, env = 2, job = 2, cancelled = 1 }
local INFRASTRUCTURE = { engine = true, user = true, worker = true }

local function budget(class)
  return whole(field('run', 'budget:' .. class), 1, MOST) or BUDGET[class]
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

-- All members have ended: the group is ready, or dropped. An index of another type is mended later.
local function close(group)
  redis.pcall('ZREM', prefix .. 'open:' .. group.purpose, group.name)
  if group.done >= group.viable then
    redis.call('HSET', group.key, 'state', 'ready')
    redis.pcall('ZADD', prefix .. 'ready:' .. group.purpose, group.seq, group.name)
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
  group[outcome] = math.min(group.size, group[outcome] + 1)
  redis.call('HSET', group.key, outcome, group[outcome])
  if group.done + group.dead >= group.size then close(group) end
end

-- The lease's attempt has failed: queued again, not before its backoff, or dead. `roll` in [0, 1) is the jitter; nil:
-- no backoff; `final`: dead, whatever its budget. A count that is none reads as a spent budget: no other would ever end
-- it. Returns 'queued' or 'dead', and not_before.
local function fail_attempt(id, attempt, group, class, reason, by, roll, time, final)
  local job, most = typed('job:' .. id, 'hash'), budget(class)
  local before = whole(redis.call('HGET', job, 'fail:' .. class) or '0', 0, MOST)
  local failures = before and before + 1 or most
  local outcome, not_before = 'queued', 0
  if final or failures >= most then
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
