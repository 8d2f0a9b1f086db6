-- What becomes of records that cannot be read; shared by all scripts (common.lua). What follows from the records, the
-- indexes and totals, is mended later if it cannot be written here.

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
  local failures = whole(field(name, 'fail:job'), 0, MOST) or 0
  redis.call('HSET', prefix .. name, 'state', 'dead', 'attempt', attempt, 'ended', attempt, 'ended_by', 'damage',
    'class', 'job', 'reason', why, 'fail:job', failures + 1)
  redis.pcall('ZREM', prefix .. 'queued', id)
  redis.pcall('ZREM', prefix .. 'leased', id .. '#' .. attempt)
  redis.pcall('ZADD', prefix .. 'dead', time, id)
  count('failures:job')
end

local function attempts(id)
  return whole(field('job:' .. id, 'attempt'), 0, MOST) or 0
end

-- A group that cannot be read is dropped, and its members that are not done are dead, so that it holds up nothing else;
-- one that was acknowledged stays that. It has at least `least` members. A name that no job has is only forgotten.
local function drop_damaged(name, why, time, least)
  local record = 'group:' .. name
  local group = { name = name, done = 0, dead = 0, discarded = 0, state = 'dropped' }
  local purpose, was = field(record, 'purpose'), field(record, 'state')
  local seq, size = whole(field(record, 'seq'), 0, MOST) or 0, whole(field(record, 'size'), 1, LARGEST)
  for of in pairs(PURPOSES) do
    for _, where in ipairs({ 'open:', 'ready:', 'held:' }) do
      if redis.pcall('ZREM', prefix .. where .. of, name) == 1 then purpose = of end
    end
  end
  if pcall(typed, record, 'hash') then
    redis.call('COPY', prefix .. record, prefix .. 'damaged:' .. record, 'REPLACE')
  else
    move_away(record)
  end

  size = math.max(least or 0, size and true_size(group, size) or 0)
  while size < LARGEST and is_there(group, size) do size = size + 1 end
  local known = false
  for sample = 0, size - 1 do
    known = known or is_there(group, sample)
    if field('job:' .. member(group, sample), 'acked') then group.state = 'acked' end
  end
  if not known then
    redis.call('DEL', prefix .. record)
    return
  end

  for sample = 0, size - 1 do
    local id = member(group, sample)
    local state = field('job:' .. id, 'state')
    if state == 'done' or group.state == 'acked' and state ~= 'dead' then
      group.done = group.done + 1
    else
      group.dead = group.dead + 1
      if state ~= 'dead' then die(id, attempts(id), why, time) end
      if field('job:' .. id, 'discarded') then group.discarded = group.discarded + 1 end
    end
  end
  redis.call('HSET', prefix .. record, 'seq', seq, 'size', size, 'viable', size, 'done', group.done, 'dead', group.dead,
    'discarded', group.discarded, 'state', group.state, 'handed', 0, 'purpose', PURPOSES[purpose] and purpose or '')
  if group.state == 'dropped' and was ~= 'dropped' then
    count('groups_dropped')
    count('dropped', group.done)
  end
end

-- The group; nil when it cannot be read and was dropped. `least`: members that there are at least.
local function readable_group(name, time, least)
  local well, group = pcall(read_group, name)
  if well then return group end
  drop_damaged(name, reason(group), time, least)
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
  local least = name and redis.call('EXISTS', prefix .. 'job:' .. id) == 1 and sample + 1
  local group = name and readable_group(name, time, least or 0)
  if group and sample < group.size and field('job:' .. id, 'state') ~= 'dead' then
    die(id, attempt, why, time)
    if group.state == 'open' then settle(group, 'dead') end
  end
  redis.pcall('ZREM', prefix .. 'queued', id)
end
