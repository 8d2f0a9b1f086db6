-- Hand out groups, the lowest sequence first, all or none; fewer only when the run is sealed and no more can follow.
-- A repeat under the same token gets the same groups. A hold that is not renewed ends; after a silence of all reapers
-- and takers (run: heard:<purpose>) Redis may have been away, and live consumers get the time to renew first.
-- reads and writes  run open:<purpose> ready:<purpose> held:<purpose> count hold:<token> group:<group> job:<job>
-- ARGV   groups token hold_s purpose outage_s (longest silence) grace_s
-- reply  for each group: name seq size, then the state of each member
check_indexes()
local wanted, token, hold_s, purpose = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local outage_s, grace_s, meta = tonumber(ARGV[6]), tonumber(ARGV[7]), typed('run', 'hash')
local ready, held, hold = prefix .. 'ready:' .. purpose, prefix .. 'held:' .. purpose, prefix .. 'hold:' .. token
local time = now()
local groups = held_groups(token, time)

local function reply()
  table.sort(groups, function(a, b) return a.seq < b.seq end)
  local rows = {}
  for i, group in ipairs(groups) do
    local row = { group.name, tostring(group.seq), group.size }
    for sample = 0, group.size - 1 do
      local state = field('job:' .. member(group.name, sample), 'state')
      -- A member that cannot be read counts as done: the consumer finds out when it reads its journal, and rejects it.
      row[#row + 1] = state == 'dead' and state or 'done'
    end
    rows[i] = row
  end
  return rows
end

if #groups > 0 then
  allow_without_memory()
  for _, group in ipairs(groups) do redis.call('ZADD', held, 'XX', 'GT', time + hold_s, group.name) end
  return reply()
end

if redis.call('ZCARD', held) > 0 then
  allow_without_memory()
  local last, grace = stored_number(field('run', 'heard:' .. purpose)), time + grace_s
  if time - last > outage_s then
    -- A hold that had ended before the silence began gets no grace.
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', held, '(' .. seconds(last), seconds(grace))) do
      redis.call('ZADD', held, grace, name)
    end
  end
  stamp(purpose, time)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', time)) do
  local group = group_or_drop(name, time)
  redis.call('ZREM', held, name)
  if group and group.state == 'held' then
    redis.call('DEL', prefix .. 'hold:' .. (group.token or '')) -- its groups expire together
    redis.call('HSET', group.key, 'state', 'ready')
    redis.call('ZADD', ready, group.seq, name)
  end
end

for _, name in ipairs(redis.call('ZRANGE', ready, 0, wanted - 1)) do
  local group = group_or_drop(name, time)
  if group and group.state == 'ready' then groups[#groups + 1] = group else redis.call('ZREM', ready, name) end
end
if #groups < wanted then
  local last = redis.call('HGET', meta, 'sealed') and redis.call('ZCARD', prefix .. 'open:' .. purpose) == 0
  if not last or redis.call('ZCARD', ready) > #groups then return {} end
end
for _, group in ipairs(groups) do
  redis.call('ZREM', ready, group.name)
  redis.call('ZADD', held, time + hold_s, group.name)
  redis.call('SADD', hold, group.name)
  redis.call('HSET', group.key, 'state', 'held', 'token', token, 'handed', group.handed + 1)
  if group.handed > 0 then count('redelivered') end
end
if #groups > 0 then stamp(purpose, time) end
return reply()
