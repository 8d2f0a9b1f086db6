-- A consumer cannot read a done job that it holds: the job is dead, and the whole hold goes back untouched.
-- reads and writes  dead count ready:<purpose> held:<purpose> hold:<token> group:<group> job:<job>
-- ARGV   token id reason
-- reply  ok | lost
sound('dead', 'ready:train', 'ready:eval', 'held:train', 'held:eval')
local token, id = ARGV[1], ARGV[2]
local hold, mine, groups = typed('hold:' .. token, 'set'), group_name(id), {}
if redis.call('SISMEMBER', hold, mine) == 0 then
  local got = redis.pcall('HMGET', prefix .. 'job:' .. id, 'state', 'condemned')
  return { got[1] == 'dead' and got[2] == token and 'ok' or 'lost' }
end
for _, name in ipairs(redis.call('SMEMBERS', hold)) do groups[#groups + 1] = read_group(name) end

local attempt = redis.pcall('HGET', prefix .. 'job:' .. id, 'attempt')
even_without_memory()
bury(id, type(attempt) == 'string' and attempt or 0, ARGV[3], now())
redis.call('HSET', prefix .. 'job:' .. id, 'condemned', token)
for _, group in ipairs(groups) do
  redis.call('ZREM', prefix .. 'held:' .. group.purpose, group.name)
  redis.call('HSET', group.key, 'handed', group.handed - 1)
  if group.name == mine then
    group.done = group.done - 1
    redis.call('HSET', group.key, 'done', group.done)
    settle(group, 'dead')
  else
    redis.call('HSET', group.key, 'state', 'ready')
    redis.call('ZADD', prefix .. 'ready:' .. group.purpose, group.seq, group.name)
  end
end
redis.call('DEL', hold)
count('done', -1)
return { 'ok' }
