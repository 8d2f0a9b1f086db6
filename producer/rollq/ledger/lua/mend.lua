-- Makes the indexes and the totals of a damaged run what the records of its groups and jobs say. It walks all of Redis
-- once, so it is called when something was found missing, and rarely.
-- reads and writes  run sources count queued leased dead open:<purpose> ready:<purpose> held:<purpose> group:<group>
--                   job:<job>
-- ARGV   lease_s hold_s every_s (at most once in so long)
-- reply  how many entries were put right; -1: not again so soon
local time, mended = now(), moment(field('run', 'mended'))
if mended > 0 and mended <= time and time - mended < tonumber(ARGV[3]) then return -1 end
local known = redis.call('EXISTS', prefix .. 'run', prefix .. 'count') > 0
even_without_memory()

local put_right = 0
for name, kind in pairs(TYPES) do
  if not pcall(typed, name, kind) then
    move_away(name)
    put_right = put_right + 1
  end
end

redis.call('HSET', prefix .. 'run', 'mended', time) -- first: what cannot be mended is not tried all the time

local groups, cursor = {}, '0' -- groups[name] = members that it has at least
repeat
  local got = redis.call('SCAN', cursor, 'MATCH', prefix .. '*', 'COUNT', 1000)
  cursor = got[1]
  for _, key in ipairs(got[2]) do
    local kind, name = string.match(string.sub(key, #prefix + 1), '^(%a+):(.+)$')
    if kind == 'group' then groups[name] = groups[name] or 0 end
    if kind == 'job' then
      local of, sample = parse(name)
      if of then groups[of] = math.max(groups[of] or 0, sample + 1) end
    end
  end
until cursor == '0'

local index = {} -- what belongs into each: index[name][member] = score
for name, kind in pairs(TYPES) do
  if kind == 'zset' then index[name] = {} end
end
local totals = { groups = 0, submitted = 0, done = 0, discarded = 0, groups_acked = 0, groups_dropped = 0, dropped = 0,
  delivered = 0 }
local function add(name, number) totals[name] = (totals[name] or 0) + number end

-- A member's record, or what ends it: a job of a group that is over cannot be waiting.
local function look_at(group, id)
  local got = redis.pcall('HMGET', prefix .. 'job:' .. id, 'state', 'attempt', 'not_before', 'discarded')
  local state, attempt = got[1], whole(got[2], 0, MOST)
  if state == 'done' or group.state == 'acked' and state ~= 'dead' then
    group.done = group.done + 1
  elseif state == 'queued' and attempt and group.state == 'open' then
    index.queued[id] = moment(got[3])
  elseif state == 'leased' and attempt and group.state == 'open' then
    index.leased[id .. '#' .. got[2]] = time + tonumber(ARGV[1])
  else
    if state ~= 'dead' then die(id, attempt or 0, prefix .. 'job:' .. id .. ' was lost or damaged', time) end
    group.dead = group.dead + 1
    if state == 'dead' and got[4] then group.discarded = group.discarded + 1 else index.dead[id] = time end
  end
end

local function add_up(group)
  add('groups', 1)
  add('submitted', group.size)
  add('done', group.done)
  add('discarded', group.discarded)
  if group.state == 'acked' then
    add('groups_acked', 1)
    add('delivered', group.done)
  elseif group.state == 'dropped' then
    add('groups_dropped', 1)
    add('dropped', group.done)
  end
  if group.done == 0 then return end
  for sample = 0, group.size - 1 do
    local added = redis.call('HGET', group.key, 'tally:' .. sample) or ''
    for name, number in string.gmatch(added, '(%S+) (%S+)') do add(name, finite(number) or 0) end
  end
end

local seq = whole(field('run', 'seq'), 0, MOST) or 0
for name, least in pairs(groups) do
  -- One that cannot be read is dropped, and is then read as that.
  local group = readable_group(name, time, least) or readable_group(name, time, least)
  if group then
    local done, dead, discarded = group.done, group.dead, group.discarded
    group.done, group.dead, group.discarded = 0, 0, 0
    for sample = 0, group.size - 1 do look_at(group, member(group, sample)) end
    if group.resized or group.done ~= done or group.dead ~= dead or group.discarded ~= discarded then
      redis.call('HSET', group.key, 'size', group.size, 'done', group.done, 'dead', group.dead, 'discarded',
        group.discarded)
      put_right = put_right + 1
    end
    local over = group.done + group.dead >= group.size
    if group.state == 'open' and over or (group.state == 'ready' or group.state == 'held') and group.done < group.viable
    then
      close(group)
      group = read_group(name)
    end
    if group.state == 'open' or group.state == 'ready' then index[group.state .. ':' .. group.purpose][name] = group.seq end
    if group.state == 'held' then index['held:' .. group.purpose][name] = time + tonumber(ARGV[2]) end
    add_up(group)
    seq = math.max(seq, group.seq, totals.groups)
  end
end

for name, belongs in pairs(index) do
  for _, found in ipairs(redis.call('ZRANGE', prefix .. name, 0, -1)) do
    if belongs[found] then
      belongs[found] = nil
    else
      redis.call('ZREM', prefix .. name, found)
      put_right = put_right + 1
    end
  end
  for missing, score in pairs(belongs) do
    redis.call('ZADD', prefix .. name, score, missing)
    put_right = put_right + 1
  end
end
-- Somebody is forgetting the run, and is through: it must not come back.
if not next(groups) and not known then
  redis.call('DEL', prefix .. 'run')
  return put_right
end
-- Totals that no record tells: they stay as they are.
local COUNTED = { resubmitted = true, claims = true, resumed = true, turns_saved = true, released = true,
  expired = true, fenced = true, duplicates = true, redelivered = true, requeued = true }
for _, name in ipairs(redis.call('HKEYS', prefix .. 'count')) do
  if not COUNTED[name] and not string.match(name, '^failures:') then totals[name] = totals[name] or 0 end
end
for name, number in pairs(totals) do
  local text = string.format('%.17g', number)
  if (finite(field('count', name)) or 0) ~= tonumber(text) then put_right = put_right + 1 end
  redis.call('HSET', prefix .. 'count', name, text)
end
if whole(field('run', 'seq') or '0', 0, MOST) ~= seq then put_right = put_right + 1 end
redis.call('HSET', prefix .. 'run', 'seq', seq)
return put_right
