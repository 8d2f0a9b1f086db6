-- Journal one event and renew the lease. A repeat finds its own event at the index. The first new event after a replay
-- shows that the attempt goes on with the journal.
-- reads and writes  run leased count job:<job> journal:<job>
-- ARGV   id attempt index turn (1: the event ends a turn) blob
-- reply  ok | fenced | conflict length
local id, attempt, index, turn, blob = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1', ARGV[6]
local leased, member = typed('leased', 'zset'), id .. '#' .. attempt
if not redis.call('ZSCORE', leased, member) then return fenced() end
local job, journal = typed('job:' .. id, 'hash'), typed('journal:' .. id, 'list')
local state, deadline, reach, kept, turned =
  unpack(redis.call('HMGET', job, 'state', 'deadline', 'reach', 'kept', 'turned'))
if state ~= 'leased' then return fenced() end -- it was ended because it could not be read
local length = redis.call('LLEN', journal)
if index > length or (index < length and redis.call('LINDEX', journal, index) ~= blob) then
  return { 'conflict', length }
end
local time = now()
if index == length then
  redis.call('RPUSH', journal, blob)
  if index == whole(kept, 2, MOST) then resumed(turned) end
  if turn then redis.pcall('HINCRBY', job, 'turned', 1) end
end
if turn and index + 1 > stored_number(reach) then
  -- One turn farther than all attempts before: a job that makes progress is not what kills workers.
  redis.call('HSET', job, 'reach', index + 1, 'fail:worker', 0)
end
redis.call('ZADD', leased, 'XX', 'GT', math.min(time + constants.lease_s, tonumber(deadline) or time), member)
return { 'ok' }
