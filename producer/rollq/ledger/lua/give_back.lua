-- A consumer without a name is closed: what it holds goes to others at once.
-- reads and writes  ready:<purpose> held:<purpose> holds:<purpose> waiting:<purpose> wake:<session> hold:<token>
--                   group:<group>
-- ARGV   purpose, then tokens
-- reply  nothing
check_indexes()
typed('holds:' .. ARGV[2], 'zset')
allow_without_memory()
local time, purpose = now(), ARGV[2]
for i = 3, #ARGV do
  for _, group in ipairs(held_groups(ARGV[i], time)) do
    redis.call('ZREM', prefix .. 'held:' .. purpose, group.name)
    redis.call('HSET', group.key, 'state', 'ready')
    redis.call('ZADD', prefix .. 'ready:' .. purpose, group.seq, group.name)
  end
  end_hold(purpose, ARGV[i])
end
wake_consumers(purpose)
