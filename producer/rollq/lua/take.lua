-- Hand out groups, the lowest sequence first, all or none; fewer only when the run is sealed and no more can follow.
-- A repeat under the same token gets the same groups.
-- reads and writes  run open:<purpose> ready:<purpose> held:<purpose> count hold:<token> group:<group> job:<job>
-- ARGV   groups token hold_s purpose
-- reply  for each group: name seq size, then the state of each member
local purpose, token = ARGV[4], ARGV[2]
sound('run', 'open:' .. purpose, 'ready:' .. purpose, 'held:' .. purpose)
local ready, held, hold = prefix .. 'ready:' .. purpose, prefix .. 'held:' .. purpose, typed('hold:' .. token, 'set')
local time, groups = now(), {}

local function reply()
  table.sort(groups, function(a, b) return a.seq < b.seq end)
  local rows, run = {}, string.match(prefix, '{(.*)}')
  for i, group in ipairs(groups) do
    local row = { group.name, tostring(group.seq), group.size }
    for sample = 0, group.size - 1 do
      local state = redis.pcall('HGET', prefix .. 'job:' .. run .. '/' .. group.name .. '/' .. sample, 'state')
      -- A damaged member reads as done: reading its journal fails, and then the consumer condemns it.
      row[#row + 1] = type(state) == 'table' and 'done' or state or 'lost'
    end
    rows[i] = row
  end
  return rows
end

for _, name in ipairs(redis.call('SMEMBERS', hold)) do groups[#groups + 1] = read_group(name) end
if #groups > 0 then
  even_without_memory()
  for _, group in ipairs(groups) do redis.call('ZADD', held, 'XX', 'GT', time + tonumber(ARGV[3]), group.name) end
  return reply()
end

for _, name in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', time)) do
  local group = readable_group(name)
  if group then
    redis.call('DEL', prefix .. 'hold:' .. (group.token or '')) -- its groups expire together
    redis.call('ZREM', held, name)
    redis.call('HSET', group.key, 'state', 'ready')
    redis.call('ZADD', ready, group.seq, name)
  end
end

local wanted = tonumber(ARGV[1])
for _, name in ipairs(redis.call('ZRANGE', ready, 0, wanted - 1)) do groups[#groups + 1] = readable_group(name) end
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
return reply()
