-- Journal the last event and end the job as done. A repeat by the attempt that ended it is well.
-- reads and writes  run leased count ready:<purpose> open:<purpose> job:<job> journal:<job> group:<group>
-- ARGV   id attempt index blob tally (what the job adds to the totals)
-- reply  ok | fenced | conflict length
sound('leased')
local id, attempt, index = ARGV[1], ARGV[2], tonumber(ARGV[3])
local member = id .. '#' .. attempt
local job, journal = typed('job:' .. id, 'hash'), typed('journal:' .. id, 'list')
if not redis.call('ZSCORE', prefix .. 'leased', member) then
  local got = redis.call('HMGET', job, 'ended', 'ended_by')
  if got[1] == attempt and got[2] == 'complete' then return { 'ok' } end
  return fenced()
end
local length = redis.call('LLEN', journal)
if index ~= length then return { 'conflict', length } end
local group = open_group(id)
local found = redis.call('HMGET', job, 'kept', 'turned')

even_without_memory()
redis.call('RPUSH', journal, ARGV[4])
redis.call('ZREM', prefix .. 'leased', member)
redis.call('HSET', job, 'state', 'done', 'ended', attempt, 'ended_by', 'complete')
redis.call('HSET', group.key, 'tally:' .. select(2, parse(id)), ARGV[5])
settle(group, 'done')
count('done')
if index == whole(found[1], 2, MOST) then resumed(found[2], length) end
tally(ARGV[5], 1)
return { 'ok' }
