-- Where everything is, at one instant. A script, because a Redis that is out of memory refuses even to read in MULTI.
-- reads and writes  run sources queued leased dead count open:<purpose> ready:<purpose> held:<purpose> (reads only)
-- ARGV   totals (1: with them)
-- reply  sealed seq (-1: it is none) queued leased dead, then open ready held of train and of eval, then totals (name
--        value, ...)
sound('run', 'sources', 'queued', 'leased', 'dead')
local reply = { redis.call('HEXISTS', prefix .. 'run', 'sealed'), whole(field('run', 'seq') or '0', 0, MOST) or -1 }
for _, name in ipairs({ 'queued', 'leased', 'dead' }) do reply[#reply + 1] = redis.call('ZCARD', prefix .. name) end
for _, purpose in ipairs({ 'train', 'eval' }) do
  for _, where in ipairs({ 'open:', 'ready:', 'held:' }) do
    sound(where .. purpose)
    reply[#reply + 1] = redis.call('ZCARD', prefix .. where .. purpose)
  end
end
if ARGV[1] == '1' then
  sound('count')
  reply[#reply + 1] = redis.call('HGETALL', prefix .. 'count')
end
return reply
