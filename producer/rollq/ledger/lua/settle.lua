-- How jobs and groups end; shared by all scripts (common.lua).

-- How many failures of the class kill a job; a run may have its own budgets (pin_budgets.lua).
local function budget(class)
  return tonumber(field('run', 'budget:' .. class) or constants.budgets[class])
end

-- The last claim of a job as the lease set names it: attempt#token.
local function lease_of(id)
  local attempt, token = unpack(redis_call('HMGET', prefix .. 'job:' .. id, 'attempt', 'token'))
  return (attempt or 0) .. '#' .. (token or '')
end

-- Deletes the journals of a job, what lies beside them, and the key that follows. `aside` is what its record says.
local function free_journals(id, aside, ...)
  for attempt in string.gmatch(aside or '', '%d+') do
    redis_call('DEL', prefix .. 'journal:' .. id .. '#' .. attempt)
  end
  redis_call('DEL', prefix .. 'journal:' .. id, prefix .. 'extras:' .. id, ...)
end

-- Deletes the body and the journals of a job that is over.
local function free(id)
  free_journals(id, field('job:' .. id, 'aside'))
  redis_call('HDEL', prefix .. 'job:' .. id, 'body', 'aside', 'reason')
end

-- Consumers that wait for groups of that purpose look again, when there are enough for them or no more can come.
local function wake_consumers(purpose)
  local waiting = prefix .. 'waiting:' .. purpose
  local waiters = redis_call('HGETALL', waiting)
  if #waiters == 0 then return end
  local ready = redis_call('ZCARD', prefix .. 'ready:' .. purpose)
  local open = redis_call('ZCARD', prefix .. 'open:' .. purpose)
  for i = 1, #waiters, 2 do
    if open == 0 or ready >= number(waiters[i + 1], waiting) then
      local wake = prefix .. 'wake:' .. waiters[i]
      redis_call('DEL', wake)
      redis_call('LPUSH', wake, 1)
      redis_call('EXPIRE', wake, constants.wake_s)
      redis_call('HDEL', waiting, waiters[i])
    end
  end
end

-- A producer that waits for room tries again (submit.lua). It looks every second anyway, so one wake-up is enough.
local function wake_producers()
  if not (field('run', 'full:train') or field('run', 'full:eval')) then return end
  local wake = prefix .. 'wake:producers'
  redis_call('DEL', wake)
  redis_call('LPUSH', wake, 1)
  redis_call('EXPIRE', wake, constants.wake_s)
end

-- A dropped group whose dead members were all discarded can never come back, so its graded members are freed too.
local function free_graded_members(group)
  if group.state ~= 'dropped' or group.discarded < group.dead then return end
  for sample = 0, group.members - 1 do free(member(group.name, sample)) end
  redis_call('DEL', prefix .. 'prompts:' .. group.name)
  redis_call('HDEL', group.key, 'body')
end

-- The record of an acknowledged group is kept as long as the run says, and at least as long as its dead members.
local function let_expire(record)
  local forget_after_s = field('run', 'forget_after_s')
  if forget_after_s then redis_call('EXPIRE', record, forget_after_s) end
end

-- An acknowledged group becomes one small record, by which a later submission of it is recognised. Dead members that
-- were not discarded keep what they hold.
local function shrink(group, token)
  local digests, dead, surplus, letters = {}, {}, {}, false
  for sample = 0, group.members - 1 do
    local id = member(group.name, sample)
    local job = prefix .. 'job:' .. id
    local state, digest, discarded, aside = unpack(redis_call('HMGET', job, 'state', 'digest', 'discarded', 'aside'))
    digests[#digests + 1] = string.sub((digest or '') .. string.rep('\0', 8), 1, 8)
    if state == 'dead' then dead[#dead + 1] = sample end
    if state == 'surplus' then surplus[#surplus + 1] = sample end
    if state == 'dead' and not discarded then
      letters = true
      if not field('job:' .. id, 'body') then
        redis_call('HSET', job, 'body', field('group:' .. group.name, 'body') or '')
      end
    else
      free_journals(id, aside, job)
    end
  end
  redis_call('DEL', group.key)
  if not letters then redis_call('DEL', prefix .. 'prompts:' .. group.name) end
  local record = prefix .. 'acked:' .. group.name
  local samples = table.concat(dead, ',') .. (#surplus > 0 and ';' .. table.concat(surplus, ',') or '')
  redis_call('SET', record, table.concat({ group.seq, group.members, token, samples, table.concat(digests) }, ' '))
  if not letters then let_expire(record) end
end

-- The members that are not needed any more: they leave the run at once, and their workers are fenced.
local function end_surplus(group)
  for sample = 0, group.members - 1 do
    local id = member(group.name, sample)
    if not ENDED[field('job:' .. id, 'state')] then
      redis_call('ZREM', prefix .. 'queued', id)
      redis_call('ZREM', prefix .. 'leased', id .. '#' .. lease_of(id))
      free(id)
      redis_call('HSET', prefix .. 'job:' .. id, 'state', 'surplus')
      group.surplus = group.surplus + 1
    end
  end
  redis_call('HSET', group.key, 'surplus', group.surplus)
end

-- One more member of the group is 'done' or 'dead'. The group is over when `size` members are done, or all have ended;
-- then it is ready or dropped. What follows are further fields of its record, and their values.
local function settle(group, outcome, ...)
  group[outcome] = math.min(group.members, group[outcome] + 1)
  redis_call('HSET', group.key, outcome, group[outcome], ...)
  local left = group.members - group.done - group.dead - group.surplus
  if left > 0 and group.done < group.size then return end
  if left > 0 then
    end_surplus(group)
    count('surplus', left)
  end
  group.state = group.done >= group.viable and 'ready' or 'dropped'
  redis_call('HSET', group.key, 'state', group.state)
  redis_call('ZREM', prefix .. 'open:' .. group.purpose, group.name)
  if group.state == 'ready' then
    redis_call('ZADD', prefix .. 'ready:' .. group.purpose, group.seq, group.name)
  else
    free_graded_members(group)
    count('groups_dropped')
    count('dropped', group.done)
    wake_producers()
  end
  wake_consumers(group.purpose)
end

-- The lease's attempt has failed: queued again, not before its backoff, or dead. `roll` in [0, 1) is the jitter; nil:
-- no backoff. Returns 'queued' or 'dead', and not_before.
local function fail_attempt(id, lease, group, class, reason, by, roll, time)
  local job, most = prefix .. 'job:' .. id, budget(class)
  local failures = number(redis_call('HGET', job, 'fail:' .. class), job) + 1
  local outcome, not_before = 'queued', 0
  if failures >= most then
    outcome = 'dead'
  elseif roll and constants.infrastructure[class] then
    not_before = time + 1 + roll * (math.min(constants.longest_backoff_s, 2 ^ failures) - 1)
  end
  redis_call('ZREM', prefix .. 'leased', id .. '#' .. lease)
  redis_call('HSET', job, 'state', outcome, 'not_before', not_before, 'ended', lease, 'ended_by', by,
    'outcome', outcome, 'fail:' .. class, failures, 'class', class, 'reason', reason)
  if not constants.infrastructure[class] then redis_call('HSET', job, 'restart', 1) end
  if outcome == 'dead' then
    redis_call('ZADD', prefix .. 'dead', time, id)
    settle(group, 'dead')
  else
    redis_call('ZADD', prefix .. 'queued', math.max(not_before, at_once(group.seq)), id)
  end
  count('failures:' .. class)
  return outcome, not_before
end
