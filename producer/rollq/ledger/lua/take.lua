-- Hand out groups, the lowest sequence first, all or none; fewer only when the run is sealed and no more can follow.
-- A repeat under the same token gets the same groups. A hold that nobody renews ends; after a silence of all reapers
-- and takers (run: heard:<purpose>) Redis may have been away, and whoever is alive gets the time to renew first.
-- reads and writes  run open:<purpose> ready:<purpose> held:<purpose> count hold:<token> group:<group> job:<job>
-- ARGV   groups token hold_s purpose outage_s (longest silence) grace_s
-- reply  for each group: name seq size, then the state of each member
local purpose, token = ARGV[4], ARGV[2]
sound('run', 'open:' .. purpose, 'ready:' .. purpose, 'held:' .. purpose)
local ready, held, hold = prefix .. 'ready:' .. purpose, prefix .. 'held:' .. purpose, prefix .. 'hold:' .. token
local time = now()
local groups = held_groups(token, time)

local function reply()
  table.sort(groups, function(a, b) return a.seq < b.seq end)
  local rows = {}
  for i, group in ipairs(groups) do
    local row = { group.name, tostring(group.seq), group.size }
    for sample = 0, group.size - 1 do
      local state = field('job:' .. member(group, sample), 'state')
      -- A damaged member reads as done: reading its journal fails, and then the consumer condemns it.
      row[#row + 1] = state == 'dead' and state or 'done'
    end
    rows[i] = row
  end
  return rows
end

if #groups > 0 then
  even_without_memory()
  for _, group in ipairs(groups) do redis.call('ZADD', held, 'XX', 'GT', time + tonumber(ARGV[3]), group.name) end
  return reply()
end

if redis.call('ZCARD', held) > 0 then
  even_without_memory()
  local last, grace = moment(field('run', 'heard:' .. purpose)), time + tonumber(ARGV[6])
  if time - last > tonumber(ARGV[5]) then
    -- Those that had ended before it are not renewed by anybody.
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', held, '(' .. seconds(last), seconds(grace))) do
      redis.call('ZADD', held, grace, name)
    end
  end
  stamp(purpose, time)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', time)) do
  local group = readable_group(name, time)
  redis.call('ZREM', held, name)
  if group and group.state == 'held' then
    redis.call('DEL', prefix .. 'hold:' .. (group.token or '')) -- its groups expire together
    redis.call('HSET', group.key, 'state', 'ready')
    redis.call('ZADD', ready, group.seq, name)
  end
end

local wanted = tonumber(ARGV[1])
for _, name in ipairs(redis.call('ZRANGE', ready, 0, wanted - 1)) do
  local group = readable_group(name, time)
  if group and group.state == 'ready' then groups[#groups + 1] = group else redis.call('ZREM', ready, name) end
end
if #groups < wanted then
  local last = redis.call('HGET', prefix .. 'run', 'sealed') and redis.call('ZCARD', prefix .. 'open:' .. purpose) == 0
  if not last or redis.call('ZCARD', ready) > #groups then return {} end
end
for _, group in ipairs(groups) do
  redis.call('ZREM', ready, group.name)
  redis.call('ZADD', held, time + tonumber(ARGV[3]), group.name)
  redis.call('SADD', hold, group.name)
  redis.call('HSET', group.key, 'state', 'held', 'token', token, 'handed', group.handed + 1)
  if group.handed > 0 then count('redelivered') end
end
if #groups > 0 then stamp(purpose, time) end
return reply()
