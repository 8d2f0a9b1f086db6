-- The worker gives the job back, at no cost. A repeat is well.
-- reads and writes  run leased queued count job:<job>
-- ARGV   id attempt
-- reply  ok | fenced
sound('leased', 'queued')
local id, attempt = ARGV[1], ARGV[2]
local job = typed('job:' .. id, 'hash')
if not redis.call('ZSCORE', prefix .. 'leased', id .. '#' .. attempt) then
  local got = redis.call('HMGET', job, 'ended', 'ended_by')
  if got[1] == attempt and got[2] == 'release' then return { 'ok' } end
  return fenced()
end
redis.call('ZREM', prefix .. 'leased', id .. '#' .. attempt)
local state = redis.call('HGET', job, 'state')
if state == 'done' or state == 'dead' then return fenced() end -- it was ended for damage
redis.call('HSET', job, 'state', 'queued', 'not_before', 0, 'ended', attempt, 'ended_by', 'release')
redis.call('ZADD', prefix .. 'queued', 0, id)
count('released')
return { 'ok' }
