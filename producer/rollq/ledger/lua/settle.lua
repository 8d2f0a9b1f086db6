-- How jobs and groups end; shared by all scripts (common.lua).

-- How many failures of the class kill a job; a run may have its own budgets (pin_budgets.lua).
local function budget(class)
  return whole(field('run', 'budget:' .. class), 1, MOST) or constants.budgets[class]
end

-- What the lease set holds of a job: attempt#token. Only for records that do not say.
local function find_leases(id)
  local found = {}
  for _, held in ipairs(redis.call('ZRANGE', prefix .. 'leased', 0, -1)) do
    local of, lease = string.match(held, '^([^#]*)#(.*)$')
    if of == id then found[#found + 1] = lease end
  end
  return found
end

local function attempt_of(lease)
  return whole(string.match(lease or '', '^%d+'), 0, MOST)
end

-- Claims so far. If the record does not say, it is the last attempt that ended or has a lease.
local function attempts(id)
  local known = whole(field('job:' .. id, 'attempt'), 0, MOST)
  if known then return known end
  local highest = attempt_of(field('job:' .. id, 'ended')) or 0
  for _, lease in ipairs(find_leases(id)) do highest = math.max(highest, attempt_of(lease) or 0) end
  return highest
end

-- The last claim of a job as the lease set names it: attempt#token.
local function lease_of(id)
  local attempt, token = whole(field('job:' .. id, 'attempt'), 0, MOST), field('job:' .. id, 'token')
  if attempt and (token or attempt == 0) then return attempt .. '#' .. (token or '') end
  return find_leases(id)[1] or attempts(id) .. '#'
end

-- Deletes the journals of a job, what lies beside them, and the key that follows. `aside` is what its record says.
local function free_journals(id, aside, ...)
  for attempt in string.gmatch(aside or '', '%d+') do
    redis.call('DEL', prefix .. 'journal:' .. id .. '#' .. attempt)
  end
  redis.call('DEL', prefix .. 'journal:' .. id, prefix .. 'extras:' .. id, ...)
end

-- Deletes the body and the journals of a job that is over.
local function free(id)
  free_journals(id, field('job:' .. id, 'aside'))
  redis.pcall('HDEL', prefix .. 'job:' .. id, 'body', 'aside', 'reason')
end

-- Consumers that wait for groups of that purpose look again, when there are enough for them or no more can come.
local function wake_consumers(purpose)
  local waiting = prefix .. 'waiting:' .. purpose
  if redis.call('TYPE', waiting)['ok'] ~= 'hash' then return end
  local ready, open = redis.call('ZCARD', prefix .. 'ready:' .. purpose), redis.call('ZCARD', prefix .. 'open:' .. purpose)
  local waiters = redis.call('HGETALL', waiting)
  for i = 1, #waiters, 2 do
    if open == 0 or ready >= stored_number(waiters[i + 1]) then
      local wake = prefix .. 'wake:' .. waiters[i]
      redis.call('DEL', wake)
      redis.call('LPUSH', wake, 1)
      redis.call('EXPIRE', wake, constants.wake_s)
      redis.call('HDEL', waiting, waiters[i])
    end
  end
end

-- A producer that waits for room tries again (submit.lua). It looks every second anyway, so one wake-up is enough.
local function wake_producers()
  if not (field('run', 'full:train') or field('run', 'full:eval')) then return end
  local wake = prefix .. 'wake:producers'
  redis.call('DEL', wake)
  redis.call('LPUSH', wake, 1)
  redis.call('EXPIRE', wake, constants.wake_s)
end

-- A dropped group whose dead members were all discarded can never come back, so its graded members are freed too.
local function free_graded_members(group)
  if group.state ~= 'dropped' or group.discarded < group.dead then return end
  for sample = 0, group.members - 1 do free(member(group.name, sample)) end
  redis.call('DEL', prefix .. 'prompts:' .. group.name)
  redis.call('HDEL', group.key, 'body')
end

-- The record of an acknowledged group is kept as long as the run says, and at least as long as its dead members.
local function let_expire(record)
  local forget_after_s = whole(field('run', 'forget_after_s'), 1, MOST)
  if forget_after_s then redis.call('EXPIRE', record, forget_after_s) end
end

-- An acknowledged group becomes one small record, by which a later submission of it is recognised. Dead members that
-- were not discarded keep what they hold.
local function shrink(group, token)
  local digests, dead, surplus, letters = {}, {}, {}, false
  for sample = 0, group.members - 1 do
    local id = member(group.name, sample)
    local job = prefix .. 'job:' .. id
    local state, digest, discarded, aside = unpack(redis.pcall('HMGET', job, 'state', 'digest', 'discarded', 'aside'))
    digests[#digests + 1] = string.sub((digest or '') .. string.rep('\0', 8), 1, 8)
    if state == 'dead' then dead[#dead + 1] = sample end
    if state == 'surplus' then surplus[#surplus + 1] = sample end
    if state == 'dead' and not discarded then
      letters = true
      if not field('job:' .. id, 'body') then redis.pcall('HSET', job, 'body', field('group:' .. group.name, 'body') or '') end
    else
      free_journals(id, aside, job)
    end
  end
  redis.call('DEL', group.key)
  if not letters then redis.call('DEL', prefix .. 'prompts:' .. group.name) end
  local record = prefix .. 'acked:' .. group.name
  local samples = table.concat(dead, ',') .. (#surplus > 0 and ';' .. table.concat(surplus, ',') or '')
  redis.call('SET', record, table.concat({ group.seq, group.members, token, samples, table.concat(digests) }, ' '))
  if not letters then let_expire(record) end
end

-- The members that are not needed any more: they leave the run at once, and their workers are fenced.
local function end_surplus(group)
  for sample = 0, group.members - 1 do
    local id = member(group.name, sample)
    if not ENDED[field('job:' .. id, 'state')] then
      redis.call('ZREM', prefix .. 'queued', id)
      redis.call('ZREM', prefix .. 'leased', id .. '#' .. lease_of(id))
      free(id)
      if redis.call('TYPE', prefix .. 'job:' .. id)['ok'] ~= 'hash' then redis.call('DEL', prefix .. 'job:' .. id) end
      redis.call('HSET', prefix .. 'job:' .. id, 'state', 'surplus')
      group.surplus = group.surplus + 1
    end
  end
  redis.call('HSET', group.key, 'surplus', group.surplus)
end

-- One more member of the group is 'done' or 'dead'. The group is over when `size` members are done, or all have ended;
-- then it is ready or dropped. What follows are further fields of its record, and their values.
local function settle(group, outcome, ...)
  group[outcome] = math.min(group.members, group[outcome] + 1)
  redis.call('HSET', group.key, outcome, group[outcome], ...)
  local left = group.members - group.done - group.dead - group.surplus
  if left > 0 and group.done < group.size then return end
  if left > 0 then
    end_surplus(group)
    count('surplus', left)
  end
  group.state = group.done >= group.viable and 'ready' or 'dropped'
  redis.call('HSET', group.key, 'state', group.state)
  redis.call('ZREM', prefix .. 'open:' .. group.purpose, group.name)
  if group.state == 'ready' then
    redis.call('ZADD', prefix .. 'ready:' .. group.purpose, group.seq, group.name)
  else
    free_graded_members(group)
    count('groups_dropped')
    count('dropped', group.done)
    wake_producers()
  end
  wake_consumers(group.purpose)
end

-- The lease's attempt has failed: queued again, not before its backoff, or dead. `roll` in [0, 1) is the jitter; nil:
-- no backoff. `final`: dead, whatever its budget. Returns 'queued' or 'dead', and not_before.
local function fail_attempt(id, lease, group, class, reason, by, roll, time, final)
  local job, most = typed('job:' .. id, 'hash'), budget(class)
  local before = whole(redis.call('HGET', job, 'fail:' .. class) or '0', 0, MOST)
  local failures = before and before + 1 or most -- a job whose count cannot be read must still end
  local outcome, not_before = 'queued', 0
  if final or failures >= most then
    outcome = 'dead'
  elseif roll and constants.infrastructure[class] then
    not_before = time + 1 + roll * (math.min(constants.longest_backoff_s, 2 ^ failures) - 1)
  end
  redis.call('ZREM', prefix .. 'leased', id .. '#' .. lease)
  redis.call('HSET', job, 'state', outcome, 'not_before', not_before, 'ended', lease, 'ended_by', by,
    'outcome', outcome, 'fail:' .. class, failures, 'class', class, 'reason', reason)
  if not constants.infrastructure[class] then redis.call('HSET', job, 'restart', 1) end
  if outcome == 'dead' then
    redis.call('ZADD', prefix .. 'dead', time, id)
    settle(group, 'dead')
  else
    redis.call('ZADD', prefix .. 'queued', math.max(not_before, at_once(group.seq)), id)
  end
  count('failures:' .. class)
  return outcome, not_before
end

-- The job is dead, of class job, whatever its record holds.
local function end_as_dead(id, why, time)
  local key, attempt, leases = prefix .. 'job:' .. id, attempts(id), find_leases(id)
  local failures = whole(field('job:' .. id, 'fail:job'), 0, MOST) or 0
  if redis.call('TYPE', key)['ok'] ~= 'hash' then redis.call('DEL', key) end
  redis.call('HSET', key, 'state', 'dead', 'attempt', attempt, 'ended', attempt, 'ended_by', 'damage', 'class', 'job',
    'reason', why, 'fail:job', failures + 1)
  -- Redis's user of a trainer rejects jobs, and may not write to `queued`.
  if redis.call('ZSCORE', prefix .. 'queued', id) then redis.call('ZREM', prefix .. 'queued', id) end
  for _, lease in ipairs(leases) do redis.call('ZREM', prefix .. 'leased', id .. '#' .. lease) end
  redis.call('ZADD', prefix .. 'dead', time, id)
  count('failures:job')
end

-- A group whose record cannot be read is dropped, and its members that are not done are dead. A name without members is
-- forgotten.
local function drop_group(name, why, time)
  local key, members, ended, discarded = prefix .. 'group:' .. name, 0, { done = 0, dead = 0, surplus = 0 }, 0
  local seq, purpose = whole(field('group:' .. name, 'seq'), 0, MOST) or 0, 'train'
  for of in pairs(PURPOSES) do
    for _, where in ipairs({ 'open:', 'ready:', 'held:' }) do
      if redis.call('ZREM', prefix .. where .. of, name) == 1 then purpose = of end
    end
  end
  while members < constants.largest_group and redis.call('EXISTS', prefix .. 'job:' .. member(name, members)) == 1 do
    local id = member(name, members)
    local state = field('job:' .. id, 'state')
    if not ENDED[state] then end_as_dead(id, why, time) end
    state = ENDED[state] and state or 'dead'
    ended[state] = ended[state] + 1
    if field('job:' .. id, 'discarded') then discarded = discarded + 1 end
    members = members + 1
  end
  local kept = { body = field('group:' .. name, 'body') }
  kept.queue = queue_name(field('group:' .. name, 'queue')) or constants.default_queue
  redis.call('DEL', key)
  wake_consumers(purpose)
  wake_producers()
  if members == 0 then return end
  local size = math.max(1, members - ended.surplus)
  for of, value in pairs(kept) do redis.call('HSET', key, of, value) end
  redis.call('HSET', key, 'seq', seq, 'size', size, 'spare', members - size, 'viable', size, 'purpose', purpose,
    'done', ended.done, 'dead', ended.dead, 'surplus', ended.surplus, 'discarded', discarded, 'state', 'dropped', 'handed', 0)
  count('groups_dropped')
  count('dropped', ended.done)
end

-- The group; nil when it cannot be read and was dropped.
local function group_or_drop(name, time)
  local well, group = pcall(read_group, name)
  if well then return group end
  drop_group(name, reason(group), time)
end

-- Ends an unfinished job as dead when it or its group cannot be read. Such a group is dropped. A name that belongs to
-- no job is only forgotten.
local function end_unreadable(id, why, time)
  redis.call('ZREM', prefix .. 'queued', id)
  local name, sample = parse(id)
  if not sample or redis.call('EXISTS', prefix .. 'job:' .. id, prefix .. 'group:' .. name) == 0 then return end
  local state = field('job:' .. id, 'state')
  local well, group = pcall(read_group, name)
  if ENDED[state] or well and sample >= group.members then return end
  end_as_dead(id, why, time)
  if not well then
    drop_group(name, reason(group), time)
  elseif group.state == 'open' then
    settle(group, 'dead')
  end
end
