-- Journal one event and renew the lease. A repeat finds its own event at the index. The first one after those that the
-- attempt found says that it goes on with the journal.
-- reads and writes  run leased count job:<job> journal:<job>
-- ARGV   id attempt index lease_s turn (1: the event ends a turn) blob
-- reply  ok | fenced | conflict length
sound('leased')
local id, attempt, index = ARGV[1], ARGV[2], tonumber(ARGV[3])
local member = id .. '#' .. attempt
if not redis.call('ZSCORE', prefix .. 'leased', member) then
  return fenced()
end
local job, journal = typed('job:' .. id, 'hash'), typed('journal:' .. id, 'list')
local got = redis.call('HMGET', job, 'deadline', 'reach', 'kept', 'turned')
local length = redis.call('LLEN', journal)
if index > length or (index < length and redis.call('LINDEX', journal, index) ~= ARGV[6]) then
  return { 'conflict', length }
end
local time = now()
if index == length then
  redis.call('RPUSH', journal, ARGV[6])
  if index == whole(got[3], 2, MOST) then resumed(got[4], length) end
  if ARGV[5] == '1' then redis.pcall('HINCRBY', job, 'turned', 1) end
end
if ARGV[5] == '1' and index + 1 > (whole(got[2], 0, MOST) or 0) then
  -- A turn farther than any attempt before: whatever kills workers, it is not this job.
  redis.call('HSET', job, 'reach', index + 1, 'fail:worker', 0)
end
redis.call('ZADD', prefix .. 'leased', 'XX', 'GT', math.min(time + tonumber(ARGV[4]), finite(got[1]) or time), member)
return { 'ok' }
