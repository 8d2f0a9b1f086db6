-- The worker gives the job back, at no cost. A repeat gets the same answer.
-- reads and writes  run leased queued count job:<job> group:<group>
-- ARGV   id lease restart (1: the journal is set aside)
-- reply  ok | fenced
local id, lease = ARGV[2], ARGV[3]
local leased, queued, job = prefix .. 'leased', prefix .. 'queued', prefix .. 'job:' .. id
local state, ended, ended_by = unpack(redis_call('HMGET', job, 'state', 'ended', 'ended_by'))
if state ~= 'leased' or not redis_call('ZSCORE', leased, id .. '#' .. lease) then
  if ended == lease and ended_by == 'release' then return { 'ok' } end
  return fenced()
end
local seq = group_of(id).seq
redis_call('ZREM', leased, id .. '#' .. lease)
redis_call('HSET', job, 'state', 'queued', 'not_before', 0, 'ended', lease, 'ended_by', 'release')
redis_call('ZADD', queued, at_once(seq), id)
if ARGV[4] == '1' then redis_call('HSET', job, 'restart', 1) end
count('released')
return { 'ok' }
