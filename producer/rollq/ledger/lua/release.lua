-- The worker gives the job back, at no cost. A repeat gets the same answer.
-- reads and writes  run leased queued count job:<job> group:<group>
-- ARGV   id lease
-- reply  ok | fenced
local id, lease = ARGV[2], ARGV[3]
local leased, queued, job = typed('leased', 'zset'), typed('queued', 'zset'), typed('job:' .. id, 'hash')
local state, ended, ended_by = unpack(redis.call('HMGET', job, 'state', 'ended', 'ended_by'))
if state ~= 'leased' or not redis.call('ZSCORE', leased, id .. '#' .. lease) then
  if ended == lease and ended_by == 'release' then return { 'ok' } end
  return fenced()
end
redis.call('ZREM', leased, id .. '#' .. lease)
redis.call('HSET', job, 'state', 'queued', 'not_before', 0, 'ended', lease, 'ended_by', 'release')
redis.call('ZADD', queued, at_once(whole(field('group:' .. parse(id), 'seq'), 0, MOST) or 0), id)
count('released')
return { 'ok' }
