-- A consumer without a name is closed: what it holds goes to others at once.
-- reads and writes  ready:<purpose> held:<purpose> holds:<purpose> waiting:<purpose> wake:<session> hold:<token>
--                   group:<group>
-- ARGV   purpose, then tokens
-- reply  ok
allow_without_memory()
local purpose = ARGV[2]
for i = 3, #ARGV do
  for _, group in ipairs(held_groups(ARGV[i])) do
    redis_call('ZREM', prefix .. 'held:' .. purpose, group.name)
    redis_call('HSET', group.key, 'state', 'ready')
    redis_call('ZADD', prefix .. 'ready:' .. purpose, group.seq, group.name)
  end
  end_hold(purpose, ARGV[i])
end
wake_consumers(purpose)
return { 'ok' }
